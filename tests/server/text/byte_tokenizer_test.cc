// Proves that any text goes there and back, and what special tokens look like.
#include "server/text/byte_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using testing::ElementsAre;

TEST(ByteTokenizer, AnIdIsAByte) {
  const ByteTokenizer tokenizer(300, std::nullopt);
  const std::string text("a\0\u00e9", 4);
  EXPECT_THAT(EncodePlain(tokenizer, text), ElementsAre('a', 0, 0xC3, 0xA9));
  EXPECT_EQ(tokenizer.Decode(EncodePlain(tokenizer, text), false), text);
}

TEST(ByteTokenizer, SpecialTokensBeginAt256) {
  const ByteTokenizer tokenizer(258, 257);
  const auto spans = tokenizer.EncodeSpans("ab", {});
  ASSERT_TRUE(spans.ok());
  EXPECT_EQ((*spans)[0].id, 257);
  EXPECT_EQ((*spans)[2].begin, 1u);
  EXPECT_TRUE(tokenizer.IsSpecial(256));
  EXPECT_FALSE(tokenizer.IsSpecial(255));
  EXPECT_FALSE(tokenizer.IsSpecial(258));
  EXPECT_EQ(tokenizer.Bytes(257), "<special_1>");
}

TEST(ByteTokenizer, NeverCutsACharacter) {
  const ByteTokenizer tokenizer(258, std::nullopt);
  EXPECT_THAT(DecodeInParts(tokenizer, {0xC3, 0xA9, 0xC3, 256, 'a', 999, 0xE4}, true),
              ElementsAre("", "\u00e9", "", "\uFFFD<special_0>", "a", "", "", "\uFFFD"));
  EXPECT_THAT(DecodeInParts(tokenizer, {0xC3, 256, 0xA9}, false),
              ElementsAre("", "", "\u00e9", ""));
}

TEST(ByteTokenizer, KnowsHowFewTokensATextCanHave) {
  EXPECT_EQ(ByteTokenizer(256, std::nullopt).FewestTokens("four"), 4u);
}

}  // namespace
}  // namespace eddy
