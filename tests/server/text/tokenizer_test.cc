// Proves that a tokenizer is opened by kind, and that every refusal names the file or the field.
#include "server/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using testing::HasSubstr;

constexpr const char* kChildren = "tests/golden/tokenizers/children-bpe4096.model";

std::string Refusal(const TokenizerSpec& spec) {
  const auto tokenizer = OpenTokenizer(spec);
  return tokenizer.ok() ? "accepted" : std::string(tokenizer.status().message());
}

TEST(OpenTokenizer, OpensEachKind) {
  const auto bytes = OpenTokenizer({.kind = "bytes", .file = "", .bos = 256, .vocab_size = 257});
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ((*bytes)->vocab_size(), 257);

  const auto model =
      OpenTokenizer({.kind = "sentencepiece", .file = kChildren, .bos = 1, .vocab_size = 4096});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->vocab_size(), 4096);

  const std::string path = testing::TempDir() + "tiny_tokenizer.json";
  std::ofstream(path) << TinyByteLevelJson();
  const auto json =
      OpenTokenizer({.kind = "tokenizer.json", .file = path, .bos = {}, .vocab_size = 263});
  EXPECT_TRUE(json.ok()) << json.status();
  std::filesystem::remove(path);
}

TEST(OpenTokenizer, RefusesWithFileAndField) {
  EXPECT_THAT(Refusal({.kind = "unigram", .file = "", .bos = {}, .vocab_size = 1}),
              HasSubstr("tokenizer.kind is \"unigram\"; supported: "));
  EXPECT_THAT(
      Refusal({.kind = "sentencepiece", .file = "no/such.model", .bos = {}, .vocab_size = 1}),
      HasSubstr("no/such.model"));
  EXPECT_THAT(Refusal({.kind = "sentencepiece", .file = "tests", .bos = {}, .vocab_size = 1}),
              HasSubstr("tests: the file cannot be read"));
  EXPECT_THAT(Refusal({.kind = "tokenizer.json", .file = kChildren, .bos = {}, .vocab_size = 4096}),
              HasSubstr("children-bpe4096.model: the file is not valid JSON"));
  EXPECT_THAT(Refusal({.kind = "sentencepiece", .file = kChildren, .bos = {}, .vocab_size = 4095}),
              HasSubstr("the highest id is 4095, the model's vocab_size is 4095"));
  EXPECT_THAT(
      Refusal({.kind = "sentencepiece", .file = kChildren, .bos = 4096, .vocab_size = 5000}),
      HasSubstr("bos is 4096"));
  EXPECT_THAT(Refusal({.kind = "bytes", .file = "", .bos = {}, .vocab_size = 255}),
              HasSubstr("vocab_size is 255"));
  EXPECT_THAT(Refusal({.kind = "bytes", .file = "", .bos = 256, .vocab_size = 256}),
              HasSubstr("tokens.bos is 256"));
}

}  // namespace
}  // namespace eddy
