// Proves that bytes become characters by the rules of The Unicode Standard, chapter 3, with its own
// examples, and by comparing the two repairs with a plain definition on random bytes.
#include "server/text/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace eddy {
namespace {

std::string Repair(const std::string& bytes, bool per_byte) {
  Utf8Repair repair(per_byte);
  std::string text;
  for (const char c : bytes) repair.Put(static_cast<uint8_t>(c), &text);
  repair.Flush(&text);
  return text;
}

TEST(Utf8, ReadsCharactersFromBothSides) {
  const std::string text = "a\u00e9\u4f60\U0001F600";
  EXPECT_EQ(ReadUtf8(text, 0).value, U'a');
  EXPECT_EQ(ReadUtf8(text, 1).value, U'\u00e9');
  EXPECT_EQ(ReadUtf8(text, 3).value, U'\u4f60');
  EXPECT_EQ(ReadUtf8(text, 6).value, U'\U0001F600');
  EXPECT_EQ(ReadUtf8Before(text, 10).value, U'\U0001F600');
  EXPECT_EQ(ReadUtf8Before(text, 1).value, U'a');
}

TEST(Utf8, WritesWhatItReads) {
  for (const char32_t c :
       {U'\0', U'\x7F', U'\x80', U'\u07FF', U'\u0800', U'\uFFFF', U'\U0010FFFF'}) {
    std::string text;
    AppendUtf8(c, &text);
    EXPECT_TRUE(IsValidUtf8(text));
    EXPECT_EQ(ReadUtf8(text, 0).value, c);
    EXPECT_EQ(ReadUtf8(text, 0).size, text.size());
  }
}

TEST(Utf8, RefusesWhatIsNotACharacter) {
  EXPECT_TRUE(IsValidUtf8(std::string("\0\u00e9", 3)));
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xBD",
        "\xE4\xBD"
        "a"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
  }
}

TEST(Utf8, ReplacesEachMaximalPart) {
  // The Unicode Standard, tables 3-8 to 3-11.
  const std::string r = "\uFFFD";
  EXPECT_EQ(Repair("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", false),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Repair("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", false),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Repair("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", false), r + r + r + r + "A");
}

TEST(Utf8, ReplacesEachByteIfAsked) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(Repair("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", true),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(Repair("\xE4\xBD\xA0\xE4\xBD", true), "\u4f60" + r + r);
}

TEST(Utf8, RepairedTextIsValidAndValidTextIsKept) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const std::string interesting =
      "\xC2\xE0\xE4\xED\xF0\xF4\xBD\xA0\x80\x9F\x8F\x90"
      "a";
  for (int round = 0; round < 5000; ++round) {
    std::string bytes(rng() % 12, ' ');
    for (char& c : bytes) c = interesting[rng() % interesting.size()];
    for (const bool per_byte : {false, true}) {
      const std::string text = Repair(bytes, per_byte);
      ASSERT_TRUE(IsValidUtf8(text));
      if (IsValidUtf8(bytes)) {
        ASSERT_EQ(text, bytes);
      } else {
        ASSERT_NE(text.find("\uFFFD"), std::string::npos);
      }
    }
  }
}

TEST(Utf8, KnowsWhiteSpace) {
  for (const char32_t c : {U' ', U'\t', U'\v', U'\x85', U'\xA0', U'\u1680', U'\u2028', U'\u3000'}) {
    EXPECT_TRUE(IsWhiteSpace(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'a', U'\x1C', U'\x1F', U'\u180E', U'\u200B', U'\uFEFF'}) {
    EXPECT_FALSE(IsWhiteSpace(c)) << static_cast<uint32_t>(c);
  }
}

}  // namespace
}  // namespace eddy
