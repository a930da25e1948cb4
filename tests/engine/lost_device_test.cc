// Proves what becomes of requests when the device of a real model breaks in the middle of a step:
// all end with UNAVAILABLE and the device's own words, within five seconds, whether they run or
// wait, nothing is taken any more, and the engine can be stopped. With EDDY_TEST_DEVICE=cuda a
// kernel faults on the GPU, which spoils the process; so each test is a process of its own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "tests/engine/faulty_device.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

constexpr int kRequests = 7, kSlots = 3;

class EndedRequests {
 public:
  void Hear(std::vector<Event> events) {
    MutexLock lock(&mu_);
    for (Event& event : events) {
      if (event.end && !ends_.emplace(event.id, event.end->why).second) std::abort();
    }
    news_.NotifyAll();
  }
  std::map<RequestId, absl::Status> WaitForAll() {
    MutexLock lock(&mu_);
    while (ends_.size() < kRequests) news_.Wait(&mu_);
    return ends_;
  }

 private:
  Mutex mu_;
  CondVar news_;
  std::map<RequestId, absl::Status> ends_ ABSL_GUARDED_BY(mu_);
};

// Does no step before all requests are there, so that a device that breaks at once breaks for all.
class HeldExecutor : public Executor {
 public:
  HeldExecutor(std::latch* submitted, std::unique_ptr<Executor> real)
      : submitted_(submitted), real_(std::move(real)) {}
  absl::StatusOr<StepResult> Run(const BatchPlan& plan) override {
    submitted_->wait();
    return real_->Run(plan);
  }

 private:
  std::latch* const submitted_;
  const std::unique_ptr<Executor> real_;
};

// Ends the process with 0 if all is as it must be, and says what is not.
void LoseDevice(int healthy) {
  FaultyDevice device(testing::OpenTestDevice(), healthy);
  auto loaded = LoadModel({.model_dir = "tests/golden/gated_deltanet_hybrid_a",
                           .max_sequences = kSlots,
                           .max_rows_per_step = 32},
                          &device);
  if (!loaded.ok()) std::abort();
  const RealClock clock;
  EndedRequests ends;
  std::latch submitted(1);
  int lost = 0;
  const PageSizes pages = loaded->capacity.page_sizes();
  const absl::Time began = absl::Now();
  {
    Engine engine({.slots = kSlots,
                   .pages = pages.pages,
                   .rows_per_page = pages.rows_per_page,
                   .pages_per_sequence = pages.pages_per_sequence,
                   .max_rows_per_step = 32},
                  std::make_unique<HeldExecutor>(&submitted, std::move(loaded->executor)), &clock,
                  {.sink = [&](std::vector<Event> events) { ends.Hear(std::move(events)); },
                   .stepped = [](const StepStats&) {},
                   .device_lost = [&](const absl::Status&) { ++lost; }});
    for (int i = 1; i <= kRequests; ++i) {
      Request request = Greedy({1, 2, 3, i}, 1000);
      request.id = static_cast<RequestId>(i);
      if (!engine.Submit(std::move(request)).ok()) std::abort();
    }
    submitted.count_down();
    for (const auto& [id, why] : ends.WaitForAll()) {
      std::fprintf(stderr, "request %d: %s\n", static_cast<int>(id), why.ToString().c_str());
      if (why.code() != absl::StatusCode::kUnavailable) std::exit(2);
    }
    Request late = Greedy({1}, 1);
    late.id = kRequests + 1;
    if (engine.Submit(std::move(late)).code() != absl::StatusCode::kUnavailable) std::exit(3);
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
  std::fprintf(stderr, "lost %d times, all over after %.2f s\n", lost, seconds);
  if (lost != 1) std::exit(4);
  if (seconds > 5) std::exit(5);
  std::_Exit(0);
}

TEST(LostDeviceDeathTest, EndsEveryRequestWithTheDevicesWords) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const bool cpu = testing::OpenTestDevice()->backend() == "cpu";
  const char* const words = cpu ? "UNAVAILABLE: the device was lost: the test broke it"
                                : "UNAVAILABLE: the device was lost: .*illegal memory access";
  for (int healthy : {0, 5, 61}) {
    EXPECT_EXIT(LoseDevice(healthy), ::testing::ExitedWithCode(0), words) << healthy;
  }
}

}  // namespace
}  // namespace eddy
