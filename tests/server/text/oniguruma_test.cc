// Proves that translated patterns match what Oniguruma matches where its dialect differs from
// PCRE2's, by examples that were checked against Oniguruma, and that the rest is refused.
#include "server/text/oniguruma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/text/regex.h"

namespace eddy {
namespace {

using testing::ElementsAre;

std::vector<std::string> All(const std::string& pattern, const std::string& text) {
  const absl::StatusOr<std::string> pcre2 = OnigurumaToPcre2(pattern);
  EXPECT_TRUE(pcre2.ok()) << pcre2.status();
  if (!pcre2.ok()) return {};
  const absl::StatusOr<Regex> regex = Regex::Compile(*pcre2);
  EXPECT_TRUE(regex.ok()) << regex.status();
  if (!regex.ok()) return {};
  std::vector<Match> matches;
  EXPECT_TRUE(regex->FindAll(text, &matches).ok());
  std::vector<std::string> texts;
  for (const Match& match : matches)
    texts.push_back(text.substr(match.begin, match.end - match.begin));
  return texts;
}

TEST(Oniguruma, SpaceIsThePropertyWhiteSpace) {
  const std::string spaces = "\u0085\u00A0\u2028\u3000 \t";
  EXPECT_THAT(All("\\s+", spaces), ElementsAre(spaces));
  EXPECT_THAT(All("\\s", "\u180E\uFEFF\u200B\x1C\x1F"), ElementsAre());
  EXPECT_THAT(All("[^\\s]", "\u180E\u0085"), ElementsAre("\u180E"));
  EXPECT_THAT(All("\\s+(?!\\S)", "a   b  "), ElementsAre("  ", "  "));
}

TEST(Oniguruma, WordsHaveMarksAndConnectors) {
  EXPECT_THAT(All("\\w+", "a\u0301_\u203F\u0663-b"), ElementsAre("a\u0301_\u203F\u0663", "b"));
  EXPECT_THAT(All("[^\\w]+", "a\u0301--b"), ElementsAre("--"));
  EXPECT_THAT(All("[\\W]+", "a--b"), ElementsAre("--"));
  EXPECT_THAT(All("\\w+", "a\u00bd-"), ElementsAre("a\u00bd"));
  EXPECT_THAT(All("[\\w]+", "a\u00bd-"), ElementsAre("a"));
  EXPECT_THAT(All("\\ba", "a ba \u0301a"), ElementsAre("a"));
}

TEST(Oniguruma, ScriptsAreNotExtended) {
  // U+30FC and U+3001 are common to several scripts.
  EXPECT_THAT(All("\\p{Katakana}+", "\u30AB\u30FC"), ElementsAre("\u30AB"));
  EXPECT_THAT(All("\\p{Han}+", "\u4F60\u3001\u597D"), ElementsAre("\u4F60", "\u597D"));
}

TEST(Oniguruma, IntervalsAreNeverPossessive) {
  EXPECT_THAT(All("\\p{N}{1,3}+", "1234567a"), ElementsAre("1234567"));
  EXPECT_THAT(All("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(All("a{2}?b", "b"), ElementsAre("b"));
  EXPECT_THAT(All("a{1,2}?", "aa"), ElementsAre("a", "a"));
  EXPECT_THAT(All("a**", "aa"), ElementsAre("aa"));
  EXPECT_THAT(All("a++a", "aaa"), ElementsAre());
  EXPECT_THAT(All("{a", "{a"), ElementsAre("{a"));
}

TEST(Oniguruma, ClassesCanBeCutAndNested) {
  EXPECT_THAT(All("[a-z&&[^b]]", "abc"), ElementsAre("a", "c"));
  EXPECT_THAT(All("[\\p{L}&&[^\\p{Han}]]+", "a\u4F60b"), ElementsAre("a", "b"));
  EXPECT_THAT(All("[a[x-z]]+", "axyb"), ElementsAre("axy"));
  EXPECT_THAT(All("[^a[x-z]]+", "axbc"), ElementsAre("bc"));
  EXPECT_THAT(All("[]a]+", "]a"), ElementsAre("]a"));
  EXPECT_THAT(All("[\\-a\\]#-]+", "-a]#b"), ElementsAre("-a]#"));
  EXPECT_THAT(All("[[:alpha:]]+", "a\u00e91"), ElementsAre("a\u00e9"));
}

TEST(Oniguruma, ReadsEscapesAndGroups) {
  EXPECT_THAT(All("\\x41|\\u00e9|\\v|\\.", "A\u00e9\v.x"), ElementsAre("A", "\u00e9", "\v", "."));
  EXPECT_THAT(All("(?i:'S|T)", "'s t"), ElementsAre("'s", "t"));
  EXPECT_THAT(All("(a|b)+c", "abc"), ElementsAre("abc"));
  EXPECT_THAT(All("(?<=a)b|(?>x+)", "ab b xx"), ElementsAre("b", "xx"));
  EXPECT_THAT(All("\\p{^L}+|\\P{L}", "ab1"), ElementsAre("1"));
}

TEST(Oniguruma, CutsAsLaterModelsDo) {
  const std::string pattern =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
      "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  EXPECT_THAT(All(pattern, "It'S 12345 (ok)\n\n  go  "),
              ElementsAre("It", "'S", " ", "123", "45", " (", "ok", ")\n\n", " ", " go", "  "));
}

TEST(Oniguruma, RefusesWhatHasNoCounterpart) {
  for (const char* pattern : {"(a)\\1",   "\\k<n>",  "(?<n>a)",     "(?m:.)",  "(?x)a",
                              "a(?i)b",   "\\h",     "\\R",         "\\X",     "\\G",
                              "\\K",      "*a",      "a)",          "(a",      "[a",
                              "[b-a]",    "[a-\\d]", "a{3,2}",      "a{2000}", "\\p{Nonsense}",
                              "\\p{Xan}", "\\xFF",   "\\x{110000}", "\\",      "[",
                              "[a-",      "\\p",     "\\p{",        "[[:",     "(?",
                              "\\x{",     "[a&&]"}) {
    EXPECT_FALSE(OnigurumaToPcre2(pattern).ok()) << pattern;
  }
  EXPECT_FALSE(OnigurumaToPcre2(std::string(1000, '(')).ok());
  EXPECT_FALSE(OnigurumaToPcre2(std::string(1000, '[')).ok());
}

}  // namespace
}  // namespace eddy
