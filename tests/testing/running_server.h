// A real server on a loopback port, in this process. Its model echoes its prompt, unless a test
// brings one.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "eddy/v1/model.grpc.pb.h"
#include "eddy/v1/session.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/server.h"
#include "server/text/byte_tokenizer.h"
#include "tests/testing/echo_executor.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/rpc_details.h"

namespace eddy {

inline constexpr int32_t kEchoVocab = 300;
inline constexpr int32_t kEchoEos = 256;

// What a test may change before the server starts.
struct ServerSetting {
  ServerConfig config = {};
  int slots = 4;
  bool has_tokenizer = true;
  bool serve = true;  // false: stays as it is while a model is being loaded
  // Served instead of the echo; its device outlives the RunningServer.
  std::optional<ModelToServe> model = {};
};

class RunningServer {
 public:
  explicit RunningServer(const std::function<void(ServerSetting*)>& change = {}) {
    setting_.config.model_name = "echo";
    setting_.config.listen = "127.0.0.1:0";
    setting_.config.metrics_listen = "";
    setting_.config.delivery_threads = 3;  // several, however few cores there are
    if (change) change(&setting_);
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(setting_.config, &clock_, [this] {
          MutexLock lock(&mu_);
          ++wakes_;
          woken_.NotifyAll();
        });
    EDDY_CHECK(server.ok());
    server_ = *std::move(server);
    if (setting_.serve) Serve();
    channel_ = NewChannel();
    generation_ = v1::GenerationService::NewStub(channel_);
    models_ = v1::ModelService::NewStub(channel_);
    sessions_ = v1::SessionService::NewStub(channel_);
    health_ = grpc::health::v1::Health::NewStub(channel_);
  }
  ~RunningServer() { Stop(); }

  void Serve() { server_->Serve(setting_.model.has_value() ? *std::move(setting_.model) : Echo()); }
  void Stop() {
    control_.Open();
    server_.reset();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", server_->ports().listen); }
  // With a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments arguments = {}) const {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  }
  Server& server() { return *server_; }
  ShiftedClock& clock() { return clock_; }
  // Until the last open call was gone so many times in all, or the device was lost.
  void AwaitWakes(int times) {
    MutexLock lock(&mu_);
    while (wakes_ < times) woken_.Wait(&mu_);
  }
  EchoControl& control() { return control_; }
  v1::GenerationService::Stub& generation() { return *generation_; }
  v1::ModelService::Stub& models() { return *models_; }
  v1::SessionService::Stub& sessions() { return *sessions_; }

  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = health_->Check(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }
  // Calls of one unary method, with the status alone.
  grpc::Status Generate(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    return generation_->Generate(&context, request, response);
  }
  grpc::Status Score(const v1::ScoreRequest& request, v1::ScoreResponse* response) {
    grpc::ClientContext context;
    return generation_->Score(&context, request, response);
  }
  v1::GetServerStatusResponse Status() {
    grpc::ClientContext context;
    v1::GetServerStatusResponse response;
    EXPECT_TRUE(models_->GetServerStatus(&context, {}, &response).ok());
    return response;
  }

 private:
  ModelToServe Echo() {
    ModelToServe model;
    model.info.model_type = "echo";
    model.info.vocab_size = kEchoVocab;
    model.info.eos_tokens = {kEchoEos};
    model.info.state_type = "float32";
    model.info.record_bytes = 256;
    model.capacity.slots = setting_.slots;
    model.capacity.max_rows_per_step = 512;
    if (setting_.has_tokenizer) {
      model.tokenizer = std::make_unique<ByteTokenizer>(kEchoVocab, std::nullopt);
    }
    model.executor = std::make_unique<EchoExecutor>(&control_);
    model.device = {.backend = "cpu", .name = "echo"};
    return model;
  }

  ServerSetting setting_;
  EchoControl control_;
  ShiftedClock clock_;
  Mutex mu_;
  CondVar woken_;
  int wakes_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> generation_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// The prompt whose continuation is `text`, over and over.
inline v1::GenerateRequest EchoRequest(const std::string& text, int max_new_tokens) {
  v1::GenerateRequest request;
  request.set_text(">" + text);
  request.mutable_stopping()->set_max_new_tokens(static_cast<uint32_t>(max_new_tokens));
  return request;
}

// All messages of a stream, joined, and how it ended.
struct StreamResult {
  grpc::Status status;
  std::string text;
  // If they were asked for.
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  int messages = 0;
  int num_tokens = 0;
  int prompt_infos = 0;
  bool prompt_info_first = true;
  std::optional<v1::FinishInfo> finish;
  std::string request_id;  // of the trailers
  size_t initial_metadata = 0;

  void Add(const v1::GenerateResponse& message) {
    if (message.has_prompt_info()) {
      ++prompt_infos;
      if (messages > 0) prompt_info_first = false;
    }
    ++messages;
    for (const v1::SequenceOutput& output : message.outputs()) {
      text += output.text();
      num_tokens += static_cast<int>(output.num_tokens());
      token_ids.insert(token_ids.end(), output.token_ids().begin(), output.token_ids().end());
      for (const v1::TokenLogprob& report : output.logprobs()) {
        logprobs.push_back(report.logprob());
      }
      if (output.has_finish_info()) finish = output.finish_info();
    }
  }
};

inline StreamResult ReadStream(v1::GenerationService::Stub* stub,
                               const v1::GenerateRequest& request, grpc::ClientContext* context) {
  StreamResult result;
  auto reader = stub->GenerateStream(context, request);
  for (v1::GenerateResponse message; reader->Read(&message);) result.Add(message);
  result.status = reader->Finish();
  result.initial_metadata = context->GetServerInitialMetadata().size();
  const auto& trailers = context->GetServerTrailingMetadata();
  if (auto it = trailers.find("x-request-id"); it != trailers.end()) {
    result.request_id = std::string(it->second.data(), it->second.size());
  }
  return result;
}

inline StreamResult ReadStream(v1::GenerationService::Stub* stub,
                               const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return ReadStream(stub, request, &context);
}

}  // namespace eddy
