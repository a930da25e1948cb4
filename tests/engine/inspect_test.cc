// Proves that an inspection of good folders tells what a server would tell of them, one of them
// reckoned by hand; and that of broken copies every problem is told at once, each by name.
#include "engine/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/engine/model_files.h"

namespace eddy {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr char kDeltaNet[] = "tests/golden/delta_net_a";

// A copy of DeltaNet's golden folder, to be broken.
class Copy {
 public:
  Copy() {
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy(std::string(kDeltaNet) + "/" + file, dir_.path());
    }
  }
  std::string operator/(const std::string& name) const { return dir_ / name; }
  nlohmann::json Config() const { return nlohmann::json::parse(ReadFile(dir_ / "config.json")); }
  void SetConfig(const nlohmann::json& config) const {
    WriteFile(dir_ / "config.json", config.dump());
  }
  std::vector<TestTensor> Tensors() const { return ReadTensors(dir_ / "model.safetensors"); }
  void SetTensors(const std::vector<TestTensor>& tensors) const {
    WriteFile(dir_ / "model.safetensors", SafetensorsBytes(tensors));
  }
  Inspection Look(bool weights = false) const {
    return Inspect({.load = {.model_dir = dir_.path()}, .weights = weights});
  }

 private:
  TempDir dir_;
};

TEST(Inspect, FindsNothingWrongInAnyGoldenFolder) {
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden")) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    ++folders;
    const Inspection found = Inspect({.load = {.model_dir = entry.path()}, .weights = true});
    EXPECT_THAT(found.problems, IsEmpty()) << entry.path();
    ASSERT_TRUE(found.model.has_value()) << entry.path();
    ASSERT_TRUE(found.capacity.has_value()) << entry.path();
    const std::unique_ptr<Device> device = OpenCpuDevice({});
    const auto loaded = LoadModel({.model_dir = entry.path()}, device.get());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(found.model->parameters, loaded->info.parameters) << entry.path();
    EXPECT_EQ(found.model->layers, loaded->info.layers) << entry.path();
    EXPECT_EQ(found.model->record_bytes, loaded->info.record_bytes) << entry.path();
    EXPECT_EQ(found.model->kv_bytes_per_token, loaded->info.kv_bytes_per_token) << entry.path();
    EXPECT_EQ(found.weight_bytes, loaded->capacity.weight_bytes) << entry.path();
    EXPECT_EQ(found.capacity->slots, loaded->capacity.slots) << entry.path();
  }
  EXPECT_GE(folders, 10);
}

TEST(Inspect, ReckonsAsOneDoesByHand) {
  const Inspection found = Inspect({.load = {.model_dir = kDeltaNet}, .memory = 1 << 30});
  ASSERT_TRUE(found.model.has_value());
  EXPECT_EQ(found.model->model_type, "delta_net");
  EXPECT_EQ(found.model->layers, (std::vector<std::pair<std::string, int>>{{"delta", 2}}));
  EXPECT_EQ(found.mlps, std::vector<std::string>{"swiglu"});
  // D = 64, 2 heads of K = V = 32, convolutions of 4, vocabulary 256, inner width 256 (4 * 64 *
  // 2/3, up to a multiple of 256). A layer: two norms of 64; q, k, v, out 64 x 64; three
  // convolutions 64 x 4; step 2 x 64; the norm of outputs 32; three matrices 64 x 256 of the MLP.
  constexpr int64_t kLayer = 2 * 64 + 4 * 64 * 64 + 3 * 64 * 4 + 2 * 64 + 32 + 3 * 64 * 256;
  // Embedding, head, final norm.
  constexpr int64_t kParameters = 2 * kLayer + 2 * 256 * 64 + 64;
  EXPECT_EQ(found.model->parameters, kParameters);
  // All begin on multiples of 256 bytes: only the norm of outputs, 128 bytes, leaves a gap.
  EXPECT_EQ(found.weight_bytes, 4 * kParameters + 2 * 128);
  // A layer: S, 2 x 32 x 32, and three rows of each convolution, 3 x 64 x 3.
  EXPECT_EQ(found.model->record_bytes, 2 * 4 * (2 * 32 * 32 + 3 * 64 * 3));
  EXPECT_EQ(found.model->kv_bytes_per_token, 0);
  EXPECT_EQ(found.page_bytes, 0);
  EXPECT_EQ(found.free_bytes, 1 << 30);
  ASSERT_TRUE(found.capacity.has_value());
  EXPECT_EQ(found.capacity->slots, 16);
  EXPECT_EQ(found.capacity->state_bytes, 17 * found.model->record_bytes);
  EXPECT_EQ(found.model->tokenizer_kind, "");
}

TEST(Inspect, CountsPagesOfLayersThatAttend) {
  const Inspection found =
      Inspect({.load = {.model_dir = "tests/golden/gated_deltanet_hybrid_a"}, .memory = 1 << 30});
  ASSERT_TRUE(found.capacity.has_value());
  EXPECT_GT(found.model->kv_bytes_per_token, 0);
  EXPECT_EQ(found.page_bytes, 64 * found.model->kv_bytes_per_token);
  EXPECT_GT(found.capacity->pages, 0);
}

TEST(Inspect, TellsEveryFaultOfTheConfig) {
  const Copy copy;
  nlohmann::json config = copy.Config();
  config["norm_eps"] = -1;
  config["tie_word_embeddings"] = "yes";
  config["unheard_of"] = 1;
  config["unseen"] = 2;
  copy.SetConfig(config);
  WriteFile(copy / "model.safetensors", "short");
  const Inspection found = copy.Look();
  EXPECT_THAT(
      found.problems,
      UnorderedElementsAre(HasSubstr("norm_eps is -1"), HasSubstr("tie_word_embeddings is \"yes\""),
                           HasSubstr("unknown key unheard_of"), HasSubstr("unknown key unseen"),
                           HasSubstr("too short")));
  EXPECT_FALSE(found.model.has_value());
}

TEST(Inspect, TellsEveryTensorThatDoesNotFit) {
  const Copy copy;
  std::vector<TestTensor> tensors = copy.Tensors();
  for (TestTensor& tensor : tensors) {
    if (tensor.name == "model.layers.0.attn.q_proj.weight") tensor = {tensor.name, "F32", {64, 63}};
    if (tensor.name == "model.layers.1.attn.k_proj.weight") tensor = {tensor.name, "I32", {64, 64}};
    if (tensor.name == "model.layers.0.attn.v_proj.weight") tensor.name = "stray.a";
    if (tensor.name == "model.layers.1.attn.v_proj.weight") tensor.name = "stray.b";
    if (tensor.name == "lm_head.weight") {
      const std::string infinity("\x00\x00\x80\x7F", 4);
      tensor.data.replace(tensor.data.size() - 4, 4, infinity);
    }
  }
  copy.SetTensors(tensors);
  WriteFile(copy / "tokenizer.json", "");
  const auto all_but_numbers = {
      HasSubstr("q_proj.weight has shape [64, 63], config.json makes it [64, 64]"),
      HasSubstr("k_proj.weight has dtype I32"),
      HasSubstr("layers.0.attn.v_proj.weight is missing"),
      HasSubstr("layers.1.attn.v_proj.weight is missing"),
      HasSubstr("stray.a is not in a model"),
      HasSubstr("stray.b is not in a model"),
      HasSubstr("tokenizer.json: must be a file that can be read and is not empty")};
  const Inspection quick = copy.Look();
  for (const auto& problem : all_but_numbers) EXPECT_THAT(quick.problems, Contains(problem));
  EXPECT_THAT(quick.problems, SizeIs(all_but_numbers.size()));
  const Inspection thorough = copy.Look(/*weights=*/true);
  EXPECT_THAT(thorough.problems, SizeIs(all_but_numbers.size() + 1));
  EXPECT_THAT(thorough.problems,
              Contains(HasSubstr("lm_head.weight holds a number that is not finite")));
  // What the config asks for is told all the same.
  const Inspection whole = Inspect({.load = {.model_dir = kDeltaNet}});
  EXPECT_EQ(quick.model->parameters, whole.model->parameters);
  EXPECT_EQ(quick.weight_bytes, whole.weight_bytes);
}

TEST(Inspect, TellsEveryShardThatCannotBeReadAndCallsNothingInItMissing) {
  const Copy copy;
  nlohmann::json places;
  std::vector<TestTensor> tensors = copy.Tensors();
  for (const TestTensor& tensor : tensors) places[tensor.name] = "a.safetensors";
  places["lm_head.weight"] = "b.safetensors";
  places["model.norm.weight"] = "c.safetensors";
  WriteFile(copy / "model.safetensors.index.json", nlohmann::json{{"weight_map", places}}.dump());
  std::filesystem::remove(copy / "model.safetensors");
  std::erase_if(tensors, [](const TestTensor& tensor) {
    return tensor.name == "lm_head.weight" || tensor.name == "model.norm.weight";
  });
  WriteFile(copy / "a.safetensors", SafetensorsBytes(tensors));
  WriteFile(copy / "b.safetensors", "nonsense that is long");
  EXPECT_THAT(copy.Look().problems, UnorderedElementsAre(HasSubstr("b.safetensors: the header has"),
                                                         HasSubstr("c.safetensors: No such file")));
}

TEST(Inspect, SaysWhenItDoesNotFitAndWhenThereIsNothing) {
  const Inspection tight = Inspect({.load = {.model_dir = kDeltaNet}, .memory = 1000});
  EXPECT_THAT(tight.problems, UnorderedElementsAre(HasSubstr("the model does not fit")));
  EXPECT_FALSE(tight.capacity.has_value());
  const TempDir empty;
  EXPECT_THAT(Inspect({.load = {.model_dir = empty.path()}}).problems,
              UnorderedElementsAre(HasSubstr("config.json"), HasSubstr("holds neither")));
}

}  // namespace
}  // namespace eddy
