#include "server/grpc_server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "server/rpc_metrics.h"

namespace eddy {
namespace {

// What the library calls an error is mostly a client that went away, or a port in use, which we
// tell in a line of our own.
void LogOfGrpc(gpr_log_func_args* args) {
  Log(LogLevel::kDebug, "grpc",
      {{"message", args->message}, {"file", args->file}, {"line", args->line}});
}

// gRPC takes milliseconds as int; more than that means never.
int Milliseconds(absl::Duration duration) {
  const int64_t ms = absl::ToInt64Milliseconds(duration);
  return static_cast<int>(std::min<int64_t>(ms, std::numeric_limits<int>::max()));
}

void SetLimits(const ServerConfig& config, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(config.max_message_bytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_streams_per_connection);
  // Two servers on one port would each get half of the calls without a word.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(config.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(config.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Milliseconds(config.min_ping_interval));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                              Milliseconds(config.max_connection_age));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                              Milliseconds(config.max_connection_age_grace));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                              Milliseconds(config.max_connection_idle));
  grpc::ResourceQuota quota("eddy");
  quota.Resize(static_cast<size_t>(config.grpc_memory_bytes));
  builder->SetResourceQuota(quota);
}

absl::StatusOr<ListeningServer> Start(const char* flag, const std::string& address,
                                      grpc::ServerBuilder* builder) {
  ListeningServer started;
  builder->AddListeningPort(address, grpc::InsecureServerCredentials(), &started.port);
  started.server = builder->BuildAndStart();
  if (started.server == nullptr || started.port <= 0) {
    return absl::UnavailableError(absl::StrCat("--", flag, "=", address,
                                               ": cannot listen there; the port may be in use or "
                                               "the address not be this machine's"));
  }
  return started;
}

}  // namespace

void SetUpGrpc(const ServerConfig& config) {
  gpr_set_log_function(LogOfGrpc);
  // Requests that do not parse are answered; the library's lines about them may quote them.
  google::protobuf::SetLogHandler(nullptr);
  grpc::EnableDefaultHealthCheckService(true);
  // The admin server has it in any case: a server of health alone does not start.
  if (config.reflection || !config.admin_listen.empty()) {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  }
}

absl::StatusOr<ListeningServer> StartServer(const ServerConfig& config,
                                            const std::vector<grpc::Service*>& services,
                                            Metrics* metrics) {
  grpc::ServerBuilder builder;
  for (grpc::Service* const service : services) builder.RegisterService(service);
  SetLimits(config, &builder);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(MakeRpcMetricsFactory(metrics));
  builder.experimental().SetInterceptorCreators(std::move(creators));
  return Start("listen", config.listen, &builder);
}

absl::StatusOr<ListeningServer> StartAdminServer(const ServerConfig& config) {
  grpc::ServerBuilder builder;
  SetLimits(config, &builder);
  return Start("admin_listen", config.admin_listen, &builder);
}

}  // namespace eddy
