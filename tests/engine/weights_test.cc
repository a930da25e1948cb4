// Proves that the tensors of a folder become the weights that a model wants and nothing else: names
// by the longest rule, parts of fused tensors, convolutions, types, shards; that whatever is
// missing, unexpected, misshapen, not finite or misplaced is refused by name; and that the digest
// follows the numbers and not the files they lie in.
#include "engine/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/engine/model_files.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

Field Matrix(const std::string& name, int64_t rows, int64_t columns) {
  return {.name = name, .shape = {rows, columns, 1, 1}};
}

std::vector<float> Count(int n, float from = 0) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = from + static_cast<float>(i);
  return values;
}

// Loads with the CPU device and keeps what the weights lie in.
struct Loaded {
  std::unique_ptr<Device> device = OpenCpuDevice({});
  absl::Status status;
  Weights weights;

  Loaded(const std::string& dir, std::span<const WeightGroup> groups,
         const std::vector<std::string>& unused = {}) {
    status = Load(dir, groups, unused);
  }
  std::string message() const { return std::string(status.message()); }
  std::vector<float> Values(size_t group, size_t field) const {
    const TensorView& view = weights.groups[group][field];
    int64_t n = 1;
    for (int64_t dim : view.shape) n *= dim;
    return {view.as<float>(), view.as<float>() + n};
  }

 private:
  absl::Status Load(const std::string& dir, std::span<const WeightGroup> groups,
                    const std::vector<std::string>& unused) {
    auto files = TensorFiles::Open(dir);
    if (!files.ok()) return files.status();
    const auto plan = PlanWeights(*files, groups, unused);
    if (!plan.ok()) return plan.status();
    auto loaded = LoadWeights(*plan, device.get());
    if (!loaded.ok()) return loaded.status();
    weights = *std::move(loaded);
    return absl::OkStatus();
  }
};

const std::vector<WeightGroup> kOne = {{.fields = {Matrix("q.weight", 2, 3)}, .names = {{"", ""}}}};

void Save(const TempDir& dir, const std::vector<TestTensor>& tensors) {
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
}

TEST(Weights, PickTheLongestRuleThatFits) {
  const std::vector<NameRule> rules = {{"", "all."}, {"gate", "g"}, {"gate.weight", "w"}};
  EXPECT_EQ(RuleFor(rules, "q.weight")->theirs, "all.");
  EXPECT_EQ(RuleFor(rules, "gate.bias")->theirs, "g");
  EXPECT_EQ(RuleFor(rules, "gate.weight")->theirs, "w");
  EXPECT_EQ(RuleFor(std::span(rules).subspan(1), "q.weight"), nullptr);
}

TEST(Weights, ArriveUnderTheirNamesInTheDevicesTypes) {
  TempDir dir;
  Save(dir, {{"x.conv", "F32", {2, 1, 3}, FloatBytes(Count(6))},
             {"x.half", "F16", {2}, std::string("\x00\x3C\x00\xC0", 4)},
             {"x.brain", "BF16", {2}, std::string("\x80\x3F\x00\xC0", 4)},
             {"x.number", "F32", {}, FloatBytes({7})},
             {"x.spare", "F32", {1}}});
  const std::vector<WeightGroup> groups = {
      {.fields = {Matrix("q_conv.weight", 2, 3), Matrix("half", 2, 1)},
       .names = {{"", "x."}, {"q_conv.weight", "x.conv"}}},
      {.fields = {{.name = "brain", .dtype = DType::kBF16, .shape = {2, 1, 1, 1}},
                  Matrix("number", 1, 1)},
       .names = {{"", "x."}}}};
  const Loaded loaded(dir.path(), groups, {"x.spare"});
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.Values(0, 0), Count(6));
  EXPECT_EQ(loaded.Values(0, 1), (std::vector<float>{1, -2}));
  EXPECT_EQ(loaded.Values(1, 1), std::vector<float>{7});
  const auto* brain = loaded.weights.groups[1][0].as<uint16_t>();
  EXPECT_EQ(brain[0], 0x3F80);
  EXPECT_EQ(brain[1], 0xC000);
  for (const auto& group : loaded.weights.groups) {
    for (const TensorView& view : group) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 256, 0u);
    }
  }
}

TEST(Weights, TakePartsOfAFusedTensor) {
  TempDir dir;
  Save(dir, {{"w12", "F32", {5, 2}, FloatBytes(Count(10))}});
  std::vector<WeightGroup> groups = {
      {.fields = {Matrix("gate.weight", 2, 2), Matrix("up.weight", 3, 2)},
       .names = {{"gate.weight", "w12", 0, 2}, {"up.weight", "w12", 2, 3}}}};
  const Loaded loaded(dir.path(), groups);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.Values(0, 0), Count(4));
  EXPECT_EQ(loaded.Values(0, 1), Count(6, 4));

  // A row that belongs to nobody is as bad as a tensor that does.
  groups[0].fields[1] = Matrix("up.weight", 2, 2);
  groups[0].names[1].rows = 2;
  EXPECT_THAT(Loaded(dir.path(), groups).message(), HasSubstr("1 unexpected (w12)"));
  groups[0].fields[1] = Matrix("up.weight", 4, 2);
  groups[0].names[1].rows = 4;
  EXPECT_THAT(Loaded(dir.path(), groups).message(), HasSubstr("w12 has 5 rows, config.json makes"));
}

TEST(Weights, AreRefusedByNameWhenTheyDoNotMatch) {
  TempDir dir;
  const auto message = [&](const std::vector<TestTensor>& tensors) {
    Save(dir, tensors);
    const Loaded loaded(dir.path(), kOne);
    EXPECT_EQ(loaded.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(loaded.message(), HasSubstr("model.safetensors: "));
    return loaded.message();
  };
  const TestTensor good = {"q.weight", "F32", {2, 3}};
  EXPECT_THAT(message({}), HasSubstr("1 missing (q.weight)"));
  EXPECT_THAT(message({good, {"p", "F32", {1}}}), HasSubstr("1 unexpected (p)"));
  EXPECT_THAT(message({{"a", "F32", {1}},
                       {"b", "F32", {1}},
                       {"c", "F32", {1}},
                       {"d", "F32", {1}},
                       {"e", "F32", {1}}}),
              HasSubstr("1 missing (q.weight) and 5 unexpected (a, b, c, d, ...)"));
  EXPECT_THAT(message({{"q.weight", "F32", {3, 2}}}),
              HasSubstr("q.weight has shape [3, 2], config.json makes it [2, 3]"));
  EXPECT_THAT(message({{"q.weight", "F32", {2, 1, 3}}}), HasSubstr("has shape [2, 1, 3]"));
  EXPECT_THAT(message({{"q.weight", "F32", {6}}}), HasSubstr("has shape [6]"));
  EXPECT_THAT(message({{"q.weight", "I32", {2, 3}}}),
              HasSubstr("q.weight has dtype I32, supported: F32, BF16, F16"));
  for (float bad : {NAN, INFINITY}) {
    EXPECT_THAT(message({{"q.weight", "F32", {2, 3}, FloatBytes({0, 1, 2, 3, 4, bad})}}),
                HasSubstr("q.weight holds a number that is not finite"));
  }
  EXPECT_THAT(message({{"q.weight", "BF16", {2, 3}, "\x80\x7F"}}), HasSubstr("not finite"));
}

TEST(Weights, LargerThanThePiecesTheyAreLoadedIn) {
  TempDir dir;
  const int rows = 3, columns = 700001;  // 8.4 MB
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 8191);
  Save(dir, {{"q.weight", "F32", {rows, columns}, FloatBytes(values)}});
  const std::vector<WeightGroup> groups = {
      {.fields = {Matrix("q.weight", rows, columns)}, .names = {{"", ""}}}};
  const Loaded loaded(dir.path(), groups);
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_TRUE(loaded.Values(0, 0) == values);
}

constexpr char kIndex[] = "model.safetensors.index.json";
const std::vector<WeightGroup> kTwo = {
    {.fields = {Matrix("a", 2, 1), Matrix("b", 3, 1)}, .names = {{"", ""}}}};

TEST(Weights, AreTheSameFromOneFileOrFromShards) {
  TempDir one, two;
  const TestTensor a = {"a", "F32", {2}, FloatBytes({1, 2})};
  const TestTensor b = {"b", "F32", {3}, FloatBytes({3, 4, 5})};
  Save(one, {b, a});
  WriteFile(two / "s1.safetensors", SafetensorsBytes({a}));
  WriteFile(two / "s2.safetensors", SafetensorsBytes({b}));
  WriteFile(two / kIndex, R"({"metadata": {"total_size": 20},
                              "weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}})");
  const Loaded from_one(one.path(), kTwo);
  const Loaded from_two(two.path(), kTwo);
  ASSERT_TRUE(from_one.status.ok()) << from_one.status;
  ASSERT_TRUE(from_two.status.ok()) << from_two.status;
  EXPECT_EQ(from_one.Values(0, 1), from_two.Values(0, 1));
  EXPECT_EQ(from_one.weights.digest, from_two.weights.digest);

  Save(one, {b, {"a", "F32", {2}, FloatBytes({1, 2.0000002f})}});
  EXPECT_NE(Loaded(one.path(), kTwo).weights.digest, from_one.weights.digest);
}

TEST(Weights, RefuseAnIndexThatItsShardsBelie) {
  const auto message = [](const std::string& index) {
    TempDir dir;
    WriteFile(dir / "s1.safetensors", SafetensorsBytes({{"a", "F32", {2}}, {"b", "F32", {3}}}));
    WriteFile(dir / kIndex, index);
    const Loaded loaded(dir.path(), kTwo);
    EXPECT_FALSE(loaded.status.ok()) << index;
    return loaded.message();
  };
  const auto map = [&](const std::string& entries) {
    return message("{\"weight_map\": {" + entries + "}}");
  };
  EXPECT_THAT(map(R"("a": "s1.safetensors")"), HasSubstr("s1.safetensors: holds \"b\", which"));
  EXPECT_THAT(map(R"("a": "s1.safetensors", "b": "s1.safetensors", "c": "s1.safetensors")"),
              HasSubstr("s1.safetensors: lacks \"c\", which"));
  EXPECT_THAT(map(R"("a": "s1.safetensors", "b": "s9.safetensors")"), HasSubstr("holds \"b\""));
  EXPECT_THAT(map(R"("a": "gone.safetensors")"), HasSubstr("gone.safetensors: No such file"));
  EXPECT_THAT(map(""), HasSubstr("weight_map is empty"));
  for (const char* name : {"\"../s1.safetensors\"", "\"/etc/x.safetensors\"", "\"..\"", "\"\"",
                           "\"d/s1.safetensors\"", "\"s1.bin\"", "7", "\"..safetensors\""}) {
    EXPECT_THAT(map("\"a\": " + std::string(name)),
                HasSubstr("must be the name of a .safetensors file in the same folder"));
  }
  EXPECT_THAT(message("{}"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(message("{\"weight_map\": []}"), HasSubstr("weight_map is [], must be an object"));
  EXPECT_THAT(message("{\"weight_map\": {}, \"x\": 1}"), HasSubstr("unknown key x"));
  EXPECT_THAT(message(R"({"weight_map": {"a": "s1.safetensors", "a": "s1.safetensors"}})"),
              HasSubstr("\"a\" stands twice"));
}

TEST(Weights, RefuseAFolderThatIsEmptyOrAmbiguous) {
  TempDir dir;
  EXPECT_THAT(Loaded(dir.path(), kTwo).message(), HasSubstr("holds neither model.safetensors nor"));
  Save(dir, {});
  WriteFile(dir / kIndex, "{}");
  EXPECT_THAT(Loaded(dir.path(), kTwo).message(), HasSubstr("holds both model.safetensors and"));
}

}  // namespace
}  // namespace eddy
