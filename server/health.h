// What health probes hear.
#pragma once

#include <grpcpp/server.h>

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace eddy {

// Sets the names of the built-in grpc.health.v1 service of one or more servers. "" and the names of
// the services say whether calls are taken; "liveness" whether the process and its loop live.
// Probes touch nothing of the engine. Thread-safe.
class Health {
 public:
  // Not ready, alive. The servers outlive it.
  explicit Health(std::vector<grpc::Server*> servers);
  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(mu_);
  void SetAlive(bool alive) ABSL_LOCKS_EXCLUDED(mu_);
  bool alive() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Set(const char* name, bool serving);

  const std::vector<grpc::Server*> servers_;
  mutable Mutex mu_;
  bool alive_ ABSL_GUARDED_BY(mu_) = true;
};

// Whether a loop that made its last progress at `last` hangs. A loop without work never does.
inline bool Hangs(bool busy, absl::Time last, absl::Time now, absl::Duration timeout) {
  return busy && now - last >= timeout;
}

}  // namespace eddy
