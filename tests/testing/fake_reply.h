// A client that is always there: collects what it is given.
#pragma once

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/check.h"
#include "base/mutex.h"
#include "server/output.h"

namespace eddy {

// Thread-safe.
class FakeReply : public Reply {
 public:
  bool Put(Output output) override {
    MutexLock lock(&mu_);
    EDDY_CHECK(!ending_.has_value());
    ++puts_;
    output_.Append(std::move(output));
    changed_.NotifyAll();
    return keeps_up_;
  }
  void End(Ending ending) override {
    MutexLock lock(&mu_);
    EDDY_CHECK(!ending_.has_value());  // exactly one end
    ending_ = std::move(ending);
    changed_.NotifyAll();
  }

  // From now on every Put is one too many.
  void FallBehind() {
    MutexLock lock(&mu_);
    keeps_up_ = false;
  }
  Ending AwaitEnd() {
    MutexLock lock(&mu_);
    while (!ending_.has_value()) changed_.Wait(&mu_);
    return *ending_;
  }
  void AwaitTokens(int least) {
    MutexLock lock(&mu_);
    while (output_.num_tokens < least) changed_.Wait(&mu_);
  }
  bool ended() const {
    MutexLock lock(&mu_);
    return ending_.has_value();
  }
  std::string text() const {
    MutexLock lock(&mu_);
    return output_.text;
  }
  int num_tokens() const {
    MutexLock lock(&mu_);
    return output_.num_tokens;
  }
  int puts() const {
    MutexLock lock(&mu_);
    return puts_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  Output output_ ABSL_GUARDED_BY(mu_);
  std::optional<Ending> ending_ ABSL_GUARDED_BY(mu_);
  int puts_ ABSL_GUARDED_BY(mu_) = 0;
  bool keeps_up_ ABSL_GUARDED_BY(mu_) = true;
};

class NoObserver : public CallObserver {
 public:
  void Tokens(const std::vector<double>&, const std::vector<double>&) override {}
};

}  // namespace eddy
