#include "server/drain_meter.h"

#include <algorithm>
#include <cmath>

namespace eddy {
namespace {

constexpr double kMemorySeconds = 5;

}  // namespace

void DrainMeter::CallLeft(absl::Time now) {
  MutexLock lock(&mu_);
  calls_ = CallsAt(now) + 1;
  last_ = now;
}

absl::Duration DrainMeter::PushBack(int64_t waiting, absl::Time now) const {
  MutexLock lock(&mu_);
  if (last_ == absl::InfinitePast()) return absl::Seconds(1);
  // At a constant rate r the weighted count tends to r * kMemorySeconds.
  const double rate = CallsAt(now) / kMemorySeconds;
  const double share = std::max(1.0, static_cast<double>(waiting) / 10);
  const absl::Duration least = absl::Milliseconds(100), most = absl::Seconds(5);
  if (rate <= share / absl::ToDoubleSeconds(most)) return most;
  return std::clamp(absl::Seconds(share / rate), least, most);
}

double DrainMeter::CallsAt(absl::Time now) const {
  if (calls_ == 0) return 0;
  const double age = absl::ToDoubleSeconds(now - last_);
  return calls_ * std::exp(-std::max(0.0, age) / kMemorySeconds);
}

}  // namespace eddy
