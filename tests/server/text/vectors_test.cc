// Proves that real tokenizers give the ids and texts of their published vectors, whole and streamed
// in random groups. A slice of one set is part of the project; the rest is read where it is.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "server/text/tokenizer.h"
#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using nlohmann::json;

struct Set {
  std::string name, kind, file, vectors, decode;
};

std::vector<json> Lines(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

// The text when ids come in groups, each group's text appended; every part is valid UTF-8.
std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                     std::mt19937* rng) {
  const std::unique_ptr<TokenDecoder> decoder = tokenizer.NewDecoder(/*special_tokens=*/true);
  std::string text, part;
  for (const int32_t id : ids) {
    decoder->Put(id, &part);
    if ((*rng)() % 3 == 0) {
      EXPECT_TRUE(IsUtf8(part));
      text += std::exchange(part, "");
    }
  }
  decoder->Flush(&part);
  EXPECT_TRUE(IsUtf8(part));
  return text + part;
}

void Check(const Set& set) {
  SCOPED_TRACE(set.name);
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const auto tokenizer =
      OpenTokenizer({.kind = set.kind, .file = set.file, .bos = {}, .vocab_size = 1 << 20});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<json> vectors = Lines(set.vectors), decodes = Lines(set.decode);
  ASSERT_GE(vectors.size(), 30u);
  ASSERT_GE(decodes.size(), 30u);
  for (const json& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    const auto spans = (*tokenizer)->EncodeSpans(text, {.add_bos = false});
    ASSERT_TRUE(spans.ok()) << spans.status();
    ExpectOrdered(*spans, text.size());
    EXPECT_LE((*tokenizer)->FewestTokens(text), spans->size()) << vector["text"];
    size_t covered = 0;
    std::vector<int32_t> ids;
    for (const TokenSpan& span : *spans) {
      ids.push_back(span.id);
      covered += span.end - span.begin;
    }
    EXPECT_EQ(ids, vector["ids"].get<std::vector<int32_t>>()) << vector["text"];
    // None of these tokenizers drops text.
    EXPECT_EQ(covered, text.size()) << vector["text"];
    EXPECT_EQ((*tokenizer)->Decode(ids, true), vector["decoded"].get<std::string>());
    EXPECT_EQ(Streamed(**tokenizer, ids, &rng), vector["decoded"].get<std::string>());
  }
  // They drop nothing, so they know that a long text has many.
  EXPECT_GT((*tokenizer)->FewestTokens(std::string(7'000'000, 'x')), 7'000u);
  for (const json& decode : decodes) {
    const auto ids = decode["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ((*tokenizer)->Decode(ids, true), decode["decoded"].get<std::string>())
        << decode["ids"];
    EXPECT_EQ(Streamed(**tokenizer, ids, &rng), decode["decoded"].get<std::string>())
        << decode["ids"];
  }
}

TEST(Vectors, AreMatchedByTheProjectsOwnModel) {
  const std::string base = "tests/golden/tokenizers/children-bpe4096";
  Check({.name = "children-bpe4096, a slice",
         .kind = "sentencepiece",
         .file = base + ".model",
         .vectors = base + ".vectors.jsonl",
         .decode = base + ".decode.jsonl"});
}

TEST(Vectors, AreMatchedByRealTokenizers) {
  const std::string root = "../shared/tokenizers/";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << root << " is not there";
  const auto set = [&](const std::string& folder, const std::string& kind, const std::string& file,
                       const std::string& suffix) {
    const std::string base = root + folder + "/";
    Check({.name = folder + " " + file,
           .kind = kind,
           .file = base + file,
           .vectors = base + "vectors" + suffix + ".jsonl",
           .decode = base + "decode" + suffix + ".jsonl"});
  };
  set("gpt2", "tokenizer.json", "tokenizer.json", "");
  set("mistral-7b-v0.1", "tokenizer.json", "tokenizer.json", "");
  set("mistral-7b-v0.1", "sentencepiece", "tokenizer.model", "-model");
  set("children-bpe4096", "sentencepiece", "tokenizer.model", "");
  set("children-bpe8192", "sentencepiece", "tokenizer.model", "");
}

}  // namespace
}  // namespace eddy
