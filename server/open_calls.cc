#include "server/open_calls.h"

#include <vector>

namespace eddy {

void OpenCalls::Add(OpenCall* call) {
  MutexLock lock(&mu_);
  calls_.insert(call);
}

void OpenCalls::Remove(OpenCall* call) {
  bool none = false;
  {
    MutexLock lock(&mu_);
    calls_.erase(call);
    none = calls_.empty();
  }
  if (none) none_left_();
}

int OpenCalls::count() const {
  MutexLock lock(&mu_);
  return static_cast<int>(calls_.size());
}

int OpenCalls::CutStalled(absl::Time since) {
  std::vector<OpenCall*> stalled;
  {
    MutexLock lock(&mu_);
    for (OpenCall* const call : calls_) {
      if (call->BeginCut(since)) stalled.push_back(call);
    }
  }
  for (OpenCall* const call : stalled) call->FinishCut();
  return static_cast<int>(stalled.size());
}

}  // namespace eddy
