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

// A bounded line of jobs and the threads that do them in order, but for long jobs: these leave one
// thread to the others, which may overtake them. With a single thread none does. Thread-safe.
class Intake {
 public:
  using Job = absl::AnyInvocable<void()>;
  enum class Length { kShort, kLong };

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
  bool Push(Job job, Length length, int64_t tokens, const Load& most) ABSL_LOCKS_EXCLUDED(mu_);
  Load load() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Item {
    Job job;
    int64_t tokens = 0;
    int64_t number = 0;  // in the order of arrival
  };
  using Line = std::deque<Item>;

  void Run();
  // The line whose first item is to be done next; null: there is nothing that may be.
  Line* Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int long_most_;  // that are worked on at once

  mutable Mutex mu_;
  CondVar news_;
  Line short_ ABSL_GUARDED_BY(mu_), long_ ABSL_GUARDED_BY(mu_);
  int64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  int long_running_ ABSL_GUARDED_BY(mu_) = 0;
  Load load_ ABSL_GUARDED_BY(mu_);  // of both lines
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // last: they start when all else is ready
};

}  // namespace eddy
