// Proves the sampler: Philox against the published known answers; every number of a result and
// every drawn token against a plain float64 implementation of kernels/sampling.h that sorts all and
// knows no shortcut, over random rows and parameters; and each step once by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ends/sampler/philox.h"
#include "kernels/ends/sampler/sampler_cpu.h"
#include "tests/testing/allocation_count.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// From the known-answer file of the authors' library, Random123.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_THAT(Philox({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, UniformNumbersAreEven) {
  std::vector<int> counts(10);
  for (int64_t position = 0; position < 100000; ++position) {
    const double uniform = UniformAt(7, position);
    ASSERT_GE(uniform, 0);
    ASSERT_LT(uniform, 1);
    ++counts[static_cast<size_t>(uniform * 10)];
  }
  // Five standard deviations of a count of 10,000.
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);
}

// What may be drawn, with its share: step 3 to 6 in float64.
struct Share {
  int32_t token = 0;
  double logit = 0;
  double share = 0;
};

void Renormalise(std::vector<Share>& all) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const Share& one : all) max = std::max(max, one.logit);
  for (Share& one : all) sum += one.share = std::exp(one.logit - max);
  for (Share& one : all) one.share /= sum;
}

void SortByLogit(std::vector<Share>& all) {
  std::sort(all.begin(), all.end(), [](const Share& a, const Share& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  });
}

// Keeps a prefix that reaches `wanted`.
void KeepShare(double wanted, std::vector<Share>& all) {
  double sum = 0;
  size_t kept = 0;
  while (kept < all.size() && sum < wanted) sum += all[kept++].share;
  all.resize(kept);
  Renormalise(all);
}

std::vector<double> Adjusted(const std::vector<float>& logits, const SampleRow& row) {
  const SamplingParams& p = *row.params;
  std::vector<double> x(logits.begin(), logits.end());
  const double barred = -std::numeric_limits<double>::infinity();
  for (const auto& [token, bias] : p.logit_bias)
    x[static_cast<size_t>(token)] += static_cast<double>(bias);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto has = [&](const std::vector<int32_t>& list) {
      return std::find(list.begin(), list.end(), static_cast<int32_t>(i)) != list.end();
    };
    if ((!p.allowed.empty() && !has(p.allowed)) || has(p.banned) ||
        (row.generated < p.min_new_tokens && has(p.ending_tokens))) {
      x[i] = barred;
    }
  }
  for (int32_t token : std::set<int32_t>(row.past.begin(), row.past.end())) {
    double& value = x[static_cast<size_t>(token)];
    const auto penalty = static_cast<double>(p.repetition_penalty);
    value = value > 0 ? value / penalty : value * penalty;
  }
  const auto generated = row.past.last(static_cast<size_t>(row.generated));
  for (int32_t token : std::set<int32_t>(generated.begin(), generated.end())) {
    const auto count = std::count(generated.begin(), generated.end(), token);
    x[static_cast<size_t>(token)] -=
        static_cast<double>(p.frequency_penalty) * static_cast<double>(count) +
        static_cast<double>(p.presence_penalty);
  }
  return x;
}

std::vector<Share> Shares(const std::vector<double>& adjusted, const SamplingParams& p) {
  std::vector<Share> all;
  for (size_t i = 0; i < adjusted.size(); ++i) {
    if (std::isinf(adjusted[i])) continue;
    all.push_back({static_cast<int32_t>(i), adjusted[i] / static_cast<double>(p.temperature)});
  }
  Renormalise(all);
  SortByLogit(all);
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < all.size()) {
    all.resize(static_cast<size_t>(p.top_k));
    Renormalise(all);
  }
  if (p.top_p < 1) KeepShare(static_cast<double>(p.top_p), all);
  if (p.min_p > 0) {
    const double least = static_cast<double>(p.min_p) * all.front().share;
    std::erase_if(all, [&](const Share& one) { return one.share < least; });
    Renormalise(all);
  }
  if (p.typical_p < 1) {
    double entropy = 0;
    for (const Share& one : all) entropy -= one.share * std::log(one.share);
    std::stable_sort(all.begin(), all.end(), [&](const Share& a, const Share& b) {
      return std::abs(-std::log(a.share) - entropy) < std::abs(-std::log(b.share) - entropy);
    });
    KeepShare(static_cast<double>(p.typical_p), all);
  }
  std::sort(all.begin(), all.end(),
            [](const Share& a, const Share& b) { return a.token < b.token; });
  return all;
}

// The token, and how far the uniform number is from a border between two tokens: where that is of
// the order of rounding, either neighbour is right.
std::pair<int32_t, double> ReferenceDraw(const std::vector<Share>& shares, double uniform) {
  double sum = 0;
  for (const Share& one : shares) {
    const double next = sum + one.share;
    if (next > uniform) return {one.token, std::min(uniform - sum, next - uniform)};
    sum = next;
  }
  return {shares.back().token, 0};
}

struct Setting {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> past;
  SampleRow row;
};

void RandomSetting(std::mt19937& random, Setting& s) {
  const auto chance = [&](int one_in) { return random() % static_cast<uint32_t>(one_in) == 0; };
  const auto vocab = static_cast<size_t>(chance(4) ? 5000 : 5 + random() % 400);
  std::normal_distribution<float> normal(0, chance(2) ? 4.0f : 0.5f);
  s.logits.resize(vocab);
  for (float& logit : s.logits) logit = normal(random);
  // Many equal logits: ties must go by token.
  if (chance(4)) {
    for (float& logit : s.logits) logit = std::round(logit);
  }
  const auto token = [&] { return static_cast<int32_t>(random() % vocab); };
  std::uniform_real_distribution<float> unit(0.05f, 1.0f);
  SamplingParams& p = s.params;
  p.seed = (uint64_t{random()} << 32) | random();
  p.temperature = chance(5) ? 0.0f : 2 * unit(random);
  if (chance(2)) p.top_k = 1 + static_cast<int32_t>(random() % 80);
  if (chance(2)) p.top_p = unit(random);
  if (chance(4)) p.min_p = 0.3f * unit(random);
  if (chance(4)) p.typical_p = unit(random);
  if (chance(4)) p.repetition_penalty = 1 + unit(random);
  if (chance(4)) p.frequency_penalty = unit(random);
  if (chance(4)) p.presence_penalty = -unit(random);
  if (chance(4)) p.logit_bias = {{token(), 3.0f}, {token(), -4.0f}};
  if (chance(4)) p.banned = {token(), token()};
  if (chance(8)) p.allowed = {token(), token(), token(), token()};
  if (chance(4)) {
    p.min_new_tokens = 3;
    p.ending_tokens = {token()};
  }
  for (auto i = random() % 30; i > 0; --i) s.past.push_back(token());
  s.row = {.params = &p,
           .position = static_cast<int64_t>(s.past.size()),
           .past = s.past,
           .generated = s.past.empty() ? 0 : static_cast<int32_t>(random() % s.past.size()),
           .top = static_cast<int32_t>(random() % 8)};
}

TEST(Sampler, DrawsAsAPlainImplementationDoes) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  int undecided = 0;
  constexpr int kSettings = 2000;
  for (int i = 0; i < kSettings; ++i) {
    SCOPED_TRACE("EDDY_TEST_SEED=" + std::to_string(seed) + ", setting " + std::to_string(i));
    Setting s;
    RandomSetting(random, s);
    SamplerCpu sampler(static_cast<int64_t>(s.logits.size()));
    SampleResult result;
    sampler.Sample(s.logits, s.row, result);
    const std::vector<double> adjusted = Adjusted(s.logits, s.row);
    const double most = *std::max_element(adjusted.begin(), adjusted.end());
    if (std::isinf(most)) {
      EXPECT_EQ(result.token, -1);
      continue;
    }
    if (s.params.temperature == 0) {
      // Equal after rounding to float: the adjusted values of the two may differ in the last bit.
      EXPECT_NEAR(adjusted[static_cast<size_t>(result.token)], most, 1e-5);
      continue;
    }
    const std::vector<Share> shares = Shares(adjusted, s.params);
    const double uniform = UniformAt(s.params.seed, s.row.position);
    const auto [token, margin] = ReferenceDraw(shares, uniform);
    if (result.token == token) continue;
    // Rounding may move a border, or what exactly reaches top_p; both are rare.
    ++undecided;
    EXPECT_LT(margin, 0.2);
  }
  EXPECT_LE(undecided, kSettings / 200) << "EDDY_TEST_SEED=" << seed;
}

TEST(Sampler, ReportsTheModelsOwnDistribution) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    Setting s;
    RandomSetting(random, s);
    const std::vector<int32_t> also = {0, static_cast<int32_t>(s.logits.size()) - 1};
    s.row.also = also;
    if (i % 2 == 0) s.row.params = nullptr, s.row.target = static_cast<int32_t>(random() % 5);
    SamplerCpu sampler(static_cast<int64_t>(s.logits.size()));
    SampleResult result;
    sampler.Sample(s.logits, s.row, result);
    ASSERT_TRUE(result.finite);
    std::vector<Share> all;
    for (size_t t = 0; t < s.logits.size(); ++t) {
      all.push_back({static_cast<int32_t>(t), static_cast<double>(s.logits[t])});
    }
    Renormalise(all);
    double entropy = 0;
    for (const Share& one : all) entropy -= one.share * std::log(one.share);
    EXPECT_NEAR(result.entropy, entropy, 2e-5);
    const auto logprob = [&](int32_t token) {
      return std::log(all[static_cast<size_t>(token)].share);
    };
    EXPECT_NEAR(result.also[0], logprob(also[0]), 1e-5);
    EXPECT_NEAR(result.also[1], logprob(also[1]), 1e-5);
    if (result.token >= 0) {
      EXPECT_NEAR(result.logprob, logprob(result.token), 1e-5);
    }
    std::vector<Share> sorted = all;
    SortByLogit(sorted);
    ASSERT_EQ(result.top.size(), std::min(static_cast<size_t>(s.row.top), sorted.size()));
    for (size_t t = 0; t < result.top.size(); ++t) {
      EXPECT_EQ(result.top[t].token, sorted[t].token);
      EXPECT_NEAR(result.top[t].logprob, logprob(sorted[t].token), 1e-5);
    }
    for (size_t t = 0; t < sorted.size(); ++t) {
      if (sorted[t].token == result.token) {
        EXPECT_EQ(result.rank, static_cast<int32_t>(t + 1));
      }
    }
  }
}

// One row with the parameters given.
SampleResult SampleOnce(const std::vector<float>& logits, const SamplingParams& params,
                        SampleRow row = {}) {
  SamplerCpu sampler(static_cast<int64_t>(logits.size()));
  SampleResult result;
  row.params = &params;
  sampler.Sample(logits, row, result);
  return result;
}

TEST(Sampler, GreedyTakesTheLowestIdOnATie) {
  EXPECT_EQ(SampleOnce({1, 3, 3, 2}, {.temperature = 0}).token, 1);
  EXPECT_EQ(SampleOnce(std::vector<float>(100, 0.5f), {.temperature = 0}).token, 0);
  // The least float has no finite inverse.
  EXPECT_EQ(SampleOnce({1, 3, 3, 2}, {.temperature = 1e-45f}).token, 1);
  EXPECT_EQ(SampleOnce({1, 3, 2.9f, 2}, {.temperature = 1e-38f, .top_p = 0.9f}).token, 1);
}

TEST(Sampler, RefusesRowsThatAreNotFinite) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (size_t at : {0u, 20u, 32u}) {
      std::vector<float> logits(33, 1.0f);
      logits[at] = bad;
      EXPECT_FALSE(SampleOnce(logits, {}).finite) << bad << " at " << at;
    }
  }
}

TEST(Sampler, SaysSoWhenEveryTokenIsBarred) {
  const SampleResult result = SampleOnce({1, 2}, {.allowed = {1}, .banned = {1}});
  EXPECT_TRUE(result.finite);
  EXPECT_EQ(result.token, -1);
}

TEST(Sampler, BarsEndingTokensBelowTheMinimum) {
  const SamplingParams params{.temperature = 0, .min_new_tokens = 2, .ending_tokens = {1}};
  const std::vector<int32_t> past = {0, 0, 0};
  EXPECT_EQ(SampleOnce({0, 5, 1}, params, {.past = past, .generated = 1}).token, 2);
  EXPECT_EQ(SampleOnce({0, 5, 1}, params, {.past = past, .generated = 2}).token, 1);
}

TEST(Sampler, PenalisesEachTokenOfThePastOnceAndGeneratedOnesByCount) {
  const std::vector<int32_t> past = {0, 0, 1};
  // 4 / 2 against 3: repetition counts once, however often the token came.
  EXPECT_EQ(
      SampleOnce({4, -1, 3, 1.9f}, {.temperature = 0, .repetition_penalty = 2}, {.past = past})
          .token,
      2);
  // 4 - 2 * 0.8 = 2.4 of three generated; 4 - 0 if none of them is.
  const SamplingParams params{.temperature = 0, .frequency_penalty = 0.8f};
  EXPECT_EQ(SampleOnce({4, 0, 3}, params, {.past = past, .generated = 3}).token, 2);
  EXPECT_EQ(SampleOnce({4, 0, 3}, params, {.past = past, .generated = 1}).token, 0);
  EXPECT_EQ(SampleOnce({4, 0, 3}, {.temperature = 0, .presence_penalty = 1.5f},
                       {.past = past, .generated = 3})
                .token,
            2);
}

TEST(Sampler, ADrawDependsOnSeedAndPositionAlone) {
  const std::vector<float> logits = testing::RandomRows(1, 1000, 5);
  SamplerCpu fresh(1000), used(1000);
  std::vector<int32_t> first, second;
  SampleResult result;
  const std::vector<int32_t> past = {1, 2, 3};
  const SamplingParams plain{.seed = 9}, other{.top_p = 0.5f, .seed = 3, .repetition_penalty = 2};
  for (int64_t position = 0; position < 50; ++position) {
    fresh.Sample(logits, {.params = &plain, .position = position}, result);
    first.push_back(result.token);
    used.Sample(logits, {.params = &other, .position = 7, .past = past, .generated = 2}, result);
    used.Sample(logits, {.params = &plain, .position = position}, result);
    second.push_back(result.token);
  }
  EXPECT_EQ(first, second);
  EXPECT_GT(std::set<int32_t>(first.begin(), first.end()).size(), 30u);
}

TEST(Sampler, DrawsInProportion) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.6f), std::log(0.3f)};
  std::vector<int> counts(3);
  SamplerCpu sampler(3);
  SampleResult result;
  const SamplingParams params{.seed = 11};
  for (int64_t position = 0; position < 20000; ++position) {
    sampler.Sample(logits, {.params = &params, .position = position}, result);
    ++counts[static_cast<size_t>(result.token)];
  }
  // Five standard deviations.
  EXPECT_NEAR(counts[0], 2000, 5 * std::sqrt(20000 * 0.1 * 0.9));
  EXPECT_NEAR(counts[1], 12000, 5 * std::sqrt(20000 * 0.6 * 0.4));
}

TEST(Sampler, AllocatesNothingForARowWithoutLists) {
  const std::vector<float> logits = testing::RandomRows(1, 5000, 6);
  SamplerCpu sampler(5000);
  SampleResult result;
  const std::vector<int32_t> past = {1, 2, 3};
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.top_k = 40},
        SamplingParams{.top_p = 0.9f, .repetition_penalty = 1.2f},
        SamplingParams{.min_p = 0.1f, .typical_p = 0.9f}}) {
    const int64_t before = testing::AllocationCount();
    sampler.Sample(logits, {.params = &params, .past = past, .generated = 1}, result);
    EXPECT_EQ(testing::AllocationCount(), before);
  }
}

}  // namespace
}  // namespace eddy
