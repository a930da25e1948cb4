// Proves that arrivals have the mean and the variance of their process, by drawing many and
// comparing within five standard errors, that equal seeds repeat them, and that their bounds hold.
#include "loadtest/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <vector>

namespace eddy::loadtest {
namespace {

constexpr int kCalls = 20000;

std::vector<double> Draw(const Arrivals::Settings& settings) {
  Arrivals arrivals(settings);
  std::vector<double> times;
  while (const std::optional<double> at_s = arrivals.Next()) times.push_back(*at_s);
  return times;
}

uint64_t FreshSeed() {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  return seed;
}

struct Moments {
  double mean = 0, cv2 = 0;  // cv2: variance over the squared mean
};
Moments OfGaps(const std::vector<double>& times) {
  double sum = 0, squares = 0, before = 0;
  for (const double time : times) {
    const double gap = time - before;
    before = time;
    sum += gap;
    squares += gap * gap;
  }
  const auto count = static_cast<double>(times.size());
  const double mean = sum / count;
  return {mean, squares / count / (mean * mean) - 1};
}

TEST(Arrivals, OfAGammaProcessHaveItsMeanAndVariance) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const std::vector<double> times =
        Draw({.rate = 20, .burstiness = burstiness, .calls_max = kCalls, .seed = FreshSeed()});
    ASSERT_EQ(times.size(), kCalls);
    const Moments gaps = OfGaps(times);
    const double cv2 = 1 / burstiness;
    EXPECT_NEAR(gaps.mean, 1 / 20.0, 5 * std::sqrt(cv2 / kCalls) / 20) << burstiness;
    // The variance of a gamma's sample variance over its mean squared: (2 + 6 cv2) cv2^2 / n; the
    // division by the sample's mean adds less than as much again.
    EXPECT_NEAR(gaps.cv2, cv2, 5 * cv2 * std::sqrt((4 + 12 * cv2) / kCalls)) << burstiness;
  }
}

TEST(Arrivals, OfAPoissonProcessComeIndependently) {
  // Counts of a second then have the variance of their mean.
  const std::vector<double> times = Draw({.rate = 20, .calls_max = kCalls, .seed = FreshSeed()});
  std::vector<double> counts(static_cast<size_t>(times.back()));
  for (const double time : times) {
    if (time < static_cast<double>(counts.size())) ++counts[static_cast<size_t>(time)];
  }
  double sum = 0, squares = 0;
  for (const double count : counts) {
    sum += count;
    squares += count * count;
  }
  const auto seconds = static_cast<double>(counts.size());
  const double mean = sum / seconds;
  EXPECT_NEAR((squares / seconds - mean * mean) / mean, 1, 5 * std::sqrt(2 / seconds));
}

TEST(Arrivals, OfAConstantProcessAreEven) {
  const std::vector<double> times =
      Draw({.process = Arrivals::Process::kConstant, .rate = 4, .calls_max = 3});
  EXPECT_EQ(times, (std::vector<double>{0.25, 0.5, 0.75}));
}

TEST(Arrivals, OfAnInfiniteRateComeAllAtOnce) {
  EXPECT_EQ(Draw({.calls_max = 3}), (std::vector<double>{0, 0, 0}));
}

TEST(Arrivals, EndWithTheirTime) {
  const std::vector<double> times =
      Draw({.process = Arrivals::Process::kConstant, .rate = 2, .seconds = 1.6});
  EXPECT_EQ(times, (std::vector<double>{0.5, 1, 1.5}));
}

TEST(Arrivals, RepeatWithTheirSeed) {
  const uint64_t seed = FreshSeed();
  const Arrivals::Settings settings = {.rate = 7, .calls_max = 100, .seed = seed};
  Arrivals::Settings other = settings;
  other.seed = seed + 1;
  EXPECT_EQ(Draw(settings), Draw(settings));
  EXPECT_NE(Draw(settings), Draw(other));
}

TEST(Arrivals, RampUpInAStraightLine) {
  // From 1 to 9 calls a second in 10 s: 50 in all, of which 15 in the first half.
  const std::vector<double> times =
      Draw({.process = Arrivals::Process::kConstant, .rate = 9, .ramp_from = 1, .seconds = 10});
  const auto first = std::count_if(times.begin(), times.end(), [](double at) { return at < 5; });
  EXPECT_NEAR(static_cast<double>(times.size()), 50, 2);
  EXPECT_NEAR(static_cast<double>(first), 15, 2);
}

}  // namespace
}  // namespace eddy::loadtest
