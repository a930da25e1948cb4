// Proves when the runner sends, against targets in this process: at the planned time whatever is
// still open, never more at once than allowed, and all counted from the planned time.
#include "loadtest/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace eddy::loadtest {
namespace {

// Ends every call at once.
class InstantTarget : public Target {
 public:
  void Start(CallRecord* record, std::function<void()> done) override {
    record->sent_us = record->done_us = NowUs();
    done();
  }
};

// Ends no call before `wanted` are open, then all, on a thread of its own.
class CrowdTarget : public Target {
 public:
  explicit CrowdTarget(size_t wanted) : wanted_(wanted) {}
  ~CrowdTarget() override { Join(); }

  void Start(CallRecord* record, std::function<void()> done) override {
    record->sent_us = record->done_us = NowUs();
    open_.push_back(std::move(done));
    most_ = std::max(most_, open_.size());
    if (open_.size() < wanted_) return;
    Join();
    thread_ = std::thread([open = std::exchange(open_, {})] {
      for (const auto& end : open) end();
    });
  }
  size_t most() const { return most_; }

 private:
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  const size_t wanted_;
  size_t most_ = 0;
  std::vector<std::function<void()>> open_;
  std::thread thread_;
};

TEST(Runner, SendsOnTimeHoweverManyAreOpen) {
  // No call ends before the last is sent, so a runner that waited for one would never return.
  CrowdTarget target(20);
  Runner runner(&target, nullptr);
  CallSource source(
      WorkloadSettings{},
      Arrivals::Settings{.process = Arrivals::Process::kConstant, .rate = 200, .calls_max = 20});
  const RunResult run = runner.Run(&source, {});
  ASSERT_EQ(run.calls.size(), 20);
  EXPECT_EQ(run.open_peak, 20);
  for (size_t i = 0; i < run.calls.size(); ++i) {
    const CallRecord& call = run.calls[i];
    EXPECT_NEAR(static_cast<double>(call.intended_us - run.began_us),
                5000.0 * static_cast<double>(i + 1), 1.5);
    EXPECT_GE(call.sent_us, call.intended_us);
  }
}

TEST(Runner, KeepsSoManyOpenInAClosedLoop) {
  CrowdTarget target(4);
  Runner runner(&target, nullptr);
  CallSource source(WorkloadSettings{}, Arrivals::Settings{.calls_max = 12});
  const RunResult run = runner.Run(&source, {.closed_loop = true, .concurrency_max = 4});
  EXPECT_EQ(run.calls.size(), 12);
  EXPECT_EQ(run.open_peak, 4);
  for (const CallRecord& call : run.calls) EXPECT_LE(run.began_us, call.intended_us);
}

TEST(Runner, CountsWaitingForOthersFromThePlannedTime) {
  // Two at a time: the third waits until the first two are open, though all were due at once.
  CrowdTarget target(2);
  Runner runner(&target, nullptr);
  CallSource source(WorkloadSettings{}, Arrivals::Settings{.calls_max = 6});
  const RunResult run = runner.Run(&source, {.concurrency_max = 2});
  ASSERT_EQ(run.calls.size(), 6);
  EXPECT_EQ(run.open_peak, 2);
  for (const CallRecord& call : run.calls) EXPECT_EQ(call.intended_us, run.began_us);
}

TEST(Runner, EndsAClosedLoopByItsTime) {
  InstantTarget target;
  Runner runner(&target, nullptr);
  CallSource source(WorkloadSettings{}, Arrivals::Settings{.seconds = 0.05});
  const RunResult run =
      runner.Run(&source, {.closed_loop = true, .concurrency_max = 1, .seconds = 0.05});
  EXPECT_GT(run.calls.size(), 1);
  EXPECT_LT(run.last_start_us - run.began_us, 50'000);
}

TEST(Runner, TellsProgressEachSecond) {
  InstantTarget target;
  std::vector<RunProgress> told;
  Runner runner(&target, [&](const RunProgress& progress) { told.push_back(progress); });
  CallSource source(
      WorkloadSettings{},
      Arrivals::Settings{.process = Arrivals::Process::kConstant, .rate = 10, .calls_max = 12});
  runner.Run(&source, {});
  ASSERT_EQ(told.size(), 1);
  EXPECT_GE(told[0].seconds, 1);
  EXPECT_GE(told[0].started, 9);
  EXPECT_EQ(told[0].ended, told[0].started);
}

}  // namespace
}  // namespace eddy::loadtest
