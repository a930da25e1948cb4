#include "server/trace_metrics.h"

namespace eddy {
namespace {

// In the order of TraceObserver::Lost.
constexpr const char* kReasons[] = {"queue_full", "unreachable", "refused", "shutdown"};

}  // namespace

TraceMetrics::TraceMetrics(prometheus::Registry* registry)
    : sent_(&prometheus::BuildCounter()
                 .Name("eddy_trace_spans_sent_total")
                 .Help("Spans that the collector of traces has taken.")
                 .Register(*registry)
                 .Add({})) {
  auto& lost = prometheus::BuildCounter()
                   .Name("eddy_trace_spans_lost_total")
                   .Help("Spans that did not reach the collector of traces, by why.")
                   .Register(*registry);
  for (size_t i = 0; i < lost_.size(); ++i) lost_[i] = &lost.Add({{"reason", kReasons[i]}});
}

}  // namespace eddy
