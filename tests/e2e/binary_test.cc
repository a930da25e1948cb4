// Proves how the program eddy-server starts and ends: one line and status 2 for what keeps it from
// starting, the port file, a drain on SIGTERM with status 0, an end at once on the second; and that
// running out of descriptors is nothing that lasts. What it does when its device breaks:
// device_faults_test.cc.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "eddy/v1/model.grpc.pb.h"
#include "tests/engine/model_files.h"
#include "tests/testing/get_metrics.h"
#include "tests/testing/rpc_details.h"
#include "tests/testing/server_program.h"

namespace eddy {
namespace {

constexpr char kModel[] = "--model_dir=tests/golden/kaczmarz_a";

std::vector<std::string> Arguments(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {kModel, "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// It ends with status 2 and one line of an error that has `words` in it.
void ExpectRefusal(ServerProgram* program, const std::string& words) {
  EXPECT_EQ(program->Await(), 2);
  std::vector<std::string> lines = program->LogLines("start_failed");
  const std::vector<std::string> plain = program->LogLines("");
  lines.insert(lines.end(), plain.begin(), plain.end());
  ASSERT_EQ(lines.size(), 1u) << program->Log();
  EXPECT_NE(lines[0].find(words), std::string::npos) << lines[0];
}

std::unique_ptr<v1::GenerationService::Stub> StubOf(const nlohmann::json& ports) {
  return v1::GenerationService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", ports.value("listen", 0)), grpc::InsecureChannelCredentials()));
}

v1::GenerateRequest LongRequest() {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_stopping()->set_max_new_tokens(1000000);
  return request;
}

TEST(Binary, RefusesUnknownAndWrongFlags) {
  ServerProgram unknown(Arguments({"--no_such_flag=1"}));
  ExpectRefusal(&unknown, "no_such_flag");
  ServerProgram wrong(Arguments({"--memory_fraction=7"}));
  ExpectRefusal(&wrong, "memory_fraction");
  ServerProgram type(Arguments({"--state_type=float16"}));
  ExpectRefusal(&type, "--state_type=float16: must be one of float32, bfloat16");
}

TEST(Binary, RefusesAModelThatCannotBeRead) {
  const TempDir empty;
  ServerProgram nothing(
      {absl::StrCat("--model_dir=", empty.path()), "--listen=127.0.0.1:0", "--metrics_listen="});
  ExpectRefusal(&nothing, "config.json");
}

TEST(Binary, HoldsStatesInTheTypeItIsToldAndSaysSo) {
  ServerProgram program(Arguments({"--state_type=bfloat16"}));
  const nlohmann::json ports = program.Ports();
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", ports.value("listen", 0)),
                                           grpc::InsecureChannelCredentials());
  grpc::ClientContext of_model, of_call;
  v1::GetModelResponse model;
  ASSERT_TRUE(v1::ModelService::NewStub(channel)->GetModel(&of_model, {}, &model).ok());
  EXPECT_EQ(model.model().state_type(), v1::DATA_TYPE_BFLOAT16);
  v1::GenerateRequest request = LongRequest();
  request.mutable_stopping()->set_max_new_tokens(100);
  v1::GenerateResponse response;
  const grpc::Status status = StubOf(ports)->Generate(&of_call, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).finish_info().usage().generated_tokens(), 100u);
  EXPECT_NE(GetMetrics(ports.value("metrics_listen", 0)).find("state_type=\"bfloat16\""),
            std::string::npos);
}

TEST(Binary, RefusesATypeOfStatesThatItsModelDoesNotHave) {
  ServerProgram program({"--model_dir=tests/golden/gla_a", "--listen=127.0.0.1:0",
                         "--metrics_listen=", "--state_type=bfloat16"});
  ExpectRefusal(&program, "--state_type=bfloat16: model type gla has no layer with a delta rule");
}

TEST(Binary, RefusesPortsThatAreTaken) {
  ServerProgram first(Arguments());
  const nlohmann::json ports = first.Ports();
  const int listen = ports.value("listen", 0), metrics = ports.value("metrics_listen", 0);
  EXPECT_GT(listen, 0);
  EXPECT_GT(metrics, 0);
  ServerProgram second({kModel, absl::StrCat("--listen=127.0.0.1:", listen), "--metrics_listen="});
  ExpectRefusal(&second, absl::StrCat("127.0.0.1:", listen));
  ServerProgram third(
      {kModel, "--listen=127.0.0.1:0", absl::StrCat("--metrics_listen=127.0.0.1:", metrics)});
  ExpectRefusal(&third, absl::StrCat("127.0.0.1:", metrics));
}

// civetweb's way to any other answer than the page takes more stack than it gives its threads,
// beside what all the libraries of this program keep per thread: see server/thread_stacks.cc.
TEST(Binary, AnswersWhateverItsMetricsPortIsAskedAndGoesOn) {
  ServerProgram program(Arguments({"--drain_delay=0s"}));
  const int port = program.Ports().value("metrics_listen", 0);
  for (const char* what : {"GET /", "GET /healthz", "GET /favicon.ico", "GET /a/../../etc/passwd",
                           "HEAD /metrics", "HEAD /", "POST /metrics", "PUT /x", "DELETE /metrics",
                           "OPTIONS /", "PROPFIND /", "GET *", "NONSENSE"}) {
    EXPECT_EQ(AskMetricsPort(port, what).find("200 OK"), std::string::npos) << what;
    ASSERT_NE(GetMetrics(port).find("200 OK"), std::string::npos) << "after " << what;
  }
  program.Send(SIGTERM);
  EXPECT_EQ(program.Await(), 0);
}

TEST(Binary, SaysWhatItRunsOn) {
  ServerProgram program(Arguments({"--device=cpu", "--drain_delay=0s"}));
  program.Ports();
  program.Send(SIGTERM);
  EXPECT_EQ(program.Await(), 0);
  const std::vector<std::string> lines = program.LogLines("device_opened");
  ASSERT_EQ(lines.size(), 1u) << program.Log();
  EXPECT_NE(lines[0].find("\"device\":"), std::string::npos) << lines[0];
}

TEST(Binary, DrainsOnATermSignalAndEndsWithStatusZero) {
  ServerProgram program(Arguments({"--drain_delay=0s", "--max_new_tokens=1000000"}));
  auto stub = StubOf(program.Ports());
  v1::GenerateRequest request = LongRequest();
  request.mutable_stopping()->set_max_new_tokens(2000);
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  program.Send(SIGTERM);
  int tokens = static_cast<int>(message.outputs(0).num_tokens());
  while (reader->Read(&message)) tokens += static_cast<int>(message.outputs(0).num_tokens());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 2000);
  EXPECT_EQ(program.Await(), 0);
  EXPECT_EQ(program.LogLines("stopped").size(), 1u);
}

TEST(Binary, CutsOffWhatDoesNotEndInTimeAndStillEndsWithStatusZero) {
  ServerProgram program(
      Arguments({"--drain_delay=0s", "--drain_timeout=100ms", "--max_new_tokens=1000000"}));
  auto stub = StubOf(program.Ports());
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, LongRequest());
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  program.Send(SIGTERM);
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "DRAIN_TIMEOUT");
  EXPECT_EQ(program.Await(), 0);
  EXPECT_EQ(program.LogLines("drain_timeout").size(), 1u);
}

TEST(Binary, EndsAtOnceOnTheSecondSignal) {
  ServerProgram program(Arguments({"--drain_delay=1h"}));
  program.Ports();
  program.Send(SIGTERM);
  program.AwaitLog("draining");
  program.Send(SIGINT);
  EXPECT_EQ(program.Await(), 128 + SIGINT);
}

TEST(Binary, NeverLogsPromptsTextOrMetadata) {
  ServerProgram program(Arguments({"--drain_delay=0s", "--log_level=debug"}));
  auto stub = StubOf(program.Ports());
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer very-secret");
  v1::GenerateRequest request;
  request.set_text("the secret prompt");
  v1::GenerateResponse response;
  stub->Generate(&context, request, &response);
  program.Send(SIGTERM);
  program.Await();
  EXPECT_EQ(program.LogLines("call_end").size(), 1u);
  EXPECT_EQ(program.Log().find("secret"), std::string::npos);
}

grpc::Status GenerateOneToken(const nlohmann::json& ports) {
  // A connection of its own, not one that another channel has.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::GenerationService::NewStub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", ports.value("listen", 0)),
                                grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  v1::GenerateRequest request = LongRequest();
  request.mutable_stopping()->set_max_new_tokens(1);
  v1::GenerateResponse response;
  return stub->Generate(&context, request, &response);
}

int OpenDescriptors(const ServerProgram& program) {
  const std::filesystem::directory_iterator all(absl::StrCat("/proc/", program.pid(), "/fd"));
  return static_cast<int>(std::distance(begin(all), end(all)));
}

TEST(Binary, ServesAgainAfterMoreConnectionsThanItHasDescriptors) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer tries memory by a pipe, and takes it for bad if it gets none";
#endif
  constexpr int kMost = 64;
  ServerProgram program(Arguments());
  const nlohmann::json ports = program.Ports();
  const rlimit limit = {.rlim_cur = kMost, .rlim_max = kMost};
  ASSERT_EQ(prlimit(program.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  std::vector<int> connections;
  for (int i = 0; i < 2 * kMost; ++i) connections.push_back(ConnectTo(ports.value("listen", 0)));
  while (OpenDescriptors(program) < kMost) std::this_thread::yield();
  for (const int connection : connections) close(connection);
  const grpc::Status status = GenerateOneToken(ports);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace eddy
