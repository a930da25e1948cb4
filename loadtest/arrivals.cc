#include "loadtest/arrivals.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace eddy::loadtest {

Arrivals::Arrivals(const Settings& settings)
    : settings_(settings),
      rng_(settings.seed),
      unit_gap_(settings.burstiness, 1 / settings.burstiness) {
  EDDY_CHECK(settings.rate > 0 && settings.burstiness > 0);
  EDDY_CHECK(settings.calls_max > 0 || settings.seconds > 0);
}

double Arrivals::Rate() const {
  if (!settings_.ramp_from.has_value()) return settings_.rate;
  const double share = settings_.seconds > 0
                           ? at_s_ / settings_.seconds
                           : static_cast<double>(drawn_) / static_cast<double>(settings_.calls_max);
  return *settings_.ramp_from + (settings_.rate - *settings_.ramp_from) * std::min(share, 1.0);
}

std::optional<double> Arrivals::Next() {
  if (settings_.calls_max > 0 && drawn_ == settings_.calls_max) return std::nullopt;
  ++drawn_;
  if (std::isinf(settings_.rate)) return 0.0;
  // The gap comes before the first call too: a process that has been running all along.
  const double gap = settings_.process == Process::kConstant ? 1 : unit_gap_(rng_);
  at_s_ += gap / Rate();
  if (settings_.seconds > 0 && at_s_ >= settings_.seconds) return std::nullopt;
  return at_s_;
}

}  // namespace eddy::loadtest
