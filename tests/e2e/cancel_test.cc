// Proves that a call ends, and gives back its slot, whatever its client does and when: cancels in
// the line, in the prompt and while generating, deadlines, readers that never read.
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/running_server.h"
#include "tests/testing/stream_client.h"

namespace eddy {
namespace {

// Until nothing runs, waits or is open any more.
void AwaitQuiet(RunningServer* server) {
  while (true) {
    const v1::GetServerStatusResponse status = server->Status();
    if (status.loads(0).running_sequences() == 0 && status.loads(0).waiting_requests() == 0 &&
        server->server().open_calls() == 0 && server->server().last_step().slots_used == 0) {
      return;
    }
    std::this_thread::yield();
  }
}

void ExpectHealthy(RunningServer* server) {
  const StreamResult golden = ReadStream(&server->generation(), EchoRequest("golden", 12));
  EXPECT_TRUE(golden.status.ok());
  EXPECT_EQ(golden.text, "goldengolden");
}

TEST(Cancel, WorksInTheLine) {
  RunningServer server([](ServerSetting* setting) { setting->slots = 1; });
  server.control().Close();
  std::thread running([&] { ReadStream(&server.generation(), EchoRequest("a", 3)); });
  server.control().AwaitBlocked();
  Countdown done(1);
  StreamClient waiting(&server.generation(), EchoRequest("b", 3), -1, [&] { done.Tick(); });
  while (server.Status().loads(0).waiting_requests() == 0) std::this_thread::yield();
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, EchoRequest("c", 3));
  while (server.Status().loads(0).waiting_requests() < 2) std::this_thread::yield();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  server.control().Open();
  running.join();
  done.Await();
  EXPECT_EQ(waiting.result().text, "bbb");
  AwaitQuiet(&server);
  ExpectHealthy(&server);
}

TEST(Cancel, WorksInThePromptAndWhileGenerating) {
  RunningServer server([](ServerSetting* setting) { setting->slots = 1; });
  for (const int steps : {0, 1, 2, 3, 5, 8}) {  // 2 steps of prompt, then a token each
    SCOPED_TRACE(steps);
    server.control().Close();
    grpc::ClientContext context;
    auto reader =
        server.generation().GenerateStream(&context, EchoRequest(std::string(900, 'x'), 100));
    server.control().AwaitBlocked();
    server.control().Allow(steps);
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
    server.control().Open();
    AwaitQuiet(&server);
    ExpectHealthy(&server);
  }
}

TEST(Cancel, WorksForUnaryCalls) {
  RunningServer server([](ServerSetting* setting) { setting->slots = 1; });
  server.control().Close();
  grpc::ClientContext context;
  grpc::Status status;
  v1::GenerateResponse response;
  std::thread call(
      [&] { status = server.generation().Generate(&context, EchoRequest("a", 500), &response); });
  server.control().AwaitBlocked();
  context.TryCancel();
  call.join();
  EXPECT_EQ(status.error_code(), grpc::CANCELLED);
  server.control().Open();
  AwaitQuiet(&server);
  ExpectHealthy(&server);
}

TEST(Deadline, EndsCallsInTheLineAndWhileGenerating) {
  RunningServer server([](ServerSetting* setting) { setting->slots = 1; });
  server.control().Close();
  StreamResult running, waiting;
  std::thread first([&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
    running = ReadStream(&server.generation(), EchoRequest("a", 8000), &context);
  });
  server.control().AwaitBlocked();
  std::thread second([&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    waiting = ReadStream(&server.generation(), EchoRequest("b", 3), &context);
  });
  second.join();
  first.join();
  EXPECT_EQ(running.status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(waiting.status.error_code(), grpc::DEADLINE_EXCEEDED);
  server.control().Open();
  AwaitQuiet(&server);
  ExpectHealthy(&server);
}

TEST(Deadline, TimeLimitEndsWellWithWhatThereIs) {
  RunningServer server;
  v1::GenerateRequest request = EchoRequest("a", 8000);
  request.mutable_stopping()->mutable_time_limit()->set_seconds(60);
  server.control().Close();
  server.control().Allow(3);
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, request);
  StreamResult result;
  for (v1::GenerateResponse message; result.num_tokens < 3;) {
    ASSERT_TRUE(reader->Read(&message));
    result.Add(message);
  }
  server.control().AwaitBlocked();
  server.clock().Advance(absl::Seconds(61));
  server.control().Open();
  for (v1::GenerateResponse message; reader->Read(&message);) result.Add(message);
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_TRUE(result.finish.has_value());
  EXPECT_EQ(result.finish->reason(), v1::FINISH_REASON_TIME_LIMIT);
  EXPECT_LT(result.num_tokens, 8000);
  EXPECT_EQ(result.text.size(), static_cast<size_t>(result.num_tokens));
}

// A client that opens a stream and never reads from it: small flow-control windows, so that the
// server's writes get stuck soon.
struct SilentClient {
  explicit SilentClient(RunningServer* server) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub = v1::GenerationService::NewStub(server->NewChannel(arguments));
    v1::GenerateRequest request = EchoRequest(std::string(100, 'x'), 8000);
    request.mutable_response()->set_logprobs(true);
    request.mutable_response()->set_top_logprobs(7);
    reader = stub->GenerateStream(&context, request);
  }
  grpc::ClientContext context;
  std::unique_ptr<v1::GenerationService::Stub> stub;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
};

TEST(SlowReader, IsCutWhenTooMuchWaitsAndStopsNobodyElse) {
  RunningServer server([](ServerSetting* setting) {
    setting->slots = 2;
    setting->config.outbox_bytes_max = 64 << 10;
  });
  server.control().Close();
  SilentClient silent(&server);
  server.control().AwaitBlocked();  // on its first step
  server.control().Open();
  // Its slot comes free although it still does not read, and others go on meanwhile.
  for (int i = 0; i < 20; ++i) ExpectHealthy(&server);
  while (server.Status().loads(0).running_sequences() != 0) std::this_thread::yield();
  v1::GenerateResponse message;
  int tokens = 0;
  while (silent.reader->Read(&message)) {
    tokens += static_cast<int>(message.outputs(0).num_tokens());
  }
  EXPECT_LT(tokens, 8000);
  const grpc::Status status = silent.reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::ABORTED);
  EXPECT_EQ(ReasonOf(status), "SLOW_READER");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->metadata().at("outbox_bytes"), "65536");
}

TEST(SlowReader, IsCutWhenAWriteIsStuckForStallTimeout) {
  RunningServer server([](ServerSetting* setting) {
    setting->slots = 1;
    setting->config.outbox_bytes_max = 64 << 20;
    setting->config.stall_timeout = absl::Seconds(30);
    setting->config.watchdog_timeout = absl::Seconds(2);  // so that it is looked at often
  });
  SilentClient silent(&server);
  ExpectHealthy(&server);  // waits for the only slot, so that all 8000 tokens were generated
  // The server may close a call later than its client reads the answer.
  while (server.server().open_calls() > 1) std::this_thread::yield();
  EXPECT_EQ(server.server().open_calls(), 1);
  server.clock().Advance(absl::Seconds(31));
  while (server.server().open_calls() > 0) std::this_thread::yield();
  v1::GenerateResponse message;
  while (silent.reader->Read(&message)) {
  }
  EXPECT_FALSE(silent.reader->Finish().ok());
  ExpectHealthy(&server);
}

}  // namespace
}  // namespace eddy
