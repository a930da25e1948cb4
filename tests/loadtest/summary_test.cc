// Proves the figures of a run by hand-made calls whose figures are known.
#include "loadtest/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eddy::loadtest {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int64_t kBegan = 1'000'000'000;

// A call at `at_s` whose messages of one token come at the given milliseconds; it ends with the
// last.
CallRecord Call(double at_s, const std::vector<uint32_t>& messages_ms) {
  CallRecord call;
  call.plan.prompt_tokens = 10;
  call.plan.max_new_tokens = static_cast<int>(messages_ms.size());
  call.intended_us = call.sent_us = kBegan + static_cast<int64_t>(at_s * 1e6);
  call.done_us = call.intended_us;
  for (const uint32_t at_ms : messages_ms) {
    call.messages.push_back({.at_us = at_ms * 1000, .tokens = 1});
    call.done_us = call.intended_us + at_ms * 1000;
  }
  return call;
}

RunResult RunOf(const std::vector<CallRecord>& calls, double seconds) {
  RunResult run;
  run.began_us = kBegan;
  run.ended_us = kBegan + static_cast<int64_t>(seconds * 1e6);
  run.calls.assign(calls.begin(), calls.end());
  return run;
}

TEST(Describe, InterpolatesPercentilesAsNumpyDoes) {
  const Distribution samples = Describe({40, 10, 30, 20}, {0, 25, 50, 90, 100});
  EXPECT_THAT(samples.percentiles, ElementsAre(10, 17.5, 25, DoubleNear(37, 1e-9), 40));
  EXPECT_EQ(samples.mean, 25);
  EXPECT_NEAR(samples.std, 11.18034, 1e-5);
  EXPECT_EQ(samples.most, 40);
  EXPECT_EQ(Describe({}, {50}).percentiles, std::vector<double>{0});
  EXPECT_EQ(Describe({3}, {99}).percentiles, std::vector<double>{3});
}

TEST(Summary, GivesEachTokenOfAMessageItsShareOfTheGap) {
  CallRecord call = Call(0, {100, 130});
  call.messages[1].tokens = 3;
  call.plan.max_new_tokens = 4;
  const Summary summary = Summarize(RunOf({call}, 1), {.percentiles = {50}});
  EXPECT_EQ(summary.ttft.mean, 100);
  EXPECT_EQ(summary.itl.count, 3);
  EXPECT_EQ(summary.itl.mean, 10);
  EXPECT_EQ(summary.icl.count, 1);
  EXPECT_EQ(summary.icl.mean, 30);
  EXPECT_EQ(summary.tpot.mean, 10);  // 30 ms for three tokens after the first
  EXPECT_EQ(summary.e2el.mean, 130);
  EXPECT_EQ(summary.normalized.mean, 32.5);
  // Places 2 and 3 are of the second bin, 4 of the third.
  EXPECT_THAT(summary.itl_by_place_ms, ElementsAre(0, 10, 10));
  EXPECT_EQ(summary.short_answers, 0);
}

TEST(Summary, CutsBothEndsOff) {
  // Ten calls, one a second; the window is [1, 9).
  std::vector<CallRecord> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(Call(i, {100, 200}));
  const Summary summary =
      Summarize(RunOf(calls, 10), {.percentiles = {50}, .warmup_cut = 0.1, .seconds = 10});
  EXPECT_EQ(summary.sent, 10);
  EXPECT_EQ(summary.calls, 8);
  EXPECT_EQ(summary.output_tokens, 16);
  EXPECT_EQ(summary.input_tokens, 80);
  EXPECT_EQ(summary.request_throughput, 1);
  EXPECT_EQ(summary.output_throughput, 2);
  EXPECT_NEAR(summary.concurrency, 0.2, 1e-9);
  EXPECT_EQ(summary.timeline.size(), 10);
  EXPECT_EQ(summary.timeline[3].tokens, 2);
  EXPECT_NEAR(summary.timeline[3].open, 0.2, 1e-9);
}

TEST(Summary, LeavesNoEndOut) {
  CallRecord refused = Call(1, {}), dropped = Call(1, {50}), cancelled = Call(1, {50});
  CallRecord slow = Call(1, {5000}), shortened = Call(1, {50});
  refused.code = 14;
  refused.reason = "DRAINING";
  dropped.code = 13;
  cancelled.code = 1;
  cancelled.cancelled_here = true;
  slow.plan.slow_reader = true;
  shortened.plan.max_new_tokens = 7;
  const Summary summary = Summarize(RunOf({refused, dropped, cancelled, slow, shortened}, 6),
                                    {.percentiles = {50}, .warmup_cut = 0, .seconds = 6});
  EXPECT_EQ(summary.calls, 5);
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 2);
  EXPECT_EQ(summary.cancelled, 1);
  EXPECT_EQ(summary.slow_readers, 1);
  EXPECT_EQ(summary.short_answers, 1);
  EXPECT_THAT(summary.failures, ElementsAre(Pair("INTERNAL", 1), Pair("UNAVAILABLE DRAINING", 1)));
  // Latencies are of what was answered in full and read as it came.
  EXPECT_EQ(summary.ttft.count, 1);
  EXPECT_EQ(summary.ttft.most, 50);
}

TEST(Summary, CountsForGoodputWhatMeetsAllBounds) {
  const std::vector<CallRecord> calls = {Call(0.1, {100, 110}), Call(0.2, {600, 610}),
                                         Call(0.3, {100, 190}), Call(0.4, {100, 110})};
  const SummarySettings settings = {.percentiles = {50},
                                    .slos = {.ttft_ms = 500, .tpot_ms = 50, .e2el_ms = 1000},
                                    .warmup_cut = 0,
                                    .seconds = 1};
  EXPECT_EQ(Summarize(RunOf(calls, 2), settings).request_goodput, 2);
}

TEST(Summary, SeesAServerThatCannotKeepUp) {
  std::vector<CallRecord> steady, growing;
  for (int i = 0; i < 40; ++i) {
    steady.push_back(Call(i, {500}));
    growing.push_back(Call(i, {static_cast<uint32_t>(500 + 200 * i)}));
  }
  const SummarySettings settings = {.percentiles = {50}, .seconds = 40};
  EXPECT_FALSE(Summarize(RunOf(steady, 41), settings).saturated);
  EXPECT_TRUE(Summarize(RunOf(growing, 60), settings).saturated);
}

TEST(Summary, OfCallsSentAtOnceIsOfTheWholeRun) {
  const Summary summary =
      Summarize(RunOf({Call(0, {100}), Call(0, {200})}, 0.2), {.percentiles = {50}});
  EXPECT_EQ(summary.calls, 2);
  EXPECT_NEAR(summary.window.seconds(), 0.2, 1e-9);
}

}  // namespace
}  // namespace eddy::loadtest
