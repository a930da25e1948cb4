// Proves what the program eddy-server makes of the device that it finds, and of one that it shares:
// without a GPU it serves on the processor and says so wherever one may look; a model that does not
// fit ends it with status 2 and a line of numbers; two servers on one device answer alike; a
// device that the processor checks serves too; and on SIGTERM all calls that were taken end well,
// those in the line as well.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "eddy/v1/model.grpc.pb.h"
#include "tests/engine/random_model.h"
#include "tests/testing/server_program.h"

namespace eddy {
namespace {

constexpr char kModel[] = "--model_dir=tests/golden/kaczmarz_a";

std::vector<std::string> Arguments(const std::vector<std::string>& more,
                                   const std::string& model = kModel) {
  std::vector<std::string> all = {model, "--listen=127.0.0.1:0",
                                  "--metrics_listen=", "--drain_delay=0s"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::shared_ptr<grpc::Channel> ChannelTo(ServerProgram* program) {
  return grpc::CreateChannel(absl::StrCat("127.0.0.1:", program->Ports().value("listen", 0)),
                             grpc::InsecureChannelCredentials());
}

v1::GenerateRequest Greedy(uint32_t first, uint32_t tokens) {
  v1::GenerateRequest request;
  for (uint32_t i = 0; i < 20; ++i) request.mutable_token_ids()->add_ids((first + 7 * i) % 64);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_new_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_response()->set_token_ids(true);
  return request;
}

// What 20 tokens after each of 8 prompts are.
std::vector<uint32_t> Answers(ServerProgram* program) {
  const auto stub = v1::GenerationService::NewStub(ChannelTo(program));
  std::vector<uint32_t> tokens;
  for (uint32_t first = 0; first < 8; ++first) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    const grpc::Status status = stub->Generate(&context, Greedy(first, 20), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (const v1::SequenceOutput& output : response.outputs()) {
      tokens.insert(tokens.end(), output.token_ids().begin(), output.token_ids().end());
    }
  }
  EXPECT_EQ(tokens.size(), 8 * 20u);
  return tokens;
}

TEST(DeviceStart, FallsBackToTheProcessorAndSaysSo) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  ServerProgram program(Arguments({"--device=auto"}));
  unsetenv("CUDA_VISIBLE_DEVICES");
  const auto models = v1::ModelService::NewStub(ChannelTo(&program));
  grpc::ClientContext context;
  v1::GetServerStatusResponse status;
  ASSERT_TRUE(models->GetServerStatus(&context, {}, &status).ok());
  EXPECT_EQ(status.device().backend(), "cpu");
  EXPECT_NE(status.device().name().find("(no GPU: "), std::string::npos) << status.device().name();
  ASSERT_EQ(program.LogLines("no_gpu").size(), 1u) << program.Log();
  Answers(&program);
  program.Send(SIGTERM);
  EXPECT_EQ(program.Await(), 0);
}

TEST(DeviceStart, EndsWhereOnlyAGpuWillDoAndThereIsNone) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  ServerProgram program(Arguments({"--device=cuda"}));
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(program.Await(), 2);
  const std::vector<std::string> lines = program.LogLines("start_failed");
  ASSERT_EQ(lines.size(), 1u) << program.Log();
  EXPECT_NE(lines[0].find("--device=cuda: "), std::string::npos) << lines[0];
}

// The file is a hole: 1 TiB, of which no byte is read.
TEST(DeviceStart, RefusesAModelThatIsGreaterThanTheMemory) {
  nlohmann::json config =
      NativeConfig({{{"mixer", {{"type", "gla"}, {"heads", 2}, {"key_dim", 8}, {"value_dim", 16}}},
                     {"mlp", {{"type", "swiglu"}, {"size", 1 << 20}}},
                     {"repeat", 100}}},
                   /*vocab_size=*/64, /*hidden_size=*/1024);
  const TempDir dir;
  WriteFile(dir / "config.json", config.dump());
  const absl::StatusOr<ModelConfig> read = ReadModelConfig(dir.path());
  ASSERT_TRUE(read.ok()) << read.status();
  std::vector<TestTensor> tensors;
  for (const WeightGroup& group : MakeBlueprint(*read, DeviceTraits{}).weights) {
    for (const Field& field : group.fields) {
      const NameRule* const rule = RuleFor(group.names, field.name);
      tensors.push_back({.name = rule->theirs + field.name.substr(rule->ours.size())});
      for (const int64_t dim : field.shape) {
        if (dim > 1 || tensors.back().shape.empty()) tensors.back().shape.push_back(dim);
      }
    }
  }
  WriteHollowSafetensors(dir / "model.safetensors", tensors);
  ServerProgram program(Arguments({}, "--model_dir=" + dir.path()));
  EXPECT_EQ(program.Await(), 2);
  const std::vector<std::string> lines = program.LogLines("start_failed");
  ASSERT_EQ(lines.size(), 1u) << program.Log();
  EXPECT_NE(lines[0].find("the model does not fit: weights "), std::string::npos) << lines[0];
}

TEST(DeviceStart, AnswersAlikeInTwoServersOnOneDevice) {
  ServerProgram alone(Arguments({"--max_sequences=32", "--weight_type=float32"}));
  const std::vector<uint32_t> answers = Answers(&alone);
  ServerProgram beside(
      Arguments({"--max_sequences=64", "--weight_type=float32", "--memory_fraction=0.3"}));
  EXPECT_EQ(Answers(&beside), answers);
  EXPECT_EQ(Answers(&alone), answers);
  beside.Send(SIGKILL);
  EXPECT_EQ(beside.Await(), 128 + SIGKILL);
  EXPECT_EQ(Answers(&alone), answers);
}

TEST(DeviceStart, ServesWhileTheProcessorChecksIt) {
  ServerProgram program(Arguments({"--max_sequences=4", "--check_layers"}));
  Answers(&program);
  program.Send(SIGTERM);
  EXPECT_EQ(program.Await(), 0);
  EXPECT_TRUE(program.LogLines("device_lost").empty());
}

TEST(DeviceStart, EndsAllCallsWellThatWereTakenBeforeSigterm) {
  constexpr int kCalls = 300;
  constexpr uint32_t kTokens = 150;
  struct Call {
    grpc::ClientContext context = {};
    v1::GenerateRequest request = {};
    v1::GenerateResponse response = {};
    grpc::Status status = {};
  };
  ServerProgram program(Arguments({"--max_sequences=48", "--max_streams_per_connection=1000"}));
  const auto channel = ChannelTo(&program);
  const auto stub = v1::GenerationService::NewStub(channel);
  std::deque<Call> calls(kCalls);
  Mutex mu;
  CondVar ended;
  int left = kCalls;
  for (uint32_t i = 0; i < kCalls; ++i) {
    Call& call = calls[i];
    call.request = Greedy(i, kTokens);
    stub->async()->Generate(&call.context, &call.request, &call.response, [&](grpc::Status status) {
      MutexLock lock(&mu);
      call.status = std::move(status);
      if (--left == 0) ended.NotifyAll();
    });
  }
  // All were taken, and some still wait for a slot.
  const auto models = v1::ModelService::NewStub(channel);
  uint32_t waiting = 0, running = 0;
  do {
    grpc::ClientContext context;
    v1::GetServerStatusResponse status;
    ASSERT_TRUE(models->GetServerStatus(&context, {}, &status).ok());
    waiting = status.loads(0).waiting_requests();
    running = status.loads(0).running_sequences();
    MutexLock lock(&mu);
    if (left < kCalls) break;
  } while (waiting + running < kCalls);
  program.Send(SIGTERM);
  {
    MutexLock lock(&mu);
    while (left > 0) ended.Wait(&mu);
  }
  EXPECT_EQ(program.Await(), 0);
  for (const Call& call : calls) {
    ASSERT_TRUE(call.status.ok()) << call.status.error_message();
    EXPECT_EQ(call.response.outputs(0).token_ids_size(), static_cast<int>(kTokens));
  }
}

}  // namespace
}  // namespace eddy
