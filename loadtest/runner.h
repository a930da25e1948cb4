// Sends the calls of one run and waits for all of them.
//
// Open loop: each call is sent at its planned time, however slow the server is, and its times count
// from that planned time. What a stalled server makes wait, here or there, is therefore measured
// and not left out ("coordinated omission"). Closed loop: so many calls are kept open, each sent
// when another ended, and counted from its own send.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "base/mutex.h"
#include "loadtest/call.h"
#include "loadtest/workload.h"

namespace eddy::loadtest {

// What calls are sent to.
class Target {
 public:
  virtual ~Target() = default;
  // Starts record->plan and returns at once. Writes `record` until it calls `done`, once, last of
  // all, on any thread; both outlive that.
  virtual void Start(CallRecord* record, std::function<void()> done) = 0;
};

struct RunSettings {
  bool closed_loop = false;
  // Calls open at once. In an open loop calls that are due wait here for others to end, and their
  // times run on. 0: no bound, in an open loop only.
  int concurrency_max = 0;
  double seconds = 0;  // a closed loop starts no call after this; 0: it ends with its calls
};

struct RunResult {
  std::deque<CallRecord> calls = {};  // by their place in the plan
  int64_t began_us = 0;               // of NowUs
  int64_t last_start_us = 0;
  int64_t ended_us = 0;
  int open_peak = 0;
};

// What is true while a run goes on.
struct RunProgress {
  double seconds = 0;
  int64_t started = 0;
  int64_t ended = 0;
  int open = 0;
  double lag_ms = 0;  // how late the last call was sent
};

// The thread that calls Run sends; threads of the target report ends.
class Runner {
 public:
  // `progress`, if there is one, is called each second by the thread that sends: it must be quick.
  // `target` outlives the runner.
  Runner(Target* target, std::function<void(const RunProgress&)> progress)
      : target_(target), progress_(std::move(progress)) {}

  // One run after the other. REQUIRES: a closed loop has a concurrency_max above 0.
  RunResult Run(CallSource* source, const RunSettings& settings);

 private:
  void Started() ABSL_LOCKS_EXCLUDED(mu_);
  void Ended() ABSL_LOCKS_EXCLUDED(mu_);
  // Until the planned time; and until fewer calls than `below` are open. Both tell progress.
  void AwaitTime(int64_t until_us) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitOpenBelow(int below) ABSL_LOCKS_EXCLUDED(mu_);
  void MaybeTellProgress(int open);  // if a second has passed

  Target* const target_;
  const std::function<void(const RunProgress&)> progress_;
  // Of the thread that sends.
  int64_t began_us_ = 0, next_progress_us_ = 0;
  RunProgress told_;

  Mutex mu_;
  CondVar news_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  int open_peak_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace eddy::loadtest
