#include "loadtest/runner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/time/time.h"
#include "base/check.h"

namespace eddy::loadtest {
namespace {

constexpr int64_t kProgressUs = 1'000'000;
constexpr int kNoBound = std::numeric_limits<int>::max();

}  // namespace

RunResult Runner::Run(CallSource* source, const RunSettings& settings) {
  EDDY_CHECK(!settings.closed_loop || settings.concurrency_max > 0);
  const int most = settings.concurrency_max > 0 ? settings.concurrency_max : kNoBound;
  const auto stop_us = settings.closed_loop && settings.seconds > 0
                           ? static_cast<int64_t>(settings.seconds * 1e6)
                           : std::numeric_limits<int64_t>::max();
  RunResult result;
  told_ = {};
  result.began_us = began_us_ = NowUs();
  next_progress_us_ = began_us_ + kProgressUs;
  while (const std::optional<PlannedCall> call = source->Next()) {
    const auto planned_us = began_us_ + static_cast<int64_t>(call->at_s * 1e6);
    if (!settings.closed_loop) AwaitTime(planned_us);
    AwaitOpenBelow(most);
    const int64_t now = NowUs();
    if (now - began_us_ >= stop_us) break;
    CallRecord& record = result.calls.emplace_back();
    record.plan = *call;
    record.intended_us = settings.closed_loop ? now : planned_us;
    ++told_.started;
    told_.lag_ms = static_cast<double>(now - record.intended_us) / 1e3;
    result.last_start_us = now;
    Started();
    target_->Start(&record, [this] { Ended(); });
  }
  AwaitOpenBelow(1);
  result.ended_us = NowUs();
  MutexLock lock(&mu_);
  result.open_peak = std::exchange(open_peak_, 0);
  return result;
}

void Runner::Started() {
  MutexLock lock(&mu_);
  ++open_;
  open_peak_ = std::max(open_peak_, open_);
}

void Runner::Ended() {
  MutexLock lock(&mu_);
  --open_;
  // Under the lock: the runner may be gone as soon as it sees the last call ended.
  news_.NotifyAll();
}

void Runner::AwaitTime(int64_t until_us) {
  for (int64_t now = NowUs(); now < until_us; now = NowUs()) {
    int open = 0;
    {
      MutexLock lock(&mu_);
      const int64_t wake_us = std::min(next_progress_us_, until_us);
      // An end wakes it too, which is harmless.
      if (now < wake_us) news_.WaitFor(&mu_, absl::Microseconds(wake_us - now));
      open = open_;
    }
    MaybeTellProgress(open);
  }
}

void Runner::AwaitOpenBelow(int below) {
  while (true) {
    int open = 0;
    {
      MutexLock lock(&mu_);
      const int64_t now = NowUs();
      if (open_ >= below && now < next_progress_us_) {
        news_.WaitFor(&mu_, absl::Microseconds(next_progress_us_ - now));
      }
      open = open_;
    }
    if (open < below) return;
    MaybeTellProgress(open);
  }
}

void Runner::MaybeTellProgress(int open) {
  const int64_t now = NowUs();
  if (now < next_progress_us_) return;
  next_progress_us_ = now + kProgressUs;
  told_.seconds = static_cast<double>(now - began_us_) / 1e6;
  told_.open = open;
  told_.ended = told_.started - open;
  if (progress_) progress_(told_);
}

}  // namespace eddy::loadtest
