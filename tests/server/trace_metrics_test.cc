// Proves the names under which sent and lost spans are counted.
#include "server/trace_metrics.h"

#include <gtest/gtest.h>

#include "tests/server/metrics_page.h"

namespace eddy {
namespace {

TEST(TraceMetrics, CountWhatBecomesOfSpans) {
  prometheus::Registry registry;
  TraceMetrics metrics(&registry);
  EXPECT_EQ(Parse(Text(registry.Collect())),
            (Page{{"eddy_trace_spans_sent_total", 0},
                  {"eddy_trace_spans_lost_total{reason=\"queue_full\"}", 0},
                  {"eddy_trace_spans_lost_total{reason=\"unreachable\"}", 0},
                  {"eddy_trace_spans_lost_total{reason=\"refused\"}", 0},
                  {"eddy_trace_spans_lost_total{reason=\"shutdown\"}", 0}}));
  metrics.SpansSent(5);
  metrics.SpansLost(TraceObserver::Lost::kQueueFull, 1);
  metrics.SpansLost(TraceObserver::Lost::kUnreachable, 2);
  metrics.SpansLost(TraceObserver::Lost::kRefused, 3);
  metrics.SpansLost(TraceObserver::Lost::kShutdown, 4);
  EXPECT_EQ(Parse(Text(registry.Collect())),
            (Page{{"eddy_trace_spans_sent_total", 5},
                  {"eddy_trace_spans_lost_total{reason=\"queue_full\"}", 1},
                  {"eddy_trace_spans_lost_total{reason=\"unreachable\"}", 2},
                  {"eddy_trace_spans_lost_total{reason=\"refused\"}", 3},
                  {"eddy_trace_spans_lost_total{reason=\"shutdown\"}", 4}}));
}

}  // namespace
}  // namespace eddy
