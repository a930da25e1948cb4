#include "server/intake.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"

namespace eddy {

Intake::Intake(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, name = absl::StrCat("intake", i)] {
      NameThisThread(name);
      Run();
    });
  }
}

Intake::~Intake() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    news_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool Intake::Push(Job job, int64_t tokens, const Load& most) {
  MutexLock lock(&mu_);
  const bool fits = load_.jobs < most.jobs && load_.tokens + tokens <= most.tokens;
  const bool only_one = load_.jobs == 0 && most.jobs > 0;
  if (!fits && !only_one) return false;
  ++load_.jobs;
  load_.tokens += tokens;
  items_.push_back({std::move(job), tokens});
  news_.NotifyOne();
  return true;
}

Intake::Load Intake::load() const {
  MutexLock lock(&mu_);
  return load_;
}

void Intake::Run() {
  while (true) {
    Item item;
    {
      MutexLock lock(&mu_);
      while (items_.empty() && !closed_) news_.Wait(&mu_);
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
      --load_.jobs;
      load_.tokens -= item.tokens;
    }
    item.job();
  }
}

}  // namespace eddy
