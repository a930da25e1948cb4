// Proves that exactly the well-formed sequences of RFC 3629 are taken: every code point by itself,
// and none of the forms it forbids.
#include "base/utf8.h"

#include <gtest/gtest.h>

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

TEST(Utf8, TakesEveryCodePointButSurrogates) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    const std::string text = Encode(c);
    ASSERT_EQ(Utf8Length(text + "x"), surrogate ? 0 : text.size()) << c;
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

}  // namespace
}  // namespace eddy
