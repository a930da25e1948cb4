// What waits to be written to one client: a state machine that knows no gRPC.
#pragma once

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "server/output.h"

namespace eddy {

// Thread-safe. At most one write is under way, and while one is, what arrives waits and then goes
// out in one message. Each method that returns a Todo may change whose turn it is; whoever gets a
// Todo does it after the lock was released, and nobody else will.
class Mailbox {
 public:
  explicit Mailbox(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // What the caller has to do now: one of the first two, or nothing.
  struct Todo {
    std::optional<Output> write = {};
    std::optional<Ending> finish = {};  // the client can be told; no write is under way any more
    bool overflow = false;              // of Put: too much waits, so all of it was dropped
  };
  Todo Put(Output output, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // After this no more Put.
  Todo End(Ending ending) ABSL_LOCKS_EXCLUDED(mu_);
  // The write that was under way is done; not `ok`: the client is gone.
  Todo Written(bool ok, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // True: a write has been under way since `since` or longer. Then nothing is finished until
  // EndCut, so that the call can be cancelled meanwhile without being gone.
  bool BeginCut(absl::Time since) ABSL_LOCKS_EXCLUDED(mu_);
  Todo EndCut() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t waiting_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Todo Next(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t bytes_max_;
  mutable Mutex mu_;
  std::optional<Output> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Ending> end_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time writing_since_ ABSL_GUARDED_BY(mu_);
  bool broken_ ABSL_GUARDED_BY(mu_) = false;   // nothing more will be written
  bool cutting_ ABSL_GUARDED_BY(mu_) = false;  // between BeginCut and EndCut
};

}  // namespace eddy
