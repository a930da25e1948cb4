// Builds gRPC servers as the settings say.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config.h"

namespace eddy {

class Metrics;

struct ListeningServer {
  std::unique_ptr<grpc::Server> server;
  int port = 0;  // 1 for a Unix socket
};

// Sets what holds for the whole process: the built-in health service, reflection, and where the
// library's own log goes. Before the first server is built; more than once is harmless.
void SetUpGrpc(const ServerConfig& config);

// A server of `services` on config.listen; they and `metrics` outlive it. Unavailable, with one
// line that names flag and address, if it cannot be had.
absl::StatusOr<ListeningServer> StartServer(const ServerConfig& config,
                                            const std::vector<grpc::Service*>& services,
                                            Metrics* metrics);
// Health and reflection alone, on config.admin_listen.
absl::StatusOr<ListeningServer> StartAdminServer(const ServerConfig& config);

}  // namespace eddy
