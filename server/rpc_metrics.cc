#include "server/rpc_metrics.h"

#include "absl/time/clock.h"

namespace eddy {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

// Counts one RPC; lives as long as it. gRPC runs the hooks of one batch one after another, but
// batches of a stream may overlap: nothing here changes after construction but counters.
class RpcMetricsInterceptor : public Interceptor {
 public:
  explicit RpcMetricsInterceptor(RpcMetrics* rpc) : rpc_(rpc), start_(absl::Now()) {
    rpc_->started->Increment();
  }

  void Intercept(InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) &&
        batch->GetRecvMessage() != nullptr) {
      rpc_->received->Increment();
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      rpc_->sent->Increment();
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const int code = batch->GetSendStatus().error_code();
      // A service may invent codes; those count as Unknown, as a client would see them.
      const bool known = code >= 0 && code < RpcMetrics::kCodes;
      rpc_->handled[known ? code : grpc::StatusCode::UNKNOWN]->Increment();
      rpc_->handling->Observe(absl::Now() - start_);
    }
    batch->Proceed();
  }

 private:
  RpcMetrics* const rpc_;
  const absl::Time start_;
};

class RpcMetricsFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit RpcMetricsFactory(Metrics* metrics) : metrics_(metrics) {}

  // Null: no interceptor for this call. gRPC deletes what it is given.
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    RpcMetrics* const rpc = metrics_->rpc(info->method());
    return rpc == nullptr ? nullptr : new RpcMetricsInterceptor(rpc);
  }

 private:
  Metrics* const metrics_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeRpcMetricsFactory(
    Metrics* metrics) {
  return std::make_unique<RpcMetricsFactory>(metrics);
}

}  // namespace eddy
