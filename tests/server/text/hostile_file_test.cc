// Proves that no file makes a reader crash: each is cut off at every length and changed at random
// some thousand times. What is still accepted must encode and decode.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/text/sentencepiece_model.h"
#include "server/text/sentencepiece_tokenizer.h"
#include "server/text/tokenizer_json.h"
#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using Read = std::function<std::unique_ptr<const Tokenizer>(const std::string&)>;

std::unique_ptr<const Tokenizer> ReadJson(const std::string& file) {
  auto tokenizer = ReadTokenizerJson(file);
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<const Tokenizer> ReadModel(const std::string& file) {
  auto model = ReadSentencePieceModel(file);
  if (!model.ok()) return nullptr;
  return std::make_unique<SentencePieceTokenizer>(*std::move(model), std::nullopt);
}

void Use(const Tokenizer& tokenizer) {
  const std::string text = "hello a <s>MASK \u00e9\u4f60 he  \n";
  const auto spans = tokenizer.EncodeSpans(text, {});
  std::vector<int32_t> ids = {-1, 0, 255, 268, tokenizer.vocab_size(), INT32_MAX};
  if (spans.ok()) {
    ExpectOrdered(*spans, text.size());
    for (const TokenSpan& span : *spans) ids.push_back(span.id);
  }
  for (const int32_t id : ids) tokenizer.Bytes(id);
  tokenizer.Decode(ids, /*special_tokens=*/true);
}

// Changes one to four places: a bit, a byte, a stretch left out, doubled or put elsewhere.
std::string Mutated(std::string file, std::mt19937* rng) {
  for (unsigned count = 1 + (*rng)() % 4; count > 0 && !file.empty(); --count) {
    const size_t at = (*rng)() % file.size();
    const size_t size = 1 + (*rng)() % 12;
    switch ((*rng)() % 5) {
      case 0:
        file[at] = static_cast<char>(file[at] ^ (1 << (*rng)() % 8));
        break;
      case 1:
        file[at] = static_cast<char>((*rng)());
        break;
      case 2:
        file.erase(at, size);
        break;
      case 3:
        file.insert(at, file.substr(at, size));
        break;
      default:
        file.insert((*rng)() % file.size(), file.substr(at, size));
    }
  }
  return file;
}

void Attack(const std::string& file, const Read& read) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  ASSERT_NE(read(file), nullptr);
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    const auto tokenizer = read(Mutated(file, &rng));
    if (tokenizer == nullptr) continue;
    ++accepted;
    Use(*tokenizer);
  }
  // A mutation that always breaks the file tests the first check only.
  EXPECT_GT(accepted, 0);
  for (size_t size = 0; size < file.size(); size += 1 + file.size() / 300) {
    if (const auto tokenizer = read(file.substr(0, size))) Use(*tokenizer);
  }
}

TEST(HostileFile, CannotBreakTheReaderOfByteLevelJson) {
  Attack(TinyByteLevelJson().dump(), ReadJson);
}

TEST(HostileFile, CannotBreakTheReaderOfSpaceMarkJson) {
  Attack(TinySpaceMarkJson().dump(), ReadJson);
}

TEST(HostileFile, CannotBreakTheReaderOfModels) { Attack(ModelFile(TinyModel()), ReadModel); }

TEST(HostileFile, DeepJsonIsRefused) {
  EXPECT_EQ(ReadJson(std::string(1'000'000, '[')), nullptr);
  EXPECT_EQ(ReadJson(std::string(100'000, '[') + std::string(100'000, ']')), nullptr);
}

}  // namespace
}  // namespace eddy
