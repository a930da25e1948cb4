// The metrics that are computed when the page is read: how old the oldest waiting request is, and
// what the process uses.
#pragma once

#include <prometheus/collectable.h>

#include <vector>

#include "base/clock.h"
#include "server/metrics.h"

namespace eddy {

// Collect runs on the thread of the metrics port and takes no lock. `metrics` and `clock` must
// outlive it.
class LiveMetrics : public prometheus::Collectable {
 public:
  LiveMetrics(const Metrics* metrics, const Clock* clock) : metrics_(metrics), clock_(clock) {}

  // What the operating system does not tell is left out.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Metrics* const metrics_;
  const Clock* const clock_;
};

}  // namespace eddy
