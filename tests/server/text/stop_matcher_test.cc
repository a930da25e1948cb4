// Proves that the matcher gives out what a search in the whole text would, however the text is cut,
// and holds back no more than may still become a stop string.
#include "server/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace eddy {
namespace {

TEST(StopMatcher, HoldsBackWhatMayBecomeAStopString) {
  StopMatcher matcher({"</end>"}, /*include=*/false);
  std::string out;
  EXPECT_FALSE(matcher.Put("text</e", &out));
  EXPECT_EQ(out, "text");
  EXPECT_FALSE(matcher.Put("m></", &out));
  EXPECT_EQ(out, "text</em>");
  EXPECT_TRUE(matcher.Put("end> more", &out));
  EXPECT_EQ(out, "text</em>");
  EXPECT_EQ(matcher.matched(), 0);
}

TEST(StopMatcher, GivesOutTheStopStringIfAsked) {
  StopMatcher matcher({"stop"}, /*include=*/true);
  std::string out;
  EXPECT_FALSE(matcher.Put("do st", &out));
  EXPECT_TRUE(matcher.Put("op it", &out));
  EXPECT_EQ(out, "do stop");
}

TEST(StopMatcher, TakesTheLongestOfThoseThatEndTogether) {
  StopMatcher matcher({"c", "abc", "bc"}, /*include=*/false);
  std::string out;
  EXPECT_TRUE(matcher.Put("xabc", &out));
  EXPECT_EQ(out, "x");
  EXPECT_EQ(matcher.matched(), 1);
}

TEST(StopMatcher, FindsAStringWithinTheBeginningOfAnother) {
  StopMatcher matcher({"abcd", "bc"}, /*include=*/false);
  std::string out;
  EXPECT_TRUE(matcher.Put("abcx", &out));
  EXPECT_EQ(out, "a");
  EXPECT_EQ(matcher.matched(), 1);
}

TEST(StopMatcher, FlushGivesWhatWasHeldBack) {
  StopMatcher matcher({"stop"}, /*include=*/false);
  std::string out;
  EXPECT_FALSE(matcher.Put("sto", &out));
  EXPECT_EQ(out, "");
  matcher.Flush(&out);
  EXPECT_EQ(out, "sto");
  EXPECT_EQ(matcher.matched(), std::nullopt);
}

TEST(StopMatcher, WithoutStringsGivesAllAtOnce) {
  StopMatcher matcher({}, /*include=*/false);
  std::string out;
  EXPECT_FALSE(matcher.Put("anything", &out));
  EXPECT_EQ(out, "anything");
}

// What the matcher is to give: the text before the first stop string to end, longest first.
std::string Expected(const std::string& text, const std::vector<std::string>& stops, bool include,
                     bool* found) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    *found = longest > 0;
    if (*found) return text.substr(0, include ? end : end - longest);
  }
  return text;
}

TEST(StopMatcher, EqualsASearchInTheWholeText) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const auto random_text = [&](size_t length) {
    std::string text(length, ' ');
    for (char& c : text) c = static_cast<char>('a' + rng() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = rng() % 4; i > 0; --i) stops.push_back(random_text(1 + rng() % 7));
    const std::string text = random_text(rng() % 60);
    const bool include = rng() % 2 == 0;
    bool expect_found = false;
    const std::string expected = Expected(text, stops, include, &expect_found);

    StopMatcher matcher(stops, include);
    std::string out;
    bool found = false;
    for (size_t at = 0; at < text.size() && !found;) {
      const size_t size = 1 + rng() % 5;
      found = matcher.Put(std::string_view(text).substr(at, size), &out);
      at += size;
      // All is out but what a stop string begins with.
      size_t held_max = 0;
      for (const std::string& stop : stops) held_max = std::max(held_max, stop.size() - 1);
      if (!found) {
        EXPECT_GE(out.size() + held_max, std::min(at, text.size()));
      }
    }
    if (!found) matcher.Flush(&out);
    ASSERT_EQ(found, expect_found) << text;
    ASSERT_EQ(out, expected) << text;
  }
}

}  // namespace
}  // namespace eddy
