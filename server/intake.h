// Threads for what takes too long for a gRPC thread, above all encoding prompts.
#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "base/mutex.h"

namespace eddy {

// A bounded line of jobs and the threads that do them in order. Thread-safe.
class Intake {
 public:
  using Job = absl::AnyInvocable<void()>;

  explicit Intake(int threads);
  // Does what is in line, then stops.
  ~Intake();

  // What waits here. What is being worked on is not counted, at most one job a thread: it may have
  // handed its call to the engine already, whose line counts it then, and a call that is counted
  // twice would make the line full too early.
  struct Load {
    int jobs = 0;
    int64_t tokens = 0;
  };
  // False, and nothing is done, if that would make more than `most` (but one job is always taken
  // when none waits). Never blocks.
  bool Push(Job job, int64_t tokens, const Load& most) ABSL_LOCKS_EXCLUDED(mu_);
  Load load() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Item {
    Job job;
    int64_t tokens;
  };
  void Run();

  mutable Mutex mu_;
  CondVar news_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  Load load_ ABSL_GUARDED_BY(mu_);  // of items_
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // last: they start when all else is ready
};

}  // namespace eddy
