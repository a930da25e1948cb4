// Proves each way to cut by an example, the five behaviours side by side.
#include "server/text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using testing::ElementsAre;

std::vector<std::string> Cut(PreTokenizerStep step, const std::string& text) {
  std::vector<PreTokenizerStep> steps;
  steps.push_back(std::move(step));
  Pieces pieces(text);
  EXPECT_TRUE(PreTokenize(steps, &pieces).ok());
  return Texts(pieces);
}

SplitStep At(const std::string& literal, SplitBehavior behavior, bool invert = false) {
  return {.pattern = Pattern(literal), .behavior = behavior, .invert = invert};
}

TEST(PreTokenizer, TreatsMatchesInFiveWays) {
  const std::string text = "the-final--cut";
  EXPECT_THAT(Cut(At("-", SplitBehavior::kRemoved), text), ElementsAre("the", "final", "cut"));
  EXPECT_THAT(Cut(At("-", SplitBehavior::kIsolated), text),
              ElementsAre("the", "-", "final", "-", "-", "cut"));
  EXPECT_THAT(Cut(At("-", SplitBehavior::kMergedWithPrevious), text),
              ElementsAre("the-", "final-", "-", "cut"));
  EXPECT_THAT(Cut(At("-", SplitBehavior::kMergedWithNext), text),
              ElementsAre("the", "-final", "-", "-cut"));
  EXPECT_THAT(Cut(At("-", SplitBehavior::kContiguous), text),
              ElementsAre("the", "-", "final", "--", "cut"));
}

TEST(PreTokenizer, InvertsWhatMatches) {
  EXPECT_THAT(Cut(At("ab", SplitBehavior::kRemoved, /*invert=*/true), "xaby"), ElementsAre("ab"));
}

TEST(PreTokenizer, PutsASpaceBeforeOnce) {
  EXPECT_THAT(Cut(PrefixSpaceStep{}, "a"), ElementsAre(" a"));
  EXPECT_THAT(Cut(PrefixSpaceStep{}, " a"), ElementsAre(" a"));
}

TEST(PreTokenizer, ShowsBytesAndKeepsTheirPlaces) {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(ByteAlphabetStep{});
  Pieces pieces("a \u00e9");
  ASSERT_TRUE(PreTokenize(steps, &pieces).ok());
  EXPECT_EQ(pieces.text, "a\u0120\u00c3\u00a9");
  EXPECT_THAT(pieces.origin, ElementsAre(0, 1, 1, 2, 2, 3, 3, 4));
}

TEST(PreTokenizer, MarksSpaces) {
  const auto step = [](MetaspaceStep::Prepend prepend) {
    return MetaspaceStep{.replacement = "\u2581", .prepend = prepend};
  };
  EXPECT_THAT(Cut(step(MetaspaceStep::Prepend::kAlways), "a b"), ElementsAre("\u2581a\u2581b"));
  EXPECT_THAT(Cut(step(MetaspaceStep::Prepend::kAlways), " a"), ElementsAre("\u2581a"));
  EXPECT_THAT(Cut(step(MetaspaceStep::Prepend::kNever), "a b"), ElementsAre("a\u2581b"));
}

TEST(PreTokenizer, MarksOnlyTheFirstPieceIfAsked) {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(At("-", SplitBehavior::kRemoved));
  steps.emplace_back(MetaspaceStep{.replacement = "_", .prepend = MetaspaceStep::Prepend::kFirst});
  Pieces pieces("a-b");
  ASSERT_TRUE(PreTokenize(steps, &pieces).ok());
  EXPECT_THAT(Texts(pieces), ElementsAre("_a", "b"));
}

}  // namespace
}  // namespace eddy
