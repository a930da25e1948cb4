// Proves that a step is counted for what it did: prompt rows and answer rows apart, fills from a
// checkpoint, lost numbers.
#include "engine/stats.h"

#include <gtest/gtest.h>

namespace eddy {
namespace {

TEST(StepStats, TellsPromptRowsFromTheRowsOfTheAnswer) {
  Sequence prefills{.tokens = std::vector<int32_t>(20), .prompt_end = 20, .consumed = 15};
  Sequence decodes{.tokens = std::vector<int32_t>(12), .prompt_end = 10, .consumed = 11};
  Sequence resumes{.tokens = std::vector<int32_t>(3), .prompt_begin = 1, .prompt_end = 3};
  resumes.request.start = std::make_shared<Checkpoint>();
  BatchPlan plan{.fills = {&prefills, &resumes}, .saves = {&decodes}};
  plan.entries = {{.sequence = &decodes, .rows = 1},
                  {.sequence = &prefills, .rows = 5},
                  {.sequence = &resumes, .rows = 3}};
  plan.rows = 9;
  plan.single_row_sequences = 1;
  StepResult result{.entries = std::vector<EntryResult>(3), .saved = std::vector<Saved>(1)};
  result.entries[0].sampled = TokenReport{};
  result.entries[1].not_finite = NotFinite{};
  result.recorded = true;
  const StepStats stats = CountStep(plan, result);
  EXPECT_EQ(stats.rows, 9);
  EXPECT_EQ(stats.sequences, 3);
  EXPECT_EQ(stats.single_row_sequences, 1);
  EXPECT_EQ(stats.prompt_rows, 8);
  EXPECT_EQ(stats.sampled, 1);
  EXPECT_EQ(stats.not_finite, 1);
  EXPECT_EQ(stats.fills, 2);
  EXPECT_EQ(stats.fills_from_checkpoint, 1);
  EXPECT_EQ(stats.saves, 1);
  EXPECT_TRUE(stats.recorded);
}

TEST(WaitingLoad, Adds) {
  const absl::Time t = absl::UnixEpoch();
  const WaitingLoad sum = WaitingLoad{.requests = 1, .prompt_tokens = 5, .oldest = t} +
                          WaitingLoad{.requests = 2, .prompt_tokens = 6};
  EXPECT_EQ(sum.requests, 3);
  EXPECT_EQ(sum.prompt_tokens, 11);
  EXPECT_EQ(sum.oldest, t);
}

}  // namespace
}  // namespace eddy
