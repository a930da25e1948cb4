// What becomes of spans, as Prometheus sees it.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <array>

#include "server/trace_exporter.h"

namespace eddy {

// At zero from the start, whether or not spans are exported. Any thread.
class TraceMetrics final : public TraceObserver {
 public:
  // `registry` outlives it.
  explicit TraceMetrics(prometheus::Registry* registry);

  void SpansSent(int spans) override { sent_->Increment(spans); }
  void SpansLost(Lost why, int spans) override {
    lost_[static_cast<size_t>(why)]->Increment(spans);
  }

 private:
  prometheus::Counter* sent_ = nullptr;
  std::array<prometheus::Counter*, 4> lost_ = {};
};

}  // namespace eddy
