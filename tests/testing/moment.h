// Something that happens once and can be waited for.
#pragma once

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace eddy {

// Thread-safe.
class Moment {
 public:
  void Come() {
    MutexLock lock(&mu_);
    come_ = true;
    changed_.NotifyAll();
  }
  void Await() {
    MutexLock lock(&mu_);
    while (!come_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool come_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace eddy
