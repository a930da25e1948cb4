// Turns requests into tokens. The page to read first.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/clock.h"
#include "engine/executor.h"
#include "engine/inbox.h"
#include "engine/scheduler.h"
#include "engine/stats.h"

namespace eddy {

// What is marked so may be called from any thread and never blocks; everything else happens on one
// loop thread, which owns the scheduler, the sequences, the pools and the device.
//
// The loop sleeps only when nothing is accepted and not yet ended. While anything is, each turn
// runs a step (see Scheduler::Plan), so it never spins, and a deadline in the waiting line is seen
// at the latest when the step that is running has ended.
class Engine {
 public:
  struct Options {
    int slots = 64;
    int pages = 0;
    int rows_per_page = 0;
    int pages_per_sequence = 0;                   // these three as in PageSizes
    int max_rows_per_step = 512;                  // more than slots
    int max_waiting = 256;                        // requests without a slot
    int64_t max_waiting_prompt_tokens = 1 << 20;  // of their prompts; at least the longest prompt
  };
  // All are needed. They are called on the loop thread and must not block. `sink` gets all that
  // happened in a step, once, if anything did; `stepped` what each turn of the loop was, after
  // `sink`; `device_lost` is called once, after every request has ended: the process should say so
  // and exit.
  struct Callbacks {
    absl::AnyInvocable<void(std::vector<Event>)> sink = nullptr;
    absl::AnyInvocable<void(const StepStats&)> stepped = nullptr;
    absl::AnyInvocable<void(absl::Status)> device_lost = nullptr;
  };
  // `clock` outlives it.
  Engine(const Options& options, std::unique_ptr<Executor> executor, const Clock* clock,
         Callbacks callbacks);
  ~Engine();  // finishes what it has accepted, then stops

  // ResourceExhausted when the line is full (LineFullOf has the numbers), Unavailable when the
  // device was lost. REQUIRES: CanEverHold(RowsAtMost(request)) and what Scheduler::Add requires.
  // Any thread.
  absl::Status Submit(Request request) { return inbox_.Push(std::move(request)); }
  // No effect on a request that has ended or was not submitted. `why` is not OK. Any thread.
  void Cancel(RequestId id, absl::Status why) {
    inbox_.Push(CancelRequest{.id = id, .why = std::move(why)});
  }
  // Ends all that was submitted before with `why`, which is not OK. Any thread.
  void CancelAll(absl::Status why) { inbox_.Push(CancelAllRequests{.why = std::move(why)}); }
  // Requests that were submitted and have no slot yet. Any thread.
  WaitingLoad waiting() const { return inbox_.waiting(); }
  // False: the request needs more pages than exist. For its rows see RowsAtMost. Any thread.
  bool CanEverHold(int64_t rows) const { return pages_.CanEverHold(rows); }
  // What CanEverHold compares with Options::pages. Any thread.
  int64_t PagesFor(int64_t rows) const { return pages_.PagesFor(rows); }

  // Whether the loop has work at hand. Any thread.
  bool busy() const { return busy_.load(std::memory_order_acquire); }
  // When the loop last finished a turn or got work. For the watchdog: it hangs if it is busy and
  // this lies far back. Ask busy() first: then this is not older than the work. Any thread.
  absl::Time last_progress() const {
    return absl::FromUnixNanos(last_progress_ns_.load(std::memory_order_acquire));
  }

 private:
  void Loop();
  void Obey(std::vector<Command> commands);
  bool Step();  // false: the device was lost
  void Report(StepStats stats, std::vector<Event> events, absl::Time began);
  void LoseDevice(const absl::Status& why);
  void MarkProgress(bool busy);

  const Clock* const clock_;
  StatePool slots_;
  PagePool pages_;
  Scheduler scheduler_;
  const std::unique_ptr<Executor> executor_;
  Callbacks callbacks_;
  Inbox inbox_;
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> last_progress_ns_{0};
  std::thread loop_;  // last: starts when all else is ready
};

}  // namespace eddy
