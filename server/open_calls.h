// The calls that gRPC still knows, whatever became of them inside.
#pragma once

#include <unordered_set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace eddy {

class OpenCall {
 public:
  virtual ~OpenCall() = default;
  // See Mailbox. Called under a lock: must not call out. Between the two the call stays open.
  virtual bool BeginCut(absl::Time since) = 0;
  virtual void FinishCut() = 0;
};

// Counts them and cuts off those whose clients take nothing. Thread-safe; knows no gRPC.
class OpenCalls {
 public:
  // `none_left` is called whenever the last one is gone; must not block.
  explicit OpenCalls(absl::AnyInvocable<void()> none_left) : none_left_(std::move(none_left)) {}

  void Add(OpenCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  // Before it is destroyed.
  void Remove(OpenCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  int count() const ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the calls in which one write has been under way since `since` or longer: behind a proxy
  // gRPC may take minutes to find that the client is gone. Returns how many.
  int CutStalled(absl::Time since) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  absl::AnyInvocable<void()> none_left_;
  std::unordered_set<OpenCall*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eddy
