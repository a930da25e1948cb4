// Proves that the interceptor counts each call of our services once, with its messages and its
// code, and no others. Runs real calls on a port of the loopback.
#include "server/rpc_metrics.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "eddy/v1/generation.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/metrics_page.h"

namespace eddy {
namespace {

class FakeGeneration : public v1::GenerationService::Service {
 public:
  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest*, v1::ScoreResponse*) override {
    return {static_cast<grpc::StatusCode>(code), ""};
  }
  grpc::Status GenerateStream(grpc::ServerContext*, const v1::GenerateRequest*,
                              grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    for (int i = 0; i < 3; ++i) writer->Write({});
    return grpc::Status::OK;
  }

  int code = 0;
};

class RpcMetricsTest : public testing::Test {
 protected:
  RpcMetricsTest() {
    grpc::EnableDefaultHealthCheckService(true);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(MakeRpcMetricsFactory(&metrics_));
    builder.experimental().SetInterceptorCreators(std::move(creators));
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
  }
  // The page after all calls have ended.
  Page Stop() {
    server_->Shutdown();
    server_->Wait();
    return Parse(Text(metrics_.registry()->Collect()));
  }

  Metrics metrics_{{.model_name = "m"}};
  FakeGeneration service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

std::string Series(const std::string& name, const std::string& method, const std::string& type,
                   const std::string& code = "") {
  return "grpc_server_" + name + "{" + (code.empty() ? "" : "grpc_code=\"" + code + "\",") +
         "grpc_method=\"" + method + "\",grpc_service=\"eddy.v1.GenerationService\",grpc_type=\"" +
         type + "\"}";
}

TEST_F(RpcMetricsTest, CountsAUnaryCallOfEveryCode) {
  const auto stub = v1::GenerationService::NewStub(channel_);
  for (service_.code = 0; service_.code < RpcMetrics::kCodes; ++service_.code) {
    grpc::ClientContext context;
    v1::ScoreResponse response;
    EXPECT_EQ(stub->Score(&context, {}, &response).error_code(), service_.code);
  }
  const Page page = Stop();
  EXPECT_EQ(page.at(Series("started_total", "Score", "unary")), 17);
  EXPECT_EQ(page.at(Series("msg_received_total", "Score", "unary")), 17);
  EXPECT_EQ(page.at(Series("msg_sent_total", "Score", "unary")), 1);
  EXPECT_EQ(page.at(Series("handling_seconds_count", "Score", "unary")), 17);
  for (const char* code : {"OK", "Canceled", "InvalidArgument", "Unavailable", "Unauthenticated"}) {
    EXPECT_EQ(page.at(Series("handled_total", "Score", "unary", code)), 1) << code;
  }
}

TEST_F(RpcMetricsTest, CountsEachMessageOfAStream) {
  const auto stub = v1::GenerationService::NewStub(channel_);
  grpc::ClientContext context;
  const auto reader = stub->GenerateStream(&context, {});
  v1::GenerateResponse response;
  while (reader->Read(&response)) continue;
  EXPECT_TRUE(reader->Finish().ok());
  const Page page = Stop();
  EXPECT_EQ(page.at(Series("started_total", "GenerateStream", "server_stream")), 1);
  EXPECT_EQ(page.at(Series("msg_received_total", "GenerateStream", "server_stream")), 1);
  EXPECT_EQ(page.at(Series("msg_sent_total", "GenerateStream", "server_stream")), 3);
  EXPECT_EQ(page.at(Series("handled_total", "GenerateStream", "server_stream", "OK")), 1);
}

TEST_F(RpcMetricsTest, LeavesHealthAlone) {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse response;
  EXPECT_TRUE(stub->Check(&context, {}, &response).ok());
  for (const auto& [name, value] : Stop()) {
    if (name.rfind("grpc_server_", 0) == 0) {
      EXPECT_EQ(value, 0) << name;
    }
  }
}

}  // namespace
}  // namespace eddy
