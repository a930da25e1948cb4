// The port that Prometheus reads.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/metrics.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace eddy {

// Serves /metrics on threads of its own until it is destroyed. `metrics` must outlive it.
class MetricsServer {
 public:
  // `listen` is IPv4:port; port 0 picks a free one. A port that cannot be had is an Unavailable
  // error of one line that names the address.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              const Metrics* metrics);
  ~MetricsServer();

  int port() const { return port_; }

 private:
  MetricsServer() = default;

  // Destroyed from the last to the first: the exposer before what it reads.
  std::shared_ptr<prometheus::Collectable> live_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  int port_ = 0;
};

}  // namespace eddy
