#include "server/housekeeper.h"

#include <utility>

#include "base/thread_name.h"

namespace eddy {

Housekeeper::Housekeeper(absl::Duration period, absl::AnyInvocable<void()> work)
    : period_(period), work_(std::move(work)), thread_([this] {
        NameThisThread("housekeeper");
        Run();
      }) {}

Housekeeper::~Housekeeper() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    closing_.NotifyOne();
  }
  thread_.join();
}

// A wake-up for no reason does the work a little early, which harms nothing.
void Housekeeper::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      if (!closed_) closing_.WaitFor(&mu_, period_);
      if (closed_) return;
    }
    work_();
  }
}

}  // namespace eddy
