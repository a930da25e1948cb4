// Proves every row of the error table that this server can produce, over the wire: code, reason,
// details, trailers, no initial metadata; and that a client's retries work where they should.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "grpcpp/generic/generic_stub.h"
#include "tests/testing/running_server.h"

namespace eddy {
namespace {

std::string PushBackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  auto it = trailers.find("grpc-retry-pushback-ms");
  return it == trailers.end() ? "" : std::string(it->second.data(), it->second.size());
}

void ExpectError(const StreamResult& result, grpc::StatusCode code, const std::string& reason) {
  EXPECT_EQ(result.status.error_code(), code) << result.status.error_message();
  EXPECT_EQ(ReasonOf(result.status), reason);
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(result.status)->domain(), "eddy.v1");
  EXPECT_EQ(result.messages, 0);
  EXPECT_EQ(result.initial_metadata, 0u);
  EXPECT_FALSE(result.request_id.empty());
}

TEST(Errors, RefuseBadRequestsWithAllTheirFaults) {
  RunningServer server;
  v1::GenerateRequest request = EchoRequest("a", 9000);
  request.mutable_sampling()->set_temperature(-1);
  request.set_request_id("not a name");
  const StreamResult result = ReadStream(&server.generation(), request);
  ExpectError(result, grpc::INVALID_ARGUMENT, "INVALID_FIELD");
  const auto bad = DetailOf<google::rpc::BadRequest>(result.status);
  ASSERT_EQ(bad->field_violations_size(), 3);
  EXPECT_EQ(bad->field_violations(0).field(), "request_id");
}

TEST(Errors, RefuseEmptyAndLongPrompts) {
  RunningServer server([](ServerSetting* setting) { setting->config.max_prompt_tokens = 100; });
  ExpectError(ReadStream(&server.generation(), {}), grpc::INVALID_ARGUMENT, "PROMPT_EMPTY");
  ExpectError(ReadStream(&server.generation(), EchoRequest(std::string(100, 'x'), 1)),
              grpc::INVALID_ARGUMENT, "PROMPT_TOO_LONG");
}

TEST(Errors, RefuseTextThatIsNotUtf8) {
  RunningServer server;
  v1::GenerateRequest request = EchoRequest("a", 1);
  std::string bytes = request.SerializeAsString();
  bytes[bytes.find(">a") + 1] = '\xff';
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer buffer(&slice, 1);
  grpc::GenericStub stub(server.NewChannel());
  for (const bool malformed : {false, true}) {
    const grpc::Slice rest("\x0a\x7f");
    const grpc::ByteBuffer wrong(&rest, 1);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto call = stub.PrepareUnaryCall(&context, "/eddy.v1.GenerationService/Generate",
                                      malformed ? wrong : buffer, &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(status), "INVALID_FIELD");
    EXPECT_EQ(DetailOf<google::rpc::BadRequest>(status)->field_violations(0).field(),
              malformed ? "" : "text");
  }
}

TEST(Errors, RefuseUnknownModels) {
  RunningServer server;
  v1::GenerateRequest request = EchoRequest("a", 1);
  request.set_model("other");
  const StreamResult result = ReadStream(&server.generation(), request);
  ExpectError(result, grpc::NOT_FOUND, "MODEL_NOT_FOUND");
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(result.status)->resource_name(), "other");
  grpc::ClientContext context;
  v1::GetModelRequest get;
  get.set_model("other");
  v1::GetModelResponse model;
  EXPECT_EQ(ReasonOf(server.models().GetModel(&context, get, &model)), "MODEL_NOT_FOUND");
}

TEST(Errors, RefuseTextWithoutTokenizer) {
  RunningServer server([](ServerSetting* setting) { setting->has_tokenizer = false; });
  ExpectError(ReadStream(&server.generation(), EchoRequest("a", 1)), grpc::INVALID_ARGUMENT,
              "NO_TOKENIZER");
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("a");
  v1::TokenizeResponse response;
  EXPECT_EQ(ReasonOf(server.generation().Tokenize(&context, request, &response)), "NO_TOKENIZER");
}

TEST(Errors, RefuseWhatIsNotOffered) {
  RunningServer server;
  v1::GenerateRequest request = EchoRequest("a", 1);
  request.mutable_session()->set_keep(true);
  request.mutable_decoding()->set_regex("a");
  const StreamResult result = ReadStream(&server.generation(), request);
  ExpectError(result, grpc::UNIMPLEMENTED, "FEATURE_DISABLED");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(result.status)->metadata().at("feature"),
            "sessions,decoding.regex");
}

TEST(Errors, RefuseEverySessionCall) {
  RunningServer server;
  auto expect = [](const char* name, const grpc::Status& status,
                   const grpc::ClientContext& context) {
    SCOPED_TRACE(name);
    EXPECT_EQ(status.error_code(), grpc::UNIMPLEMENTED);
    EXPECT_EQ(ReasonOf(status), "FEATURE_DISABLED");
    EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->metadata().at("feature"), "sessions");
    EXPECT_EQ(context.GetServerTrailingMetadata().count("x-request-id"), 1u);
  };
  v1::SessionService::Stub& stub = server.sessions();
  grpc::ClientContext contexts[7];
  v1::CreateSessionResponse created;
  expect("Create", stub.CreateSession(&contexts[0], {}, &created), contexts[0]);
  v1::GetSessionResponse got;
  expect("Get", stub.GetSession(&contexts[1], {}, &got), contexts[1]);
  v1::ListSessionsResponse listed;
  expect("List", stub.ListSessions(&contexts[2], {}, &listed), contexts[2]);
  v1::ForkSessionResponse forked;
  expect("Fork", stub.ForkSession(&contexts[3], {}, &forked), contexts[3]);
  v1::DeleteSessionResponse deleted;
  expect("Delete", stub.DeleteSession(&contexts[4], {}, &deleted), contexts[4]);
  auto exporting = stub.ExportSession(&contexts[5], {});
  v1::ExportSessionResponse part;
  EXPECT_FALSE(exporting->Read(&part));
  expect("Export", exporting->Finish(), contexts[5]);
  v1::ImportSessionResponse imported;
  auto importing = stub.ImportSession(&contexts[6], &imported);
  importing->WritesDone();
  expect("Import", importing->Finish(), contexts[6]);
}

TEST(Errors, RefusePagesThatWereNotGivenOut) {
  RunningServer server;
  grpc::ClientContext context;
  v1::ListModelsRequest request;
  request.set_page_size(101);
  request.set_page_token("?");
  v1::ListModelsResponse response;
  const grpc::Status status = server.models().ListModels(&context, request, &response);
  EXPECT_EQ(DetailOf<google::rpc::BadRequest>(status)->field_violations_size(), 2);
}

TEST(Errors, RefuseWhenTheLineIsFullWithAPushback) {
  RunningServer server([](ServerSetting* setting) {
    setting->slots = 1;
    setting->config.max_waiting_requests = 1;
  });
  server.control().Close();
  std::thread running([&] { ReadStream(&server.generation(), EchoRequest("a", 3)); });
  server.control().AwaitBlocked();
  std::thread waiting([&] { ReadStream(&server.generation(), EchoRequest("b", 3)); });
  while (server.Status().loads(0).waiting_requests() == 0) std::this_thread::yield();
  grpc::ClientContext context;
  const StreamResult refused = ReadStream(&server.generation(), EchoRequest("c", 3), &context);
  ExpectError(refused, grpc::RESOURCE_EXHAUSTED, "QUEUE_FULL");
  const int pushback = std::stoi(PushBackOf(context));
  EXPECT_GE(pushback, 100);
  EXPECT_LE(pushback, 5000);
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(refused.status).has_value());
  const auto info = DetailOf<google::rpc::ErrorInfo>(refused.status);
  EXPECT_EQ(info->metadata().at("waiting"), "1");
  EXPECT_EQ(info->metadata().at("limit"), "1");
  server.control().Open();
  running.join();
  waiting.join();
}

TEST(Errors, EndCallsThatTakeLongerThanTheServerAllows) {
  RunningServer server;
  server.control().Close();
  StreamResult result;
  std::thread call([&] { result = ReadStream(&server.generation(), EchoRequest("a", 3)); });
  server.control().AwaitBlocked();
  server.clock().Advance(absl::Minutes(10));
  server.control().Open();
  call.join();
  EXPECT_EQ(result.status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(result.status), "REQUEST_TIME_MAX");
}

TEST(Errors, SayWhichStateBecameNotFinite) {
  RunningServer server;
  server.control().Poison('!');
  const StreamResult result = ReadStream(&server.generation(), EchoRequest("!", 3));
  ExpectError(result, grpc::DATA_LOSS, "STATE_NOT_FINITE");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(result.status)->metadata().at("layer"), "3");
  EXPECT_TRUE(ReadStream(&server.generation(), EchoRequest("a", 3)).status.ok());
}

TEST(Errors, SayThatTheModelIsBeingLoaded) {
  RunningServer server([](ServerSetting* setting) { setting->serve = false; });
  grpc::ClientContext context;
  const StreamResult result = ReadStream(&server.generation(), EchoRequest("a", 3), &context);
  ExpectError(result, grpc::UNAVAILABLE, "NOT_READY");
  EXPECT_EQ(PushBackOf(context), "1000");
  grpc::ClientContext list;
  v1::ListModelsResponse models;
  EXPECT_EQ(ReasonOf(server.models().ListModels(&list, {}, &models)), "NOT_READY");
  EXPECT_EQ(server.Status().state(), v1::SERVER_STATE_STARTING);
}

TEST(Errors, LetTheLibraryRefuseMessagesThatAreTooLarge) {
  RunningServer server(
      [](ServerSetting* setting) { setting->config.max_message_bytes = 64 << 10; });
  EXPECT_EQ(
      ReadStream(&server.generation(), EchoRequest(std::string(70000, 'x'), 1)).status.error_code(),
      grpc::RESOURCE_EXHAUSTED);
}

TEST(Errors, AreRetriedByTheClientWhereTheyPassAndThenStreamNormally) {
  RunningServer server([](ServerSetting* setting) { setting->serve = false; });
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(
      R"({"methodConfig":[{"name":[{"service":"eddy.v1.GenerationService"}],
          "retryPolicy":{"maxAttempts":5,"initialBackoff":"0.1s","maxBackoff":"1s",
          "backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]})");
  auto stub = v1::GenerationService::NewStub(server.NewChannel(arguments));
  StreamResult result;
  std::thread call([&] { result = ReadStream(stub.get(), EchoRequest("ab", 4)); });
  // The first attempt is refused; the next comes a second later, as the server told it to.
  server.AwaitWakes(1);
  server.Serve();
  call.join();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.text, "abab");
}

}  // namespace
}  // namespace eddy
