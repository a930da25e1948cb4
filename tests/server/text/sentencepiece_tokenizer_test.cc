// Proves that a model encodes and decodes as libsentencepiece does with its options, by examples
// that were checked against it.
#include "server/text/sentencepiece_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using testing::ElementsAre;
using Type = SentencePieceModel::Type;

constexpr int32_t kHello = 264, kA = 265, kSpace = 266;

TEST(SentencePieceTokenizer, MergesByScore) {
  const SentencePieceTokenizer tokenizer(TinyModel(), std::nullopt);
  EXPECT_THAT(EncodePlain(tokenizer, "hello a"), ElementsAre(kHello, kA));
  EXPECT_THAT(EncodePlain(tokenizer, ""), ElementsAre());
}

TEST(SentencePieceTokenizer, UserDefinedPiecesAreNeverMerged) {
  SentencePieceModel model = TinyModel();
  model.pieces.push_back({.text = "el", .type = Type::kUserDefined});
  const SentencePieceTokenizer tokenizer(model, std::nullopt);
  EXPECT_THAT(TokenTexts(tokenizer, "hello\n"), ElementsAre(" ", "h", "el", "l", "o", "\n"));
}

TEST(SentencePieceTokenizer, UnusedPiecesAreTakenApartAgain) {
  SentencePieceModel model = TinyModel();
  model.pieces[kHello].type = Type::kUnused;
  model.pieces[kHello - 2].type = Type::kUnused;  // hell
  const SentencePieceTokenizer tokenizer(model, std::nullopt);
  EXPECT_THAT(TokenTexts(tokenizer, "hello hell"), ElementsAre(" ", "hello", " ", "he", "ll"));
}

TEST(SentencePieceTokenizer, UnknownCharactersBecomeBytes) {
  const SentencePieceTokenizer tokenizer(TinyModel(), std::nullopt);
  EXPECT_THAT(EncodePlain(tokenizer, "\u00e9"), ElementsAre(kSpace, 4 + 0xC3, 4 + 0xA9));
}

TEST(SentencePieceTokenizer, UnknownRunsAreOneTokenWithoutBytes) {
  SentencePieceModel model = TinyModel();
  model.byte_fallback = false;
  model.pieces.erase(model.pieces.begin() + 4, model.pieces.begin() + 260);
  const SentencePieceTokenizer tokenizer(model, std::nullopt);
  EXPECT_THAT(TokenTexts(tokenizer, "a\u00e9\u00e9a"), ElementsAre(" a", "<unk>", "a"));
  EXPECT_EQ(tokenizer.Decode(EncodePlain(tokenizer, "a\u00e9\u00e9a"), true), "a \u2047 a");
}

TEST(SentencePieceTokenizer, KnowsHowFewTokensATextCanHave) {
  const std::vector<std::string> parts = {"hello", " hello", "a",  " a",     " ",
                                          "\n",    "\u00e9", "xy", "\u2581", "\U0001F600"};
  SentencePieceModel model = TinyModel();
  for (const bool remove : {false, true}) {
    model.remove_extra_whitespaces = remove;
    const SentencePieceTokenizer tokenizer(model, std::nullopt);
    // Of 8 bytes at most, the mark and "hello"; spaces may come to nothing.
    EXPECT_EQ(tokenizer.FewestTokens(std::string(80, 'x') + std::string(80, ' ')), 10u);
    ExpectNeverFewer(tokenizer, parts);
  }
  model.byte_fallback = false;
  model.pieces.erase(model.pieces.begin() + 4, model.pieces.begin() + 260);
  EXPECT_EQ(SentencePieceTokenizer(model, std::nullopt).FewestTokens(std::string(80, 'x')), 0u);
}

TEST(SentencePieceTokenizer, RemovesExtraSpacesIfAsked) {
  SentencePieceModel model = TinyModel();
  model.remove_extra_whitespaces = true;
  const SentencePieceTokenizer tokenizer(model, std::nullopt);
  EXPECT_THAT(TokenTexts(tokenizer, "  a   a  "), ElementsAre(" a", " a"));
  EXPECT_THAT(TokenTexts(tokenizer, "   "), ElementsAre());
  const auto spans = tokenizer.EncodeSpans("  a   a  ", {.add_bos = false});
  ASSERT_TRUE(spans.ok());
  EXPECT_EQ((*spans)[0].begin, 2u);
  EXPECT_EQ((*spans)[1].end, 7u);
}

TEST(SentencePieceTokenizer, NamesOfControlPiecesAreText) {
  const SentencePieceTokenizer tokenizer(TinyModel(), std::nullopt);
  EXPECT_EQ(EncodePlain(tokenizer, "<s>").size(), 4u);
}

TEST(SentencePieceTokenizer, PutsTheModelsBosInFront) {
  const SentencePieceTokenizer tokenizer(TinyModel(), 1);
  const auto ids = tokenizer.Encode("a", {});
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(*ids, ElementsAre(1, kA));
  EXPECT_THAT(EncodePlain(tokenizer, "a"), ElementsAre(kA));
}

TEST(SentencePieceTokenizer, DecodesTheFirstSpaceAway) {
  const SentencePieceTokenizer tokenizer(TinyModel(), std::nullopt);
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{kHello, kA}, false), "hello a");
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{1, kSpace, kSpace, kA}, false), "  a");
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{1, kA, 2}, true), "<s>a</s>");
  SentencePieceModel plain = TinyModel();
  plain.add_dummy_prefix = false;
  EXPECT_EQ(SentencePieceTokenizer(plain, std::nullopt).Decode(std::vector<int32_t>{kA}, false),
            " a");
}

TEST(SentencePieceTokenizer, KeepsValidCharactersOfBrokenRuns) {
  const SentencePieceTokenizer tokenizer(TinyModel(), std::nullopt);
  const auto byte = [](int value) { return 4 + value; };
  EXPECT_THAT(DecodeInParts(tokenizer,
                            {byte(0xC3), byte(0xA9), byte(0xE4), byte(0xBD), byte('x'), kA}, true),
              ElementsAre("", "\u00e9", "", "", "\uFFFD\uFFFDx", " a", ""));
  EXPECT_THAT(DecodeInParts(tokenizer, {byte(0xE4), byte(0xBD)}, true),
              ElementsAre("", "", "\uFFFD\uFFFD"));
}

TEST(SentencePieceTokenizer, TellsATokensBytes) {
  const SentencePieceTokenizer tokenizer(TinyModel(), std::nullopt);
  EXPECT_EQ(tokenizer.Bytes(4 + 0xE4), "\xE4");
  EXPECT_EQ(tokenizer.Bytes(kHello), " hello");
  EXPECT_EQ(tokenizer.Bytes(1), "<s>");
  EXPECT_EQ(tokenizer.Bytes(-1), "");
  EXPECT_EQ(tokenizer.Bytes(tokenizer.vocab_size()), "");
  EXPECT_TRUE(tokenizer.IsSpecial(2));
  EXPECT_FALSE(tokenizer.IsSpecial(0));
}

}  // namespace
}  // namespace eddy
