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

// Submit and Cancel may be called from any thread and never block; everything else happens on one
// loop thread, which owns the scheduler, the sequences, the pools and the device.
class Engine {
 public:
  struct Options {
    int slots = 64;
    int pages = 0;
    int rows_per_page = 0;
    int max_rows_per_step = 512;  // more than slots
    int max_waiting = 256;        // requests without a slot
    int64_t max_waiting_prompt_tokens = 1 << 20;
  };
  // All are called on the loop thread and must not block. `sink` gets, once per step, all that
  // happened in it; `stepped` what the step was; `device_lost` is called once, after every request
  // has ended: the process should say so and exit.
  struct Callbacks {
    absl::AnyInvocable<void(std::vector<Event>)> sink;
    absl::AnyInvocable<void(const StepStats&)> stepped;
    absl::AnyInvocable<void(absl::Status)> device_lost;
  };
  Engine(const Options& options, std::unique_ptr<Executor> executor, const Clock* clock,
         Callbacks callbacks);
  ~Engine();  // finishes what it has accepted, then stops

  // ResourceExhausted when the line is full, Unavailable when the engine is closed.
  // REQUIRES: CanEverHold(request).
  absl::Status Submit(Request request) { return inbox_.Push(std::move(request)); }
  void Cancel(RequestId id, absl::Status why) { inbox_.Push(CancelRequest{id, std::move(why)}); }
  // Ends all there is with `why`.
  void CancelAll(absl::Status why);
  // False: the request needs more pages than exist. Any thread.
  bool CanEverHold(int64_t rows) const;

  // When the loop last finished a step or had nothing to do, for the watchdog. Any thread.
  absl::Time last_progress() const;
  // Whether the loop has work at hand. Any thread.
  bool busy() const { return busy_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  void Obey(std::vector<Command> commands);
  void LoseDevice(const absl::Status& why);

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
