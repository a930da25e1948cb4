// Proves what others see of the server's life: health before, during and after, reflection, the
// admin port, two servers on one port, drain, a lost device, an engine that hangs.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/testing/reflection.h"
#include "tests/testing/running_server.h"

namespace eddy {
namespace {

using grpc::health::v1::HealthCheckResponse;

constexpr const char* kReadyNames[] = {"", "eddy.v1.GenerationService", "eddy.v1.ModelService",
                                       "eddy.v1.SessionService"};

TEST(Health, SaysReadyOnlyWhenTheModelIsServedAndAliveFromTheStart) {
  RunningServer server([](ServerSetting* setting) { setting->serve = false; });
  for (const char* const name : kReadyNames) {
    EXPECT_EQ(server.Health(name), HealthCheckResponse::NOT_SERVING) << name;
  }
  EXPECT_EQ(server.Health("liveness"), HealthCheckResponse::SERVING);
  server.Serve();
  for (const char* const name : kReadyNames) {
    EXPECT_EQ(server.Health(name), HealthCheckResponse::SERVING) << name;
  }
  server.server().Leave();
  for (const char* const name : kReadyNames) {
    EXPECT_EQ(server.Health(name), HealthCheckResponse::NOT_SERVING) << name;
  }
  EXPECT_EQ(server.Health("liveness"), HealthCheckResponse::SERVING);
}

TEST(Health, IsToldToThoseWhoWatch) {
  RunningServer server([](ServerSetting* setting) { setting->serve = false; });
  auto stub = grpc::health::v1::Health::NewStub(server.NewChannel());
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("eddy.v1.GenerationService");
  auto reader = stub->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server.Serve();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.server().Leave();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  context.TryCancel();
}

TEST(Health, TurnsWhenTheEngineHangsWithWorkAndBackWhenItMoves) {
  RunningServer server(
      [](ServerSetting* setting) { setting->config.watchdog_timeout = absl::Seconds(1); });
  server.clock().Advance(absl::Hours(1));  // idle for long: that is no fault
  EXPECT_TRUE(ReadStream(&server.generation(), EchoRequest("a", 2)).status.ok());
  EXPECT_EQ(server.Health("liveness"), HealthCheckResponse::SERVING);
  server.control().Close();
  std::thread call([&] { ReadStream(&server.generation(), EchoRequest("a", 3)); });
  server.control().AwaitBlocked();
  server.clock().Advance(absl::Seconds(2));
  while (server.Health("liveness") != HealthCheckResponse::NOT_SERVING) std::this_thread::yield();
  EXPECT_EQ(server.Health(""), HealthCheckResponse::SERVING);
  server.control().Open();
  call.join();
  while (server.Health("liveness") != HealthCheckResponse::SERVING) std::this_thread::yield();
}

TEST(Reflection, ListsTheServices) {
  RunningServer server;
  const std::vector<std::string> names = ListServices(server.NewChannel());
  for (const char* const name : {"eddy.v1.GenerationService", "eddy.v1.ModelService",
                                 "eddy.v1.SessionService", "grpc.health.v1.Health"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
}

TEST(AdminPort, HasHealthAndNoneOfTheServices) {
  RunningServer server(
      [](ServerSetting* setting) { setting->config.admin_listen = "127.0.0.1:0"; });
  const int port = server.server().ports().admin_listen;
  ASSERT_GT(port, 0);
  auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  auto health = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context, other;
  HealthCheckResponse response;
  ASSERT_TRUE(health->Check(&context, {}, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  v1::GenerateResponse answer;
  EXPECT_EQ(v1::GenerationService::NewStub(channel)
                ->Generate(&other, EchoRequest("a", 1), &answer)
                .error_code(),
            grpc::UNIMPLEMENTED);
}

TEST(Ports, ThatAreTakenAreRefusedWithOneLineThatNamesThem) {
  RunningServer server([](ServerSetting* setting) {
    setting->config.admin_listen = "127.0.0.1:0";
    setting->config.metrics_listen = "127.0.0.1:0";
  });
  const Server::Ports ports = server.server().ports();
  RealClock clock;
  ServerConfig config;
  config.model_name = "second";
  auto expect_refused = [&](const std::string& place) {
    const auto second = Server::Start(config, &clock, [] {});
    ASSERT_FALSE(second.ok());
    const std::string message(second.status().message());
    EXPECT_NE(message.find(place), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  config.listen = absl::StrCat("127.0.0.1:", ports.listen);
  config.metrics_listen = "";
  expect_refused(config.listen);
  config.listen = "127.0.0.1:0";
  config.admin_listen = absl::StrCat("127.0.0.1:", ports.admin_listen);
  expect_refused(config.admin_listen);
  config.admin_listen = "";
  config.metrics_listen = absl::StrCat("127.0.0.1:", ports.metrics_listen);
  expect_refused(config.metrics_listen);
  EXPECT_TRUE(ReadStream(&server.generation(), EchoRequest("a", 2)).status.ok());
}

TEST(Drain, TakesCallsUntilItDrainsThenFinishesThoseThatItTook) {
  RunningServer server;
  server.control().Close();
  StreamResult running;
  std::thread call([&] { running = ReadStream(&server.generation(), EchoRequest("ab", 4)); });
  server.control().AwaitBlocked();
  server.server().Leave();
  EXPECT_EQ(server.Status().state(), v1::SERVER_STATE_DRAINING);
  StreamResult late;
  std::thread late_call([&] { late = ReadStream(&server.generation(), EchoRequest("c", 2)); });
  while (server.Status().loads(0).waiting_requests() == 0) std::this_thread::yield();
  server.server().Drain();
  grpc::ClientContext context;
  const StreamResult refused = ReadStream(&server.generation(), EchoRequest("d", 2), &context);
  EXPECT_EQ(refused.status.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(refused.status), "DRAINING");
  const auto trailers = context.GetServerTrailingMetadata();
  ASSERT_EQ(trailers.count("grpc-retry-pushback-ms"), 1u);
  EXPECT_EQ(trailers.find("grpc-retry-pushback-ms")->second, "0");
  server.control().Open();
  call.join();
  late_call.join();
  EXPECT_TRUE(running.status.ok());
  EXPECT_EQ(running.text, "abab");
  EXPECT_TRUE(late.status.ok());
  EXPECT_EQ(late.text, "cc");
}

TEST(Drain, CutsOffWhatIsLeftAndIsGone) {
  RunningServer server([](ServerSetting* setting) { setting->slots = 1; });
  server.control().Close();
  StreamResult running, waiting;
  std::thread first([&] { running = ReadStream(&server.generation(), EchoRequest("a", 8000)); });
  server.control().AwaitBlocked();
  std::thread second([&] { waiting = ReadStream(&server.generation(), EchoRequest("b", 3)); });
  while (server.Status().loads(0).waiting_requests() == 0) std::this_thread::yield();
  server.server().Drain();
  server.server().CutOffAll();
  server.control().Open();
  server.Stop();
  first.join();
  second.join();
  for (const StreamResult* result : {&running, &waiting}) {
    EXPECT_EQ(result->status.error_code(), grpc::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(result->status), "DRAIN_TIMEOUT");
  }
}

TEST(LostDevice, EndsAllCallsTurnsHealthAndRefusesTheNext) {
  RunningServer server([](ServerSetting* setting) { setting->slots = 1; });
  server.control().Close();
  StreamResult running, waiting;
  std::thread first([&] { running = ReadStream(&server.generation(), EchoRequest("a", 100)); });
  server.control().AwaitBlocked();
  std::thread second([&] { waiting = ReadStream(&server.generation(), EchoRequest("b", 3)); });
  while (server.Status().loads(0).waiting_requests() == 0) std::this_thread::yield();
  server.control().Break();
  server.control().Open();
  first.join();
  second.join();
  for (const StreamResult* result : {&running, &waiting}) {
    EXPECT_EQ(result->status.error_code(), grpc::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(result->status), "DEVICE_LOST");
  }
  while (!server.server().device_lost()) std::this_thread::yield();
  EXPECT_EQ(server.Health(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(ReasonOf(ReadStream(&server.generation(), EchoRequest("a", 1)).status), "DEVICE_LOST");
  EXPECT_EQ(server.Status().state(), v1::SERVER_STATE_DEVICE_LOST);
}

}  // namespace
}  // namespace eddy
