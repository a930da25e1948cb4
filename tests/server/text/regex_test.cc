// Proves that matches come in order, that empty ones are counted as the format's original counts
// them, and that a text cannot make a pattern run for ever.
#include "server/text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eddy {
namespace {

std::vector<std::string> All(const std::string& pattern, const std::string& text) {
  const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<Match> matches;
  EXPECT_TRUE(regex->FindAll(text, &matches).ok());
  std::vector<std::string> texts;
  for (const Match& match : matches)
    texts.push_back(text.substr(match.begin, match.end - match.begin));
  return texts;
}

TEST(Regex, FindsAllFromLeftToRight) {
  EXPECT_THAT(All("\\p{L}+", "ab \u00e9\u4f60 9"), testing::ElementsAre("ab", "\u00e9\u4f60"));
  EXPECT_THAT(All("a(?=b)", "abaab"), testing::ElementsAre("a", "a"));
  EXPECT_THAT(All("a", ""), testing::IsEmpty());
}

TEST(Regex, CountsNoEmptyMatchBehindAnother) {
  EXPECT_THAT(All("x*", "axb"), testing::ElementsAre("", "x", ""));
  EXPECT_THAT(All("", "\u4f60"), testing::ElementsAre("", ""));
}

TEST(Regex, EndsLinesAtLineFeedsOnly) {
  EXPECT_THAT(All("^.", "a\nb\rc"), testing::ElementsAre("a", "b"));
}

TEST(Regex, SaysWhereAPatternIsWrong) {
  const absl::StatusOr<Regex> regex = Regex::Compile("a(b");
  EXPECT_EQ(regex.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(regex.status().message()), testing::HasSubstr("a(b"));
}

TEST(Regex, GivesUpAtTheLimitInsteadOfRunningForEver) {
  const absl::StatusOr<Regex> regex = Regex::Compile("(?:a|aa)*c");
  ASSERT_TRUE(regex.ok());
  std::vector<Match> matches;
  const absl::Status status = regex->FindAll(std::string(5000, 'a') + "dc", &matches);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("limit"));
}

TEST(Pattern, FindsALiteralAsItIs) {
  const Pattern pattern(std::string("a."));
  std::vector<Match> matches;
  ASSERT_TRUE(pattern.FindAll("a.aba.a.", &matches).ok());
  ASSERT_EQ(matches.size(), 3u);
  EXPECT_EQ(matches[1].begin, 4u);
  EXPECT_EQ(*pattern.literal(), "a.");
}

}  // namespace
}  // namespace eddy
