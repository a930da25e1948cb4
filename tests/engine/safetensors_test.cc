// Proves that the safetensors reader takes what the format allows and refuses everything else with
// a line that names file and tensor: a table of hand-made headers, one fault each, then thousands
// of mutations of a good file, of which none may crash and none may be accepted unless its ranges
// fit the file exactly.
#include "engine/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/engine/model_files.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<TensorInfo>> Parse(const std::string& bytes) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(bytes)), bytes.size(), "x.safetensors");
}

std::string File(const std::string& header, size_t data_bytes) {
  return WithLength(header) + std::string(data_bytes, '\0');
}

TEST(Safetensors, ListsTensorsInTheOrderOfTheirPlaces) {
  const auto tensors = Parse(File(R"({"__metadata__":{"format":"pt"},
      "b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},
      "a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
      "empty":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},
      "number":{"dtype":"F16","shape":[],"data_offsets":[14,16]}}   )",
                                  16));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 4u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[1].name, "empty");
  EXPECT_EQ((*tensors)[2].name, "b");
  EXPECT_EQ((*tensors)[2].shape, std::vector<int64_t>{3});
  EXPECT_EQ((*tensors)[2].dtype, "BF16");
  EXPECT_EQ((*tensors)[3].name, "number");
  EXPECT_EQ((*tensors)[3].end - (*tensors)[0].begin, 16u);
}

struct BadFile {
  std::string bytes;
  std::string expected;
};

TEST(Safetensors, RefusesWithALineThatNamesWhatIsWrong) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto one = [](const std::string& fields, size_t data_bytes = 8) {
    return File("{\"a\":{" + fields + "}}", data_bytes);
  };
  const std::vector<BadFile> cases = {
      {"", "too short"},
      {"1234567", "too short"},
      {std::string(8, '\xFF'), "18446744073709551615 bytes, at most 100000000"},
      {WithLength(std::string(100, ' ')).substr(0, 50), "the header has 100 bytes, the file 50"},
      {File("", 0), "not JSON"},
      {File("{", 0), "not JSON"},
      {File("{" + a + "} x", 8), "not JSON"},
      {File("[]", 0), "a list stands where none may be"},
      {File("7", 0), "a number stands where none may be"},
      {File("{" + a + "," + a + "}", 8), "\"a\": stands twice"},
      {File("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "stands twice"},
      {File("{\"__metadata__\":{\"x\":7}}", 0), "a number stands where none may be"},
      {File("{\"__metadata__\":{\"x\":{}}}", 0), "an object stands where none may be"},
      {File("{\"\":{}}", 0), "a tensor has no name"},
      {File("{\"a\":7}", 0), "\"a\": a number stands where none may be"},
      {File("{" + a + "}", 7), "passes the end of the data at 7"},
      {File("{" + a + "}", 9), "nothing covers bytes 8 to 9"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[1,9])", 9), "nothing covers bytes 0 to 1"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4),
       "not as long as dtype and shape"},
      {one(R"("dtype":"F16","shape":[2],"data_offsets":[0,8])"), "not as long as dtype and shape"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "is reversed"},
      {one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), "unknown dtype \"F31\""},
      {one(R"("dtype":7,"shape":[2],"data_offsets":[0,8])"), "a number stands where none may be"},
      {one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "a number is negative"},
      {one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "a number is not whole"},
      {one(R"("dtype":"F32","shape":[null],"data_offsets":[0,8])"), "null stands"},
      {one(R"("dtype":"F32","shape":[true],"data_offsets":[0,8])"), "a truth value stands"},
      {one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), "a list stands"},
      {one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), "a number stands where none may be"},
      {one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"), "8 dimensions"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "data_offsets must be two numbers"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), "a number stands"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":["0",8])"), "a text stands"},
      {one(R"("dtype":"F32","shape":[2])"), "data_offsets are missing"},
      {one(R"("dtype":"F32","data_offsets":[0,8])"), "shape is missing"},
      {one(R"("shape":[2],"data_offsets":[0,8])"), "dtype is missing"},
      {one(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), "stands twice"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"), "\"x\" is unknown"},
      {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
       "not as long as dtype and shape"},
      {one(R"("dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8])"),
       "not as long as dtype and shape"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), "too large"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,99999999999999999999])"), "not whole"},
      {File("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
       "\"b\": range [4, 12) overlaps another tensor"},
      {File("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "overlaps another tensor"},
      {File("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})", 20),
       "nothing covers bytes 8 to 12"},
      {File("{\"" + std::string(1000, 'x') + "\":7}", 0), "xx...: a number"},
      {File(std::string(100000, '['), 0), "a list stands"},
  };
  for (const BadFile& bad : cases) {
    const auto result = Parse(bad.bytes);
    ASSERT_FALSE(result.ok()) << bad.expected;
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(bad.expected));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("x.safetensors: "));
  }
}

TEST(Safetensors, OpensAFileAndGivesItsBytes) {
  TempDir dir;
  // The first tensor has an odd length, so the second lies on no multiple of its element's size.
  WriteFile(dir / "m.safetensors", SafetensorsBytes({{"h", "BF16", {1}, "ab"},
                                                     {"f", "F32", {2}, FloatBytes({1.5f, -2})}}));
  const auto file = SafetensorsFile::Open(dir / "m.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  float values[2];
  std::memcpy(values, file->Bytes(file->tensors()[1]).data(), 8);
  EXPECT_EQ(values[0], 1.5f);
  EXPECT_EQ(values[1], -2.0f);
}

TEST(Safetensors, NamesAFileThatIsNotThere) {
  TempDir dir;
  const auto missing = SafetensorsFile::Open(dir / "none.safetensors");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("none.safetensors"));
  const auto folder = SafetensorsFile::Open(dir.path());
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument);
}

// What an accepted file must satisfy, computed another way than the reader does.
void ExpectConsistent(const std::vector<TensorInfo>& tensors, const std::string& bytes) {
  std::vector<int> owners(bytes.size(), 0);
  for (const TensorInfo& tensor : tensors) {
    ASSERT_LE(tensor.begin, tensor.end);
    ASSERT_LE(tensor.end, bytes.size());
    long double elements = 1;
    for (int64_t dim : tensor.shape) elements *= static_cast<long double>(dim);
    const uint64_t size = tensor.end - tensor.begin;
    ASSERT_TRUE(elements == 0 ? size == 0 : size % static_cast<uint64_t>(elements) == 0);
    for (uint64_t i = tensor.begin; i < tensor.end; ++i) ++owners[i];
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  for (uint64_t i = 8 + length; i < bytes.size(); ++i) ASSERT_EQ(owners[i], 1) << "byte " << i;
}

TEST(Safetensors, SurvivesMutatedFiles) {
  const std::string good = SafetensorsBytes({{"model.layers.0.attn.q_proj.weight", "F32", {4, 3}},
                                             {"model.norm.weight", "BF16", {7}},
                                             {"a", "F16", {1, 1, 4}}});
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::string alphabet =
      "0123456789-.eE\"{}[]:,\\ \x00\xFF"
      "FBtrufalsn";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      // Mostly inside the header, where the structure is.
      const size_t at = below(4) == 0 ? below(bytes.size()) : 8 + below(200);
      switch (below(5)) {
        case 0:
          bytes[at % bytes.size()] = alphabet[below(alphabet.size())];
          break;
        case 1:
          bytes[at % bytes.size()] = static_cast<char>(random());
          break;
        case 2:
          bytes.erase(at % bytes.size(), 1 + below(4));
          break;
        case 3:
          bytes.insert(at % bytes.size(), 1 + below(4), alphabet[below(alphabet.size())]);
          break;
        case 4:
          bytes.resize(8 + below(bytes.size()));
          break;
      }
      if (bytes.size() < 16) bytes.resize(16);
    }
    const auto tensors = Parse(bytes);
    if (!tensors.ok()) {
      ASSERT_FALSE(tensors.status().message().empty());
      continue;
    }
    ++accepted;
    ExpectConsistent(*tensors, bytes);
    if (HasFatalFailure()) return;
  }
  // Changed names and data are still good files, so some must pass.
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace eddy
