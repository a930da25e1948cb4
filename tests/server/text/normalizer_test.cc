// Proves each normaliser by examples, that Unicode forms taken stretch by stretch equal those of
// the whole text, and that places in the original survive.
#include "server/text/normalizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>

#include "base/utf8.h"
#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

Pieces Normalized(const NormalizerStep& step, const std::string& text) {
  Pieces pieces(text);
  EXPECT_TRUE(Normalize(step, &pieces).ok());
  EXPECT_EQ(pieces.origin.size(), pieces.text.size() + 1);
  return pieces;
}

TEST(Normalizer, PrependsOnlyToWhatIsThere) {
  EXPECT_EQ(Normalized(PrependStep{.text = "_"}, "ab").text, "_ab");
  EXPECT_EQ(Normalized(PrependStep{.text = "_"}, "").text, "");
}

TEST(Normalizer, ReplacesAndKeepsPlaces) {
  const Pieces pieces =
      Normalized(ReplaceStep{.pattern = Pattern(std::string(" ")), .content = "__"}, "a b");
  EXPECT_EQ(pieces.text, "a__b");
  EXPECT_THAT(pieces.origin, testing::ElementsAre(0, 1, 1, 2, 3));
}

TEST(Normalizer, LeavesPiecesWithIdsAlone) {
  Pieces pieces("a b");
  pieces.list = {{.begin = 0, .end = 1}, {.begin = 1, .end = 3, .id = 5}};
  ASSERT_TRUE(
      Normalize(ReplaceStep{.pattern = Pattern(std::string(" ")), .content = "_"}, &pieces).ok());
  EXPECT_EQ(pieces.text, "a b");
}

TEST(Normalizer, LowersCharacterByCharacter) {
  EXPECT_EQ(Normalized(LowercaseStep{}, "A\u0130\u03A3 \u00C9x").text, "ai\u0307\u03C3 \u00E9x");
}

TEST(Normalizer, TrimsWhiteSpace) {
  EXPECT_EQ(Normalized(TrimStep{.left = true, .right = false}, " \u0085a ").text, "a ");
  EXPECT_EQ(Normalized(TrimStep{.left = false, .right = true}, " a\u3000").text, " a");
  EXPECT_TRUE(Normalized(TrimStep{}, "  ").list.empty());
}

TEST(Normalizer, KeepsThePlacesOfUnchangedCharacters) {
  // e + acute become one character of two bytes; its neighbours stay where they are.
  const Pieces pieces = Normalized(UnicodeForm::kNfc, "xe\u0301y");
  EXPECT_EQ(pieces.text, "x\u00e9y");
  EXPECT_THAT(pieces.origin, testing::ElementsAre(0, 1, 1, 4, 5));
}

std::string WholeForm(const std::string& text, UnicodeForm form) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.c_str());
  utf8proc_uint8_t* result = form == UnicodeForm::kNfc    ? utf8proc_NFC(bytes)
                             : form == UnicodeForm::kNfd  ? utf8proc_NFD(bytes)
                             : form == UnicodeForm::kNfkc ? utf8proc_NFKC(bytes)
                                                          : utf8proc_NFKD(bytes);
  const std::string whole = reinterpret_cast<const char*>(result);
  std::free(result);
  return whole;
}

TEST(Normalizer, FormsByStretchesEqualThoseOfTheWhole) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const std::u32string marked =
      U"aeA\u00e9\u0301\u0308\u0323\u0327\u0340\u0344\u1e9b\u212b\u1100\u1161\u11a8\uac00\uffa1"
      U"\uffc2"
      U"\uff76\uff9e\u3099\u304b\u09c7\u09be\u0bc6\u0bbe\u102e\u1025\ufb01\u00bd\u0f71\u0f72\u0f73 "
      U"\U00011131\U00011127\U0001D15E\u2126\u3131\u314f\ufdfa";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = rng() % 12; i > 0; --i) {
      char32_t c = marked[rng() % marked.size()];
      if (rng() % 4 == 0) c = static_cast<char32_t>(1 + rng() % 0xD7FE);
      AppendUtf8(c, &text);
    }
    for (const UnicodeForm form :
         {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc, UnicodeForm::kNfkd}) {
      ASSERT_EQ(Normalized(form, text).text, WholeForm(text, form)) << testing::PrintToString(text);
    }
  }
}

}  // namespace
}  // namespace eddy
