#include "server/intake.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"

namespace eddy {

Intake::Intake(int threads) : long_most_(std::max(1, threads - 1)) {
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

bool Intake::Push(Job job, Length length, int64_t tokens, const Load& most) {
  MutexLock lock(&mu_);
  const bool fits = load_.jobs < most.jobs && load_.tokens + tokens <= most.tokens;
  const bool only_one = load_.jobs == 0 && most.jobs > 0;
  if (!fits && !only_one) return false;
  ++load_.jobs;
  load_.tokens += tokens;
  Line& line = length == Length::kLong ? long_ : short_;
  line.push_back({.job = std::move(job), .tokens = tokens, .number = pushed_++});
  news_.NotifyOne();
  return true;
}

Intake::Load Intake::load() const {
  MutexLock lock(&mu_);
  return load_;
}

Intake::Line* Intake::Next() {
  Line* const first_long = long_.empty() || long_running_ == long_most_ ? nullptr : &long_;
  if (short_.empty()) return first_long;
  const bool long_came_first =
      first_long != nullptr && first_long->front().number < short_.front().number;
  return long_came_first ? first_long : &short_;
}

void Intake::Run() {
  while (true) {
    Item item;
    bool is_long = false;
    {
      MutexLock lock(&mu_);
      Line* line = nullptr;
      while ((line = Next()) == nullptr && !closed_) news_.Wait(&mu_);
      // Long jobs that are left are for those who work on long ones now.
      if (line == nullptr) return;
      item = std::move(line->front());
      line->pop_front();
      is_long = line == &long_;
      if (is_long) ++long_running_;
      --load_.jobs;
      load_.tokens -= item.tokens;
    }
    item.job();
    if (!is_long) continue;
    MutexLock lock(&mu_);
    --long_running_;
  }
}

}  // namespace eddy
