// Proves that the parts of a tokenizer.json work together: small tokenizers of both kinds, by hand.
#include "server/text/json_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using testing::ElementsAre;

TEST(JsonTokenizer, EncodesByteLevelBpe) {
  const auto tokenizer = FromJson(TinyByteLevelJson());
  EXPECT_THAT(TokenTexts(*tokenizer, "hello he"), ElementsAre("hello", " he"));
  EXPECT_THAT(EncodePlain(*tokenizer, std::string("\0\u00e9", 3)), ElementsAre(0, 0xC3, 0xA9));
  EXPECT_THAT(EncodePlain(*tokenizer, ""), ElementsAre());
}

TEST(JsonTokenizer, CutsOutAddedTokens) {
  const auto tokenizer = FromJson(TinyByteLevelJson());
  EXPECT_THAT(EncodePlain(*tokenizer, "he<|end|>he"), ElementsAre(256, 261, 256));
  EXPECT_THAT(EncodePlain(*tokenizer, "he  MASK"), ElementsAre(256, 262));
  const auto literal = tokenizer->Encode("<|end|>", {.literal_special_tokens = true});
  ASSERT_TRUE(literal.ok());
  EXPECT_EQ(literal->size(), 7u);
}

TEST(JsonTokenizer, SpansCoverTheText) {
  const auto tokenizer = FromJson(TinyByteLevelJson());
  const std::string text = "hello \u00e9 MASK<|end|>he";
  const auto spans = tokenizer->EncodeSpans(text, {});
  ASSERT_TRUE(spans.ok());
  ExpectOrdered(*spans, text.size());
  std::string covered;
  for (const TokenSpan& span : *spans) covered += text.substr(span.begin, span.end - span.begin);
  EXPECT_EQ(covered, text);
}

TEST(JsonTokenizer, ServesManyThreadsAtOnce) {
  const auto tokenizer = FromJson(TinyByteLevelJson());
  const std::string text = "hello \u00e9<|end|>he";
  const std::vector<int32_t> expected = EncodePlain(*tokenizer, text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const auto ids = tokenizer->Encode(text, {.add_bos = false});
        ASSERT_TRUE(ids.ok());
        EXPECT_EQ(*ids, expected);
        EXPECT_EQ(tokenizer->Decode(*ids, /*special_tokens=*/true), text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JsonTokenizer, EncodesAWordOfAMegabyte) {
  const auto tokenizer = FromJson(TinyByteLevelJson());
  constexpr size_t kBytes = 1 << 20;
  for (const std::string unit : {"hell", "l", "x", " ", "\n", "7"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    const auto spans = tokenizer->EncodeSpans(text, {});
    ASSERT_TRUE(spans.ok()) << spans.status();
    EXPECT_EQ(spans->back().end, text.size());
    EXPECT_EQ(spans->size(), unit == "hell" ? kBytes / 4 : unit == "l" ? kBytes / 2 : kBytes);
  }
}

TEST(JsonTokenizer, KnowsHowFewTokensATextCanHave) {
  const std::vector<std::string> parts = {"hello",   " hello", "he",        "a",      " ",
                                          "<|end|>", "<s>",    "MASK",      "\u00e9", "\n",
                                          "x",       "\u2581", "\U0001F600"};
  nlohmann::json json = TinyByteLevelJson();
  const std::string text(70, 'x');
  // "MASK" takes white space along, any amount of it.
  EXPECT_EQ(FromJson(json)->FewestTokens(text), 0u);
  ExpectNeverFewer(*FromJson(json), parts);
  json["added_tokens"][1]["lstrip"] = false;
  EXPECT_EQ(FromJson(json)->FewestTokens(text), 10u);  // of 7 bytes: <|end|>
  ExpectNeverFewer(*FromJson(json), parts);
  // Without a token for a byte, text may be left out; so it may where steps take some away.
  nlohmann::json lossy = json;
  lossy["model"]["vocab"].erase("x");
  EXPECT_EQ(FromJson(lossy)->FewestTokens(text), 0u);
  for (const char* step : {"NFC", "NFKD", "Lowercase"}) {
    lossy = json;
    lossy["normalizer"] = {{"type", step}};
    EXPECT_EQ(FromJson(lossy)->FewestTokens(text), 0u) << step;
  }
  json = TinySpaceMarkJson();
  EXPECT_EQ(FromJson(json)->FewestTokens(text), 8u);  // of 8 bytes: the mark and "hello"
  ExpectNeverFewer(*FromJson(json), parts);
  json["model"]["byte_fallback"] = false;
  EXPECT_EQ(FromJson(json)->FewestTokens(text), 0u);
}

TEST(JsonTokenizer, EncodesAsConvertedSentencePieceModels) {
  const auto tokenizer = FromJson(TinySpaceMarkJson());
  EXPECT_THAT(TokenTexts(*tokenizer, "hello a"), ElementsAre(" hello", " a"));
  // The prefix is put in front of each piece between added tokens.
  EXPECT_THAT(TokenTexts(*tokenizer, "a<s>a"), ElementsAre(" a", "<s>", " a"));
  EXPECT_THAT(EncodePlain(*tokenizer, "\u00e9"), ElementsAre(259, 3 + 0xC3, 3 + 0xA9));
  EXPECT_THAT(EncodePlain(*tokenizer, ""), ElementsAre());
}

TEST(JsonTokenizer, PutsTheTemplatesTokenInFront) {
  const auto tokenizer = FromJson(TinySpaceMarkJson());
  const auto spans = tokenizer->EncodeSpans("a", {.add_bos = true});
  ASSERT_TRUE(spans.ok());
  ASSERT_EQ(spans->size(), 2u);
  EXPECT_EQ((*spans)[0].id, 1);
  EXPECT_EQ((*spans)[0].end, 0u);
  EXPECT_EQ((*spans)[1].end, 1u);
}

TEST(JsonTokenizer, DecodesWithAndWithoutSpecialTokens) {
  const auto tokenizer = FromJson(TinySpaceMarkJson());
  const std::vector<int32_t> ids = {1, 269, 2, 270};
  EXPECT_EQ(tokenizer->Decode(ids, /*special_tokens=*/false), "hello a");
  EXPECT_EQ(tokenizer->Decode(ids, /*special_tokens=*/true), "<s> hello</s> a");
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  EXPECT_FALSE(tokenizer->IsSpecial(269));
}

TEST(JsonTokenizer, GivesCharactersAsSoonAsTheyAreCertain) {
  const auto byte_level = FromJson(TinyByteLevelJson());
  EXPECT_THAT(DecodeInParts(*byte_level, {256, 0xE4, 0xBD, 0xA0, 0xE4, 261}, true),
              ElementsAre("he", "", "", "\u4f60", "", "\uFFFD<|end|>", ""));
  const auto marks = FromJson(TinySpaceMarkJson());
  EXPECT_THAT(DecodeInParts(*marks, {269, 3 + 0xC3, 3 + 0xA9, 270, 3 + 0xC3}, true),
              ElementsAre("hello", "", "", "\u00e9 a", "", "\uFFFD"));
}

TEST(JsonTokenizer, IdsWithoutATokenDecodeToNothing) {
  const auto tokenizer = FromJson(TinyByteLevelJson());
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{-1, 'a', 263, INT32_MAX, INT32_MIN}, true), "a");
  EXPECT_EQ(tokenizer->Bytes(-1), "");
  EXPECT_EQ(tokenizer->Bytes(263), "");
  EXPECT_FALSE(tokenizer->IsSpecial(263));
}

TEST(JsonTokenizer, TellsATokensBytes) {
  const auto byte_level = FromJson(TinyByteLevelJson());
  EXPECT_EQ(byte_level->Bytes(0xE4), "\xE4");
  EXPECT_EQ(byte_level->Bytes(260), " he");
  EXPECT_EQ(byte_level->Bytes(261), "<|end|>");
  const auto marks = FromJson(TinySpaceMarkJson());
  EXPECT_EQ(marks->Bytes(3 + 0xE4), "\xE4");
  EXPECT_EQ(marks->Bytes(269), " hello");
}

}  // namespace
}  // namespace eddy
