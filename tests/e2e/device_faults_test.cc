// Proves that the program eddy-server ends by itself, with status 1, when its device is lost: all
// calls hear of it within seconds. And when its device hangs, which nothing can end but the
// process, health says so, and SIGTERM ends it after the drain as if it did not. The device is one
// that a test's back end breaks (faulty_plugin.cc), on a GPU if there is one for tests/gpu.sh.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "tests/testing/rpc_details.h"
#include "tests/testing/server_program.h"

namespace eddy {
namespace {

// A variable of the environment, while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_) setenv(name_, before_->c_str(), 1);
    if (!before_) unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

// A server with one slot, whose device fails after a hundred tokens or so.
constexpr char kHundredTokens[] = "400", kLoading[] = "-1";
std::unique_ptr<ServerProgram> StartFaulty(const std::vector<std::string>& more,
                                           const char* fails_after = kHundredTokens) {
  const char* const libraries = std::getenv("LD_LIBRARY_PATH");
  const Variable path("LD_LIBRARY_PATH",
                      absl::StrCat(EDDY_FAULTY_PLUGIN_DIR, libraries == nullptr ? "" : ":",
                                   libraries == nullptr ? "" : libraries));
  const Variable healthy("EDDY_TEST_HEALTHY_FORWARDS", fails_after);
  std::vector<std::string> arguments = {"--model_dir=tests/golden/kaczmarz_a",
                                        "--listen=127.0.0.1:0",
                                        "--metrics_listen=",
                                        "--device=cuda",
                                        "--weight_type=float32",
                                        "--max_sequences=1",
                                        "--max_new_tokens=1000000"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return std::make_unique<ServerProgram>(std::move(arguments));
}

// Two calls without an end: one runs, the other waits for its slot.
class TwoCalls {
 public:
  explicit TwoCalls(int port)
      : stub_(v1::GenerationService::NewStub(grpc::CreateChannel(
            absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()))) {}
  // Of both, when they have ended.
  std::vector<grpc::Status> Statuses() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return {statuses_[0], statuses_[1]};
  }

 private:
  grpc::Status Call() {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(1);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_stopping()->set_max_new_tokens(1000000);
    grpc::ClientContext context;
    auto reader = stub_->GenerateStream(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  }

  const std::unique_ptr<v1::GenerationService::Stub> stub_;
  grpc::Status statuses_[2];
  std::vector<std::thread> threads_ = [this] {
    std::vector<std::thread> threads;
    for (grpc::Status& status : statuses_) threads.emplace_back([&] { status = Call(); });
    return threads;
  }();
};

TEST(DeviceFaults, EndAllCallsAndThenTheProgramWithStatusOne) {
  const auto program = StartFaulty({});
  TwoCalls calls(program->Ports().value("listen", 0));
  program->AwaitLog("device_lost");
  const absl::Time lost = absl::Now();
  EXPECT_EQ(program->Await(), 1);
  EXPECT_LT(absl::Now() - lost, absl::Seconds(5));
  for (const grpc::Status& status : calls.Statuses()) {
    EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(status), "DEVICE_LOST") << status.error_message();
  }
}

TEST(DeviceFaults, EndTheProgramOnSigtermWithStatusOneThoughTheDeviceHangs) {
  const Variable hangs("EDDY_TEST_HANGS", "1");
  const auto program =
      StartFaulty({"--watchdog_timeout=1s", "--drain_delay=0s", "--drain_timeout=500ms"});
  TwoCalls calls(program->Ports().value("listen", 0));
  program->AwaitLog("engine_hangs");
  const absl::Time told = absl::Now();
  program->Send(SIGTERM);
  EXPECT_EQ(program->Await(), 1);
  EXPECT_LT(absl::Now() - told, absl::Seconds(20));
  EXPECT_EQ(program->LogLines("stuck").size(), 1u) << program->Log();
  for (const grpc::Status& status : calls.Statuses()) {
    EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
  }
}

TEST(DeviceFaults, LetASecondSignalEndTheProgramThoughTheDeviceHangs) {
  const Variable hangs("EDDY_TEST_HANGS", "1");
  const auto program =
      StartFaulty({"--watchdog_timeout=1s", "--drain_delay=0s", "--drain_timeout=0s"});
  TwoCalls calls(program->Ports().value("listen", 0));
  program->AwaitLog("engine_hangs");
  program->Send(SIGTERM);
  program->AwaitLog("drain_timeout");
  program->Send(SIGINT);
  EXPECT_EQ(program->Await(), 128 + SIGINT);
  calls.Statuses();
}

TEST(DeviceFaults, LetASignalEndTheProgramWhileTheModelIsBeingLoaded) {
  const Variable hangs("EDDY_TEST_HANGS", "1");
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto program = StartFaulty({"--drain_delay=1h"}, kLoading);
    program->AwaitLog("weights_loaded");
    program->Send(signal);
    EXPECT_EQ(program->Await(), 0);
    EXPECT_EQ(program->LogLines("stopped").size(), 1u) << program->Log();
  }
}

}  // namespace
}  // namespace eddy
