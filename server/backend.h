// What the services need of the rest of the server.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/stats.h"
#include "server/admission.h"
#include "server/delivery.h"
#include "server/lifecycle.h"
#include "server/rpc.h"
#include "server/served_model.h"

namespace eddy {

// What the last turn of the engine's loop reported. Thread-safe.
class LastStep {
 public:
  void Set(const StepStats& stats, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    stats_ = stats;
    if (stats.rows > 0) ended_ = now;
  }
  StepStats stats() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return stats_;
  }
  // InfinitePast before the first step.
  absl::Time ended() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return ended_;
  }

 private:
  mutable Mutex mu_;
  StepStats stats_ ABSL_GUARDED_BY(mu_);
  absl::Time ended_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

// Where the model runs.
struct DeviceInfo {
  std::string backend;  // "cpu", "cuda"
  std::string name;
};

// All that exists once the model is loaded.
struct Backend {
  const ServedModel* model = nullptr;
  DeviceInfo device = {};
  Delivery* delivery = nullptr;
  Admission* admission = nullptr;
  Engine* engine = nullptr;
  const LastStep* last_step = nullptr;
};

// Shared by all services; outlives them.
struct ServiceContext {
  RpcEnvironment env = {};
  const Lifecycle* lifecycle = nullptr;
  absl::Time start_time = absl::InfinitePast();
  int64_t outbox_bytes_max = 1 << 20;
  // Set before the lifecycle says kServing, and not changed after that.
  std::atomic<const Backend*> backend{nullptr};
};

}  // namespace eddy
