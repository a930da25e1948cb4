#include "loadtest/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace eddy::loadtest {
namespace {

// A log-normal variable exp(m + s z) has the mean exp(m + s^2 / 2) and the squared coefficient of
// variation exp(s^2) - 1.
std::lognormal_distribution<double> LogNormal(double mean, double cv) {
  const double variance = std::log1p(cv * cv);
  return std::lognormal_distribution<double>(std::log(mean) - variance / 2, std::sqrt(variance));
}

// Apart from that of the arrivals, which may start from the same seed.
std::mt19937_64 Generator(uint64_t seed) {
  std::seed_seq words = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 1u};
  return std::mt19937_64(words);
}

}  // namespace

Lengths::Lengths(const LengthSettings& settings)
    : settings_(settings), log_normal_(LogNormal(settings.mean, settings.cv)) {
  EDDY_CHECK(settings.mean >= 1 && settings.mean <= settings.most);
  EDDY_CHECK(settings.range_ratio >= 0 && settings.range_ratio < 1 && settings.cv > 0);
}

int Lengths::Draw(std::mt19937_64* rng) {
  if (settings_.shape == LengthSettings::Shape::kUniform) {
    const auto bound = [&](double ratio) {
      return static_cast<int>(std::lround(settings_.mean * ratio));
    };
    const int least = std::max(1, bound(1 - settings_.range_ratio));
    const int most = std::min(settings_.most, bound(1 + settings_.range_ratio));
    return std::uniform_int_distribution<int>(least, std::max(least, most))(*rng);
  }
  while (true) {
    const double length = std::max(1.0, std::round(log_normal_(*rng)));
    if (length <= settings_.most) return static_cast<int>(length);
  }
}

CallSource::CallSource(const WorkloadSettings& settings, const Arrivals::Settings& arrivals)
    : settings_(settings),
      prompt_(settings.prompt),
      output_(settings.output),
      arrivals_(arrivals),
      rng_(Generator(settings.seed)) {}

CallSource::CallSource(const WorkloadSettings& settings, std::vector<TraceEntry> trace)
    : settings_(settings),
      prompt_(settings.prompt),
      output_(settings.output),
      trace_(std::move(trace)),
      rng_(Generator(settings.seed)) {}

std::optional<PlannedCall> CallSource::Next() {
  PlannedCall call;
  if (arrivals_.has_value()) {
    const std::optional<double> at_s = arrivals_->Next();
    if (!at_s.has_value()) return std::nullopt;
    call.at_s = *at_s;
    call.prompt_tokens = prompt_.Draw(&rng_);
    call.max_new_tokens = output_.Draw(&rng_);
  } else {
    if (next_entry_ == trace_.size()) return std::nullopt;
    const TraceEntry& entry = trace_[next_entry_++];
    call.at_s = entry.at_s;
    call.prompt_tokens = entry.prompt_tokens;
    call.max_new_tokens = entry.max_new_tokens;
  }
  // All are drawn for every call, so that another share changes nothing else.
  std::uniform_real_distribution<double> share(0, 1);
  const bool cancels = share(rng_) < settings_.cancel_share;
  const int cancel_after = std::uniform_int_distribution<int>(1, call.max_new_tokens)(rng_);
  call.slow_reader = share(rng_) < settings_.slow_reader_share;
  call.seed = rng_();
  if (cancels) call.cancel_after = cancel_after;
  return call;
}

}  // namespace eddy::loadtest
