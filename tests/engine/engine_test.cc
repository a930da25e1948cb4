// Proves of the loop, with a pretend device under real threads: every accepted request ends exactly
// once whatever the timing (four submitters, cancels, refusals, a device that is lost at any step);
// no more wait than the bounds say; deadlines in the line fire while the slots are busy; an idle
// loop sleeps; the figures it reports are true. Run it under ThreadSanitizer.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "tests/engine/pretend_device.h"

namespace eddy {
namespace {

class FakeClock : public Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixMillis(ms_.load()); }
  absl::Duration Steady() const override { return absl::Milliseconds(ms_.load()); }
  void Advance(int64_t ms) { ms_ += ms; }

 private:
  std::atomic<int64_t> ms_{1'000'000};
};

// Something that threads wait for.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    opened_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(&mu_);
    while (!open_) opened_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

class PretendExecutor : public Executor {
 public:
  // `before` is called before each step with its number; an error loses the device.
  using Before = std::function<absl::Status(int step)>;
  PretendExecutor(const Engine::Options& o, Before before)
      : device_(o.slots, o.pages, o.rows_per_page, kReadsAll, /*seed=*/1, /*lose_one_in=*/0),
        before_(std::move(before)) {}
  absl::StatusOr<StepResult> Run(const BatchPlan& plan) override {
    EXPECT_FALSE(plan.empty());
    if (absl::Status status = before_(step_++); !status.ok()) return status;
    return device_.Run(plan);
  }

 private:
  PretendDevice device_;
  const Before before_;
  int step_ = 0;
};

// Hears what an engine says.
class Listener {
 public:
  Engine::Callbacks Callbacks() {
    return {.sink = [this](std::vector<Event> events) { Hear(std::move(events)); },
            .stepped =
                [this](const StepStats& stats) {
                  MutexLock lock(&mu_);
                  all_stats_.push_back(stats);
                  news_.NotifyAll();
                },
            .device_lost =
                [this](const absl::Status&) {
                  MutexLock lock(&mu_);
                  ++lost_;
                }};
  }
  End WaitForEnd(RequestId id) {
    MutexLock lock(&mu_);
    while (!ends_.contains(id)) news_.Wait(&mu_);
    return ends_[id];
  }
  StepStats WaitForTurn(size_t number) {
    MutexLock lock(&mu_);
    while (all_stats_.size() <= number) news_.Wait(&mu_);
    return all_stats_[number];
  }
  // These are asked when the engine is gone.
  std::vector<StepStats> all_stats() {
    MutexLock lock(&mu_);
    return all_stats_;
  }
  std::vector<RequestId> order() {
    MutexLock lock(&mu_);
    return order_;
  }
  long tokens() {
    MutexLock lock(&mu_);
    return tokens_;
  }
  int lost() {
    MutexLock lock(&mu_);
    return lost_;
  }

 private:
  void Hear(std::vector<Event> events) {
    EXPECT_FALSE(events.empty());
    MutexLock lock(&mu_);
    EXPECT_EQ(lost_, 0);
    for (Event& event : events) {
      EXPECT_FALSE(ends_.contains(event.id));
      tokens_ += event.token.has_value();
      if (!event.end) continue;
      ends_[event.id] = *std::move(event.end);
      order_.push_back(event.id);
    }
    news_.NotifyAll();
  }

  Mutex mu_;
  CondVar news_;
  std::map<RequestId, End> ends_ ABSL_GUARDED_BY(mu_);
  std::vector<RequestId> order_ ABSL_GUARDED_BY(mu_);  // in which they ended
  std::vector<StepStats> all_stats_ ABSL_GUARDED_BY(mu_);
  long tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int lost_ ABSL_GUARDED_BY(mu_) = 0;
};

Request Ask(RequestId id, int prompt, int answer) {
  Request request{.id = id, .prompt = std::vector<int32_t>(static_cast<size_t>(prompt), 1)};
  request.max_new_tokens = answer;
  request.arrival = absl::FromUnixMillis(1'000'000);
  return request;
}

// An engine with one slot whose first step waits at `in_first_step`.
struct SlowStart {
  explicit SlowStart(Engine::Options options = {.slots = 1, .max_waiting = 2}) {
    auto before = [this](int step) {
      if (step == 0) {
        in_first_step.Open();
        go_on.Wait();
      }
      return absl::OkStatus();
    };
    engine = std::make_unique<Engine>(options, std::make_unique<PretendExecutor>(options, before),
                                      &clock, listener.Callbacks());
  }
  FakeClock clock;
  Listener listener;
  Gate in_first_step, go_on;
  std::unique_ptr<Engine> engine;
};

struct Counts {
  std::atomic<long> accepted{0}, refused{0};
};

void SubmitMany(Engine* engine, Counts* counts, unsigned thread, int requests) {
  std::mt19937 rng(thread);
  for (int i = 0; i < requests; ++i) {
    const RequestId id = thread * 1'000'000ull + static_cast<RequestId>(i);
    Request request = Ask(id, 1 + static_cast<int>(rng() % 40), static_cast<int>(rng() % 30));
    request.keep_state = rng() % 4 == 0;
    while (true) {
      const absl::Status status = engine->Submit(request);
      if (status.ok()) ++counts->accepted;
      if (absl::IsUnavailable(status)) return;
      if (status.ok()) break;
      EXPECT_TRUE(LineFullOf(status).has_value()) << status;
      ++counts->refused;
      std::this_thread::yield();
    }
    if (rng() % 3 == 0) engine->Cancel(id, absl::CancelledError("client"));
    if (rng() % 9 == 0) engine->Cancel(id, absl::CancelledError("again"));
  }
}

void EveryAcceptedRequestEndsOnce(int fail_at, int requests) {
  SCOPED_TRACE(testing::Message() << "device lost at step " << fail_at);
  Counts counts;
  Listener listener;
  const RealClock clock;
  const Engine::Options options{.slots = 16,
                                .pages = 60,
                                .rows_per_page = 8,
                                .max_rows_per_step = 64,
                                .max_waiting = 64,
                                .max_waiting_prompt_tokens = 1000};
  auto before = [&](int step) {
    return step == fail_at ? absl::InternalError("planted") : absl::OkStatus();
  };
  {
    Engine engine(options, std::make_unique<PretendExecutor>(options, before), &clock,
                  listener.Callbacks());
    std::vector<std::jthread> clients;
    for (unsigned t = 0; t < 4; ++t) {
      clients.emplace_back([&, t] { SubmitMany(&engine, &counts, t, requests); });
    }
  }
  EXPECT_EQ(counts.accepted, static_cast<long>(listener.order().size()));
  EXPECT_EQ(listener.lost(), fail_at >= 0 ? 1 : 0);
  long sampled = 0;
  for (const StepStats& stats : listener.all_stats()) {
    EXPECT_LE(stats.running, options.slots);
    EXPECT_LE(stats.waiting, options.max_waiting);
    EXPECT_LE(stats.waiting_prompt_tokens, options.max_waiting_prompt_tokens);
    sampled += stats.sampled;
  }
  EXPECT_GE(sampled, listener.tokens());
  const StepStats last = listener.all_stats().back();
  EXPECT_EQ(last.running + last.waiting + last.slots_used + last.pages_used, 0);
}

TEST(Engine, EndsEveryAcceptedRequestOnceUnderLoad) {
  EveryAcceptedRequestEndsOnce(/*fail_at=*/-1, /*requests=*/2000);
}

TEST(Engine, EndsEveryAcceptedRequestOnceWhereverTheDeviceIsLost) {
  for (int step = 0; step <= 60 && !HasFailure(); ++step) EveryAcceptedRequestEndsOnce(step, 200);
}

TEST(Engine, RefusesWhatIsOneTooMuchAndSaysSo) {
  SlowStart slow;
  EXPECT_TRUE(slow.engine->Submit(Ask(1, 5, 1)).ok());
  slow.in_first_step.Wait();
  // The one that runs waits no more.
  EXPECT_TRUE(slow.engine->Submit(Ask(2, 5, 1)).ok());
  EXPECT_TRUE(slow.engine->Submit(Ask(3, 5, 1)).ok());
  const std::optional<LineFull> full = LineFullOf(slow.engine->Submit(Ask(4, 5, 1)));
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->bound, LineFull::Bound::kRequests);
  EXPECT_EQ(full->waiting, 2);
  EXPECT_EQ(full->limit, 2);
  slow.go_on.Open();
  slow.listener.WaitForEnd(3);
  EXPECT_TRUE(slow.engine->Submit(Ask(5, 5, 1)).ok());
}

TEST(Engine, CutsARequestInTheLineAtItsDeadlineWhileTheSlotsAreBusy) {
  SlowStart slow;
  EXPECT_TRUE(slow.engine->Submit(Ask(1, 5, 40)).ok());
  slow.in_first_step.Wait();
  Request hurried = Ask(2, 5, 1);
  hurried.deadline = slow.clock.Now() + absl::Milliseconds(7);
  Request modest = Ask(3, 5, 1);
  modest.time_limit = hurried.deadline;
  EXPECT_TRUE(slow.engine->Submit(hurried).ok());
  EXPECT_TRUE(slow.engine->Submit(modest).ok());
  slow.clock.Advance(7);
  slow.go_on.Open();
  const End cut = slow.listener.WaitForEnd(2);
  EXPECT_TRUE(absl::IsDeadlineExceeded(cut.why));
  EXPECT_EQ(cut.phase, Phase::kQueue);
  EXPECT_EQ(cut.timings.queue, absl::Milliseconds(7));
  EXPECT_EQ(slow.listener.WaitForEnd(3).reason, EndReason::kTimeLimit);
  slow.listener.WaitForEnd(1);
  slow.engine.reset();
  EXPECT_EQ(slow.listener.order(), (std::vector<RequestId>{2, 3, 1}));
}

TEST(Engine, SleepsWhenThereIsNothingToDo) {
  Listener listener;
  const FakeClock clock;
  const Engine::Options options;
  auto engine = std::make_unique<Engine>(
      options, std::make_unique<PretendExecutor>(options, [](int) { return absl::OkStatus(); }),
      &clock, listener.Callbacks());
  EXPECT_TRUE(engine->Submit(Ask(1, 5, 3)).ok());
  listener.WaitForTurn(2);
  engine->Cancel(1, absl::CancelledError("too late"));
  const StepStats turn = listener.WaitForTurn(3);
  EXPECT_EQ(turn.rows + turn.fills + turn.saves + turn.running + turn.waiting, 0);
  engine.reset();
  // Three steps, one turn for the cancel, none for being closed.
  EXPECT_EQ(listener.all_stats().size(), 4u);
}

TEST(Engine, LetsAWatchdogSeeThatAStepHangs) {
  SlowStart slow;
  EXPECT_FALSE(slow.engine->busy());
  slow.clock.Advance(100'000);
  EXPECT_TRUE(slow.engine->Submit(Ask(1, 5, 1)).ok());
  slow.in_first_step.Wait();
  EXPECT_TRUE(slow.engine->busy());
  // Not since long ago: sleeping is not hanging.
  EXPECT_EQ(slow.engine->last_progress(), slow.clock.Now());
  slow.clock.Advance(31'000);
  EXPECT_EQ(slow.clock.Now() - slow.engine->last_progress(), absl::Seconds(31));
  slow.go_on.Open();
  while (slow.engine->busy()) std::this_thread::yield();
  EXPECT_EQ(slow.engine->last_progress(), slow.clock.Now());
}

TEST(Engine, CancelsAllThatWasSubmittedBefore) {
  SlowStart slow;
  EXPECT_TRUE(slow.engine->Submit(Ask(1, 5, 1000)).ok());
  slow.in_first_step.Wait();
  EXPECT_TRUE(slow.engine->Submit(Ask(2, 5, 1)).ok());
  slow.engine->CancelAll(absl::UnavailableError("drain"));
  EXPECT_TRUE(slow.engine->Submit(Ask(3, 5, 1)).ok());
  slow.go_on.Open();
  EXPECT_EQ(slow.listener.WaitForEnd(1).why, absl::UnavailableError("drain"));
  EXPECT_EQ(slow.listener.WaitForEnd(2).why, absl::UnavailableError("drain"));
  EXPECT_TRUE(slow.listener.WaitForEnd(3).why.ok());
}

TEST(Engine, FinishesWhatItAcceptedBeforeItStops) {
  SlowStart slow;
  EXPECT_TRUE(slow.engine->Submit(Ask(1, 5, 50)).ok());
  slow.in_first_step.Wait();
  EXPECT_TRUE(slow.engine->Submit(Ask(2, 5, 50)).ok());
  slow.go_on.Open();
  slow.engine.reset();
  EXPECT_EQ(slow.listener.tokens(), 100);
  EXPECT_EQ(slow.listener.order(), (std::vector<RequestId>{1, 2}));
}

TEST(Engine, RefusesEverythingOnceTheDeviceIsLost) {
  Listener listener;
  const FakeClock clock;
  const Engine::Options options;
  Engine engine(options,
                std::make_unique<PretendExecutor>(
                    options, [](int) { return absl::InternalError("fell off the bus"); }),
                &clock, listener.Callbacks());
  EXPECT_TRUE(engine.Submit(Ask(1, 5, 1)).ok());
  const absl::Status lost = absl::UnavailableError("the device was lost: fell off the bus");
  EXPECT_EQ(listener.WaitForEnd(1).why, lost);
  EXPECT_EQ(engine.Submit(Ask(2, 5, 1)), lost);
  engine.Cancel(1, absl::CancelledError("client"));
}

TEST(Engine, ReportsWhatAStepDidAndWhatWaits) {
  SlowStart slow({.slots = 1, .pages = 10, .rows_per_page = 4, .max_rows_per_step = 4});
  EXPECT_TRUE(slow.engine->Submit(Ask(1, 5, 2)).ok());
  slow.in_first_step.Wait();
  EXPECT_TRUE(slow.engine->Submit(Ask(2, 9, 1)).ok());
  slow.clock.Advance(3);
  slow.go_on.Open();
  slow.listener.WaitForEnd(2);
  slow.engine.reset();
  const std::vector<StepStats> all = slow.listener.all_stats();
  EXPECT_EQ(all[0].rows, 4);
  EXPECT_EQ(all[0].prompt_rows, 4);
  EXPECT_EQ(all[0].fills, 1);
  EXPECT_EQ(all[0].sampled, 0);
  EXPECT_EQ(all[0].device_time, absl::Milliseconds(3));
  EXPECT_EQ(all[0].step_time, absl::Milliseconds(3));
  EXPECT_EQ(all[0].running, 1);
  EXPECT_EQ(all[0].waiting, 1);
  EXPECT_EQ(all[0].waiting_prompt_tokens, 9);
  EXPECT_EQ(all[0].oldest_waiting, absl::FromUnixMillis(1'000'000));
  EXPECT_EQ(all[0].slots_used, 1);
  EXPECT_EQ(all[0].slots_total, 1);
  EXPECT_EQ(all[0].pages_used, 2);
  EXPECT_EQ(all[0].pages_total, 10);
  EXPECT_EQ(all[1].sampled, 1);      // the prompt's last row
  EXPECT_EQ(all[2].prompt_rows, 0);  // decode
  EXPECT_EQ(all[2].rows, 1);
  EXPECT_EQ(all[2].single_row_sequences, 1);
  EXPECT_EQ(all[2].oldest_waiting, absl::FromUnixMillis(1'000'000));
  EXPECT_EQ(all.back().oldest_waiting, absl::InfiniteFuture());
}

TEST(Engine, KnowsWhatItCanNeverHold) {
  SlowStart slow({.slots = 1, .pages = 10, .rows_per_page = 4, .max_rows_per_step = 4});
  EXPECT_TRUE(slow.engine->CanEverHold(RowsAtMost(Ask(1, 30, 10))));
  EXPECT_FALSE(slow.engine->CanEverHold(RowsAtMost(Ask(1, 30, 11))));
  EXPECT_EQ(slow.engine->PagesFor(41), 11);
}

}  // namespace
}  // namespace eddy
