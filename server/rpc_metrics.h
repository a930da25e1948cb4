// The grpc_server_* metrics, counted by an interceptor, so that no service counts by itself.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "server/metrics.h"

namespace eddy {

// For ServerBuilder::experimental().SetInterceptorCreators. `metrics` must outlive the server.
// Calls to services that are not ours (health, reflection) are not counted.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeRpcMetricsFactory(
    Metrics* metrics);

}  // namespace eddy
