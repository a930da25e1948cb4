#include "server/metrics_server.h"

#include <prometheus/exposer.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "server/live_metrics.h"

namespace eddy {
namespace {

// Each client has a thread until its request has come and the page is gone, or this time is over.
// So some silent ones keep a scraper waiting for a moment, but never for its own ten seconds.
constexpr char kThreads[] = "8";
constexpr char kRequestTimeoutMs[] = "1000";

const Clock* RealTime() {
  static const RealClock clock;
  return &clock;
}

}  // namespace

MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                                    const Metrics* metrics) {
  auto server = absl::WrapUnique(new MetricsServer());
  server->live_ = std::make_shared<LiveMetrics>(metrics, RealTime());
  // civetweb throws the same text for every fault, so it is of no use to the reader.
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", listen, "num_threads", kThreads,
                                 "request_timeout_ms", kRequestTimeoutMs});
    const std::vector<int> ports = server->exposer_->GetListeningPorts();
    if (ports.size() == 1) server->port_ = ports.front();
  } catch (const std::exception&) {
    server->exposer_ = nullptr;
  }
  if (server->exposer_ == nullptr || server->port_ <= 0) {
    return absl::UnavailableError(
        absl::StrCat("--metrics_listen=", listen,
                     ": cannot listen there; the port may be in use or the address not be this "
                     "machine's"));
  }
  server->exposer_->RegisterCollectable(metrics->registry());
  server->exposer_->RegisterCollectable(server->live_);
  return server;
}

}  // namespace eddy
