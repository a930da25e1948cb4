// Proves the host's half of the GPU's sampler: what the parameters of a row become, that all that
// is said of one token is in one edit, that a tile is cut where a list is full and goes on from
// there, that nothing of an earlier tile is left, and that each row collects its own results.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "kernels/ends/sampler/philox.h"
#include "kernels/ends/sampler/sampler_stage.h"

namespace eddy {
namespace {

constexpr int kVocab = 10, kRows = 6;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SampleStageTest : public ::testing::Test {
 protected:
  int Stage(const std::vector<SampleRow>& samples) {
    std::vector<int32_t> rows;
    for (size_t i = 0; i < samples.size(); ++i) rows.push_back(static_cast<int32_t>(100 + i));
    return stage_.Stage(rows, samples);
  }
  std::map<int32_t, LogitEdit> EditsOf(const StagedRow& row) {
    std::map<int32_t, LogitEdit> edits;
    for (int i = 0; i < row.edits; ++i) {
      const LogitEdit& edit = edits_[static_cast<size_t>(row.first_edit + i)];
      EXPECT_TRUE(edits.emplace(edit.token, edit).second) << "twice: " << edit.token;
    }
    return edits;
  }

  std::vector<StagedRow> rows_ = std::vector<StagedRow>(kRows, {.task = SampleTask::kDraw});
  std::vector<LogitEdit> edits_ = std::vector<LogitEdit>(2 * kVocab);
  std::vector<int32_t> also_ = std::vector<int32_t>(kMostAlso);
  std::vector<RowOutcome> outcomes_ = std::vector<RowOutcome>(kRows);
  std::vector<Candidate> top_ = std::vector<Candidate>(kMostTop);
  std::vector<float> also_logprobs_ = std::vector<float>(kMostAlso);
  SampleStage stage_{kVocab,
                     {.rows = rows_,
                      .edits = edits_,
                      .also = also_,
                      .outcomes = outcomes_,
                      .top = top_,
                      .also_logprobs = also_logprobs_}};
};

TEST_F(SampleStageTest, TurnsParametersIntoNumbers) {
  const SamplingParams greedy = {.temperature = 0};
  const SamplingParams drawn = {
      .temperature = 0.5f, .top_k = 7, .top_p = 0.9f, .typical_p = 0.8f, .seed = 5};
  EXPECT_EQ(Stage({{.params = &greedy}, {.params = &drawn, .position = 3}, {.target = 4}}), 3);
  EXPECT_EQ(rows_[0].task, SampleTask::kGreatest);
  EXPECT_EQ(rows_[0].row, 100);
  EXPECT_EQ(rows_[1].task, SampleTask::kDraw);
  EXPECT_EQ(rows_[1].row, 101);
  EXPECT_EQ(rows_[1].scale, 2.0f);
  EXPECT_EQ(rows_[1].top_k, 7);
  EXPECT_EQ(rows_[1].top_p, 0.9f);
  EXPECT_EQ(rows_[1].typical_p, 0.8f);
  EXPECT_EQ(rows_[1].min_gap, -kInfinity);
  EXPECT_EQ(rows_[1].uniform, UniformAt(5, 3));
  EXPECT_EQ(rows_[1].edits, 0);
  EXPECT_EQ(rows_[2].task, SampleTask::kTarget);
  EXPECT_EQ(rows_[2].target, 4);
  for (size_t i = 3; i < kRows; ++i) EXPECT_EQ(rows_[i].task, SampleTask::kNothing);
}

TEST_F(SampleStageTest, FindsTheLastGapThatMinPLeaves) {
  for (float min_p : {1e-30f, 1e-6f, 0.05f, 0.1f, 0.3f, 0.5f, 0.7f, 0.999f, 0.9999999f}) {
    const SamplingParams params = {.min_p = min_p};
    Stage({{.params = &params}});
    const float gap = rows_[0].min_gap;
    EXPECT_GE(std::exp(static_cast<double>(gap)), static_cast<double>(min_p));
    EXPECT_LT(std::exp(static_cast<double>(std::nextafter(gap, -kInfinity))),
              static_cast<double>(min_p));
  }
}

TEST_F(SampleStageTest, PutsAllThatIsSaidOfATokenIntoOneEdit) {
  const SamplingParams params = {.repetition_penalty = 1.5f,
                                 .frequency_penalty = 0.25f,
                                 .presence_penalty = 0.5f,
                                 .logit_bias = {{3, 2.0f}, {4, -1.0f}},
                                 .allowed = {3, 5, 6, 3},
                                 .banned = {6},
                                 .min_new_tokens = 3,
                                 .ending_tokens = {9}};
  const std::vector<int32_t> past = {1, 3, 3, 5, 3};
  EXPECT_EQ(Stage({{.params = &params, .past = past, .generated = 2}}), 1);
  EXPECT_EQ(rows_[0].only_allowed, 1);
  EXPECT_EQ(rows_[0].repetition, 1.5f);
  EXPECT_EQ(rows_[0].frequency, 0.25f);
  EXPECT_EQ(rows_[0].presence, 0.5f);
  std::map<int32_t, LogitEdit> edits = EditsOf(rows_[0]);
  ASSERT_EQ(edits.size(), 6u);
  EXPECT_EQ(edits[3].bias, 2.0f);
  EXPECT_EQ(edits[3].marks, LogitEdit::kAllowed | LogitEdit::kSeen);
  EXPECT_EQ(edits[3].generated, 1);
  EXPECT_EQ(edits[4].bias, -1.0f);
  EXPECT_EQ(edits[4].marks, 0u);
  EXPECT_EQ(edits[5].marks, LogitEdit::kAllowed | LogitEdit::kSeen);
  EXPECT_EQ(edits[5].generated, 1);
  EXPECT_EQ(edits[6].marks, LogitEdit::kAllowed | LogitEdit::kBarred);
  EXPECT_EQ(edits[1].marks, LogitEdit::kSeen);
  EXPECT_EQ(edits[1].generated, 0);
  EXPECT_EQ(edits[9].marks, LogitEdit::kBarred);
  // Behind min_new_tokens nothing is barred, and where no penalty asks, nothing is seen.
  const SamplingParams plain = {.min_new_tokens = 2, .ending_tokens = {9}};
  Stage({{.params = &plain, .past = past, .generated = 2}});
  EXPECT_EQ(rows_[0].edits, 0);
  EXPECT_EQ(rows_[0].only_allowed, 0);
}

TEST_F(SampleStageTest, CutsATileWhereAListIsFullAndGoesOnFromThere) {
  const SamplingParams eight = {.banned = {0, 1, 2, 3, 4, 5, 6, 7}};
  const std::vector<SampleRow> samples(5, {.params = &eight});
  EXPECT_EQ(Stage(samples), 2) << "twenty edits";
  EXPECT_EQ(rows_[1].first_edit, 8);
  EXPECT_EQ(rows_[2].task, SampleTask::kNothing);
  EXPECT_EQ(Stage({samples.begin() + 2, samples.end()}), 2);
  EXPECT_EQ(EditsOf(rows_[1]).size(), 8u);
  EXPECT_EQ(Stage({samples.begin() + 4, samples.end()}), 1);
  EXPECT_EQ(rows_[1].task, SampleTask::kNothing) << "of the tile before";
  // A small row that did not fit is not forgotten either.
  const SamplingParams all = {.banned = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}, one = {.banned = {0}};
  EXPECT_EQ(Stage({{.params = &all}, {.params = &all}, {.params = &one}}), 2);
  EXPECT_EQ(Stage({{.params = &one}}), 1);
  EXPECT_EQ(EditsOf(rows_[0])[0].marks, LogitEdit::kBarred);

  const std::vector<int32_t> most(kMostAlso - 1);
  EXPECT_EQ(Stage({{.target = 0, .also = most}, {.target = 0, .also = most}}), 1);
  EXPECT_EQ(Stage({}), 0);
}

TEST_F(SampleStageTest, CollectsForEachRowWhatIsItsOwn) {
  const std::vector<int32_t> also = {8, 2};
  const SamplingParams params;
  Stage({{.params = &params, .top = 2}, {.target = 1, .top = 99, .also = also}, {.target = 2}});
  EXPECT_EQ(rows_[0].top, 2);
  EXPECT_EQ(rows_[1].top, kVocab) << "there are no more";
  EXPECT_EQ(also_[0], 8);
  EXPECT_EQ(also_[1], 2);
  outcomes_[0] = {.token = 7, .rank = 3, .logprob = -2, .entropy = 1.5f, .finite = 1};
  outcomes_[1] = {.token = 1, .rank = 1, .logprob = -1, .entropy = 0.5f, .finite = 1};
  outcomes_[2] = {};
  for (size_t i = 0; i < top_.size(); ++i) top_[i] = {.token = static_cast<int32_t>(i)};
  also_logprobs_[0] = -8;
  also_logprobs_[1] = -2;
  std::vector<SampleResult> results(3, {.top = {{.token = 55}}, .also = {1.0f}});
  stage_.Collect(results);
  EXPECT_EQ(results[0].token, 7);
  EXPECT_EQ(results[0].rank, 3);
  EXPECT_EQ(results[0].logprob, -2);
  EXPECT_EQ(results[0].entropy, 1.5f);
  ASSERT_EQ(results[0].top.size(), 2u);
  EXPECT_EQ(results[0].top[1].token, 1);
  EXPECT_TRUE(results[0].also.empty());
  ASSERT_EQ(results[1].top.size(), static_cast<size_t>(kVocab));
  EXPECT_EQ(results[1].top[0].token, 2);
  EXPECT_EQ(results[1].also, (std::vector<float>{-8, -2}));
  EXPECT_FALSE(results[2].finite);
  EXPECT_TRUE(results[2].top.empty() && results[2].also.empty());
}

}  // namespace
}  // namespace eddy
