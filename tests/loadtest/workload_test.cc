// Proves that lengths have the mean and spread asked for, within five standard errors, that shares
// are met, and that what a call asks for depends on the seed and its place alone.
#include "loadtest/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <vector>

namespace eddy::loadtest {
namespace {

uint64_t FreshSeed() {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  return seed;
}

std::vector<PlannedCall> Draw(const WorkloadSettings& settings, const Arrivals::Settings& times) {
  CallSource source(settings, times);
  std::vector<PlannedCall> calls;
  while (const std::optional<PlannedCall> call = source.Next()) calls.push_back(*call);
  return calls;
}

TEST(Lengths, OfAChatAreLogNormal) {
  constexpr int kDraws = 20000;
  std::mt19937_64 rng(FreshSeed());
  Lengths lengths(
      {.shape = LengthSettings::Shape::kLogNormal, .mean = 300, .cv = 1, .most = 100000});
  std::vector<double> drawn;
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    drawn.push_back(lengths.Draw(&rng));
    sum += drawn.back();
  }
  EXPECT_NEAR(sum / kDraws, 300, 5 * 300 / std::sqrt(kDraws));
  // The median of a log-normal variable is its mean over sqrt(1 + cv^2). Its standard error is
  // sqrt(pi / 2) s / sqrt(n) of it, with s^2 = log(1 + cv^2).
  std::nth_element(drawn.begin(), drawn.begin() + kDraws / 2, drawn.end());
  const double median = 300 / std::sqrt(2.0);
  EXPECT_NEAR(drawn[kDraws / 2], median, 5 * 1.2533 * std::sqrt(std::log(2.0) / kDraws) * median);
}

TEST(Lengths, StayInTheirRange) {
  std::mt19937_64 rng(FreshSeed());
  Lengths fixed({.mean = 7});
  Lengths range({.mean = 10, .range_ratio = 0.5});
  Lengths capped({.shape = LengthSettings::Shape::kLogNormal, .mean = 10, .cv = 3, .most = 20});
  int least = 100, most = 0;
  for (int i = 0; i < 2000; ++i) {
    EXPECT_EQ(fixed.Draw(&rng), 7);
    const int length = range.Draw(&rng);
    least = std::min(least, length);
    most = std::max(most, length);
    const int cap = capped.Draw(&rng);
    EXPECT_TRUE(cap >= 1 && cap <= 20) << cap;
  }
  EXPECT_EQ(least, 5);
  EXPECT_EQ(most, 15);
}

TEST(CallSource, MeetsTheSharesOfCancellersAndSlowReaders) {
  constexpr int kCalls = 10000;
  const auto calls = Draw(
      {.output = {.mean = 50}, .cancel_share = 0.3, .slow_reader_share = 0.1, .seed = FreshSeed()},
      {.calls_max = kCalls});
  int cancels = 0, slow = 0;
  for (const PlannedCall& call : calls) {
    if (call.cancel_after >= 0) {
      ++cancels;
      EXPECT_TRUE(call.cancel_after >= 1 && call.cancel_after <= 50) << call.cancel_after;
    }
    slow += call.slow_reader;
  }
  EXPECT_NEAR(cancels, 0.3 * kCalls, 5 * std::sqrt(0.21 * kCalls));
  EXPECT_NEAR(slow, 0.1 * kCalls, 5 * std::sqrt(0.09 * kCalls));
}

TEST(CallSource, AsksForTheSameAtAnyRate) {
  WorkloadSettings settings = {.seed = FreshSeed()};
  settings.prompt.shape = settings.output.shape = LengthSettings::Shape::kLogNormal;
  const auto slow = Draw(settings, {.rate = 1, .calls_max = 50, .seed = settings.seed});
  settings.cancel_share = 0.5;
  const auto fast = Draw(settings, {.rate = 9, .calls_max = 50, .seed = settings.seed});
  ASSERT_EQ(slow.size(), fast.size());
  for (size_t i = 0; i < slow.size(); ++i) {
    EXPECT_EQ(slow[i].prompt_tokens, fast[i].prompt_tokens);
    EXPECT_EQ(slow[i].max_new_tokens, fast[i].max_new_tokens);
    EXPECT_EQ(slow[i].seed, fast[i].seed);
    EXPECT_NEAR(slow[i].at_s, 9 * fast[i].at_s, 1e-9);
  }
  settings.seed += 1;
  const auto other = Draw(settings, {.rate = 9, .calls_max = 50, .seed = settings.seed});
  EXPECT_NE(other[0].seed, fast[0].seed);
}

TEST(CallSource, ReplaysATrace) {
  CallSource source(
      WorkloadSettings{.seed = 1},
      std::vector<TraceEntry>{{.at_s = 0, .prompt_tokens = 2, .max_new_tokens = 3},
                              {.at_s = 1.5, .prompt_tokens = 4, .max_new_tokens = 5}});
  EXPECT_EQ(source.Next()->prompt_tokens, 2);
  const std::optional<PlannedCall> second = source.Next();
  EXPECT_EQ(second->at_s, 1.5);
  EXPECT_EQ(second->max_new_tokens, 5);
  EXPECT_FALSE(source.Next().has_value());
}

}  // namespace
}  // namespace eddy::loadtest
