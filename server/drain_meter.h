// How fast the line of waiting calls moves.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace eddy {

// Measures how many calls leave per second, the last seconds counting most. Thread-safe.
class DrainMeter {
 public:
  void CallLeft(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // How long until about a tenth of a line of `waiting` has moved up, at least one call: 100 ms to
  // 5 s; 1 s as long as nothing was measured.
  absl::Duration PushBack(int64_t waiting, absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  double CallsAt(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  double calls_ ABSL_GUARDED_BY(mu_) = 0;  // that left, each weighing exp(-age / kMemory)
  absl::Time last_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace eddy
