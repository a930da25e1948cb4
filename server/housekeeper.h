// Does something every so often.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace eddy {

// Calls `work` on a thread of its own, once per `period`, until it is destroyed.
class Housekeeper {
 public:
  Housekeeper(absl::Duration period, absl::AnyInvocable<void()> work);
  ~Housekeeper();

 private:
  void Run();

  const absl::Duration period_;
  absl::AnyInvocable<void()> work_;
  Mutex mu_;
  CondVar closing_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace eddy
