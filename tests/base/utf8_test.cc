// Proves that exactly the well-formed sequences of RFC 3629 are taken, every code point by itself
// and none of the forms it forbids; and that bytes become characters by the rules of The Unicode
// Standard, chapter 3, with its own examples, and by comparing the two repairs with a plain
// definition on random bytes.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace eddy {
namespace {

std::string Encode(uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

std::string Repair(const std::string& bytes, bool per_byte) {
  Utf8Repair repair(per_byte);
  std::string text;
  for (const char c : bytes) repair.Put(static_cast<uint8_t>(c), &text);
  repair.Flush(&text);
  return text;
}

TEST(Utf8, TakesEveryCodePointButSurrogates) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    const std::string text = Encode(c);
    ASSERT_EQ(Utf8Length(text + "x"), surrogate ? 0 : text.size()) << c;
    if (surrogate) continue;
    std::string appended;
    AppendUtf8(c, &appended);
    ASSERT_EQ(appended, text) << c;
    ASSERT_EQ(ReadUtf8(text, 0).value, c);
  }
  EXPECT_EQ(Utf8Length(Encode(0x110000)), 0);
}

TEST(Utf8, RefusesWhatIsCutOverlongOrStray) {
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x82",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(Utf8Length(bad), 0) << bad;
    EXPECT_FALSE(IsUtf8(std::string("abc") + bad)) << bad;
  }
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"));
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
      ASSERT_TRUE(IsUtf8(text));
      if (IsUtf8(bytes)) {
        ASSERT_EQ(text, bytes);
      } else {
        ASSERT_NE(text.find("\uFFFD"), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace eddy
