// Proves embedding and head against float64, and that each staged row gets its own result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ends/ends_cpu.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

constexpr int64_t kDModel = 21, kVocab = 37;

class EndsTest : public ::testing::TestWithParam<double> {
 protected:
  EndsTest()
      : embedding_(testing::RandomRows(kVocab, kDModel, seed_)),
        norm_(testing::RandomRows(1, kDModel, seed_ + 1)),
        head_(testing::RandomRows(kVocab, kDModel, seed_ + 2)),
        device_(OpenCpuDevice({.threads = 1})),
        ends_(device_->MakeEnds(
            {.d_model = kDModel, .vocab = kVocab, .norm_eps = 1e-3, .logit_softcap = GetParam()},
            {.embedding = {.data = embedding_.data(), .shape = {kVocab, kDModel, 1, 1}},
             .final_norm = {.data = norm_.data(), .shape = {kDModel, 1, 1, 1}},
             .head = {.data = head_.data(), .shape = {kVocab, kDModel, 1, 1}}},
            /*max_rows=*/4)) {}

  const uint32_t seed_ = testing::TestSeed();
  std::vector<float> embedding_, norm_, head_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Ends> ends_;
};

TEST_P(EndsTest, HeadNormsMultipliesAndCapsTheChosenRows) {
  const std::vector<int32_t> tokens = {36, 0, 5, 5, 7}, rows = {4, 0, 2};
  std::vector<float> x(tokens.size() * kDModel), logits(rows.size() * kVocab);
  const TensorView x_view{.data = x.data(), .shape = {5, kDModel, 1, 1}};
  ends_->Embed({.rows = 5, .tokens = tokens.data()}, x_view);
  const std::vector<SampleRow> samples(rows.size(), {.target = 0});
  EXPECT_EQ(ends_->Stage(rows, samples), 3);
  ends_->Run(3, x_view, {.data = logits.data(), .shape = {3, kVocab, 1, 1}});
  std::vector<double> expected;
  for (int32_t row : rows) {
    const float* e = embedding_.data() + tokens[static_cast<size_t>(row)] * kDModel;
    double square = 0;
    for (int64_t i = 0; i < kDModel; ++i) square += std::pow(static_cast<double>(e[i]), 2);
    const double scale = 1 / std::sqrt(square / kDModel + 1e-3);
    for (int64_t o = 0; o < kVocab; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < kDModel; ++i) {
        sum += static_cast<double>(e[i]) * scale *
               static_cast<double>(norm_[static_cast<size_t>(i)]) *
               static_cast<double>(head_[static_cast<size_t>(o * kDModel + i)]);
      }
      const double cap = GetParam();
      expected.push_back(cap > 0 ? cap * std::tanh(sum / cap) : sum);
    }
  }
  testing::ExpectClose(logits, expected, 2e-6, "logits");
}

TEST_P(EndsTest, GivesEachStagedRowItsOwnResultWhateverIsBehindThem) {
  std::vector<float> x = testing::RandomRows(4, kDModel, seed_ + 3), logits(4 * kVocab);
  const TensorView x_view{.data = x.data(), .shape = {4, kDModel, 1, 1}};
  const SamplingParams greedy{.temperature = 0};
  const std::vector<int32_t> rows = {3, 1};
  const std::vector<SampleRow> samples = {{.params = &greedy}, {.target = 2, .top = 1}};
  EXPECT_EQ(ends_->Stage(rows, samples), 2);
  ends_->Run(/*count=*/4, x_view, {.data = logits.data(), .shape = {4, kVocab, 1, 1}});
  std::vector<SampleResult> results(2);
  ends_->Collect(results);
  const auto likeliest = [&](int row) {
    const auto begin = logits.begin() + row * kVocab;
    return static_cast<int32_t>(std::max_element(begin, begin + kVocab) - begin);
  };
  EXPECT_EQ(results[0].token, likeliest(0));
  EXPECT_EQ(results[0].rank, 1);
  EXPECT_EQ(results[1].token, 2);
  ASSERT_EQ(results[1].top.size(), 1u);
  EXPECT_EQ(results[1].top[0].token, likeliest(1));
  // A second tile starts from nothing.
  EXPECT_EQ(ends_->Stage({}, {}), 0);
  ends_->Run(/*count=*/2, x_view, {.data = logits.data(), .shape = {2, kVocab, 1, 1}});
  ends_->Collect({});
}

INSTANTIATE_TEST_SUITE_P(Softcaps, EndsTest, ::testing::Values(0.0, 15.0));

}  // namespace
}  // namespace eddy
