// Proves what becomes of a call's trace, with the program eddy-server and a collector on the
// loopback: parents, order and times of spans, the ids in trailers and log, who decides what is
// kept, and that no collector delays a call or the end of the program.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "tests/testing/get_metrics.h"
#include "tests/testing/http_collector.h"
#include "tests/testing/server_program.h"

namespace eddy {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kCaller[] = "b7ad6b7169203331";

std::string ParentOf(const std::string& flags) {
  return absl::StrCat("00-", kTrace, "-", kCaller, "-", flags);
}

// A server that exports to `endpoint`, and one client.
class TracedServer {
 public:
  explicit TracedServer(const std::string& endpoint, const std::vector<std::string>& more = {})
      : program_(Arguments(endpoint, more)), ports_(program_.Ports()) {
    stub_ = v1::GenerationService::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", ports_.value("listen", 0)), grpc::InsecureChannelCredentials()));
  }

  v1::GenerationService::Stub& stub() { return *stub_; }
  std::string Metrics() { return GetMetrics(ports_.value("metrics_listen", 0)); }
  // Ends it; what was queued is sent by then.
  int Stop() {
    program_.Send(SIGTERM);
    return program_.Await();
  }
  std::vector<json> CallLines() {
    std::vector<json> lines;
    for (const std::string& line : program_.LogLines("call_end"))
      lines.push_back(json::parse(line));
    return lines;
  }
  ServerProgram& program() { return program_; }

  grpc::Status Generate(grpc::ClientContext* context, const std::string& model = "") {
    v1::GenerateResponse response;
    return stub_->Generate(context, Request(model), &response);
  }
  static v1::GenerateRequest Request(const std::string& model = "", uint32_t tokens = 8) {
    v1::GenerateRequest request;
    request.set_model(model);
    for (const uint32_t id : {1u, 2u, 3u}) request.mutable_token_ids()->add_ids(id);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_stopping()->set_max_new_tokens(tokens);
    return request;
  }

 private:
  static std::vector<std::string> Arguments(const std::string& endpoint,
                                            const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--model_dir=tests/golden/kaczmarz_a", "--listen=127.0.0.1:0",
                                    "--metrics_listen=127.0.0.1:0", "--drain_delay=0s",
                                    "--otlp_endpoint=" + endpoint};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  ServerProgram program_;
  const json ports_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

std::string TrailerOf(const grpc::ClientContext& context, const std::string& key) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find(key);
  return it == trailers.end() ? "" : std::string(it->second.data(), it->second.size());
}

std::vector<json> SpansAt(HttpCollector* collector) {
  std::vector<json> spans;
  for (const HttpCollector::Request& request : collector->requests()) {
    const json body = json::parse(request.body);
    for (const json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
      spans.push_back(span);
    }
  }
  return spans;
}

std::vector<std::string> Names(const std::vector<json>& spans) {
  std::vector<std::string> names;
  for (const json& span : spans) names.push_back(span["name"]);
  return names;
}

// Numbers as text.
std::map<std::string, std::string> Attributes(const json& list) {
  std::map<std::string, std::string> attributes;
  for (const json& one : list) {
    const json& value = one["value"];
    attributes[one["key"]] = value.contains("intValue")      ? value["intValue"]
                             : value.contains("stringValue") ? value["stringValue"]
                                                             : json(value.dump());
  }
  return attributes;
}

int64_t Nanos(const json& span, const char* key) {
  return std::stoll(span[key].get<std::string>());
}

// The children of a call follow each other under the RPC, from its beginning on, inside of it.
void ExpectChildrenInOrder(const std::vector<json>& spans) {
  int64_t at = Nanos(spans[0], "startTimeUnixNano");
  std::set<std::string> ids = {spans[0]["spanId"]};
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i]["traceId"], spans[0]["traceId"]);
    EXPECT_EQ(spans[i]["parentSpanId"], spans[0]["spanId"]);
    EXPECT_TRUE(ids.insert(spans[i]["spanId"]).second);
    EXPECT_EQ(Nanos(spans[i], "startTimeUnixNano"), at);
    EXPECT_GE(Nanos(spans[i], "endTimeUnixNano"), at);
    at = Nanos(spans[i], "endTimeUnixNano");
  }
  EXPECT_LE(at, Nanos(spans[0], "endTimeUnixNano"));
}

TEST(Trace, OfAStreamGoesOnFromItsCaller) {
  HttpCollector collector;
  setenv("OTEL_SERVICE_NAME", "tales", 1);
  setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7", 1);
  TracedServer server(collector.url(), {"--model_name=m"});
  unsetenv("OTEL_SERVICE_NAME");
  unsetenv("OTEL_RESOURCE_ATTRIBUTES");
  const int64_t before = absl::GetCurrentTimeNanos();
  grpc::ClientContext context;
  context.AddMetadata("traceparent", ParentOf("01"));
  context.AddMetadata("tracestate", "rojo=1");
  context.AddMetadata("tracestate", "congo=2");
  context.AddMetadata("x-request-id", "call-1");
  auto reader = server.stub().GenerateStream(&context, TracedServer::Request("", 40));
  for (v1::GenerateResponse message; reader->Read(&message);) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  const int64_t after = absl::GetCurrentTimeNanos();
  EXPECT_EQ(TrailerOf(context, "x-trace-id"), kTrace);
  EXPECT_EQ(TrailerOf(context, "x-request-id"), "call-1");
  EXPECT_EQ(server.Stop(), 0);

  const std::vector<json> spans = SpansAt(&collector);
  ASSERT_THAT(Names(spans), ElementsAre("eddy.v1.GenerationService/GenerateStream", "queue",
                                        "prefill", "decode", "delivery"));
  ExpectChildrenInOrder(spans);
  const json& rpc = spans[0];
  EXPECT_EQ(rpc["traceId"], kTrace);
  EXPECT_EQ(rpc["parentSpanId"], kCaller);
  EXPECT_EQ(rpc["traceState"], "rojo=1,congo=2");
  EXPECT_EQ(rpc["kind"], 2);
  EXPECT_GE(Nanos(rpc, "startTimeUnixNano"), before);
  EXPECT_LE(Nanos(rpc, "endTimeUnixNano"), after);
  for (const json& phase : {spans[2], spans[3]}) {
    EXPECT_LT(Nanos(phase, "startTimeUnixNano"), Nanos(phase, "endTimeUnixNano"));
  }
  const auto attributes = Attributes(rpc["attributes"]);
  EXPECT_EQ(attributes.at("rpc.service"), "eddy.v1.GenerationService");
  EXPECT_EQ(attributes.at("rpc.method"), "GenerateStream");
  EXPECT_EQ(attributes.at("rpc.grpc.status_code"), "0");
  EXPECT_EQ(attributes.at("eddy.request_id"), "call-1");
  EXPECT_EQ(attributes.at("gen_ai.request.model"), "m");
  EXPECT_EQ(attributes.at("gen_ai.request.max_tokens"), "40");
  EXPECT_EQ(attributes.at("gen_ai.usage.input_tokens"), "3");
  EXPECT_EQ(attributes.at("gen_ai.usage.output_tokens"), "40");
  const json body = json::parse(collector.requests()[0].body);
  const auto resource = Attributes(body["resourceSpans"][0]["resource"]["attributes"]);
  EXPECT_EQ(resource.at("service.name"), "tales");
  EXPECT_EQ(resource.at("service.instance.id"), "pod-7");

  ASSERT_EQ(server.CallLines().size(), 1u);
  const json line = server.CallLines()[0];
  EXPECT_EQ(line["trace_id"], kTrace);
  EXPECT_EQ(line["span_id"], rpc["spanId"]);
  EXPECT_EQ(line["request_id"], "call-1");
}

TEST(Trace, BeginsWhereTheCallerHasNone) {
  HttpCollector collector;
  TracedServer server(collector.url());
  std::vector<std::string> ids;
  for (const std::string& parent :
       {std::string(), std::string("nonsense"), "ff" + ParentOf("01").substr(2)}) {
    grpc::ClientContext context;
    if (!parent.empty()) context.AddMetadata("traceparent", parent);
    context.AddMetadata("tracestate", "rojo=1");
    ASSERT_TRUE(server.Generate(&context).ok());
    ids.push_back(TrailerOf(context, "x-trace-id"));
  }
  grpc::ClientContext twice;
  twice.AddMetadata("traceparent", ParentOf("01"));
  twice.AddMetadata("traceparent", ParentOf("01"));
  ASSERT_TRUE(server.Generate(&twice).ok());
  ids.push_back(TrailerOf(twice, "x-trace-id"));
  EXPECT_EQ(server.Stop(), 0);
  const std::vector<json> spans = SpansAt(&collector);
  ASSERT_EQ(spans.size(), 4 * 5u);
  for (size_t i = 0; i < ids.size(); ++i) {
    const json& rpc = spans[5 * i];
    EXPECT_EQ(rpc["traceId"], ids[i]);
    EXPECT_NE(ids[i], kTrace);
    EXPECT_FALSE(rpc.contains("parentSpanId"));
    EXPECT_FALSE(rpc.contains("traceState"));
    EXPECT_EQ(server.CallLines()[i]["trace_id"], ids[i]);
  }
}

TEST(Trace, IsKeptAsTheCallerDecides) {
  HttpCollector collector;
  TracedServer server(collector.url(), {"--otlp_sample_ratio=0"});
  grpc::ClientContext no, yes, none;
  no.AddMetadata("traceparent", ParentOf("00"));
  yes.AddMetadata("traceparent", ParentOf("01"));
  for (grpc::ClientContext* context : {&no, &yes, &none}) {
    ASSERT_TRUE(server.Generate(context).ok());
  }
  EXPECT_EQ(TrailerOf(no, "x-trace-id"), kTrace);
  EXPECT_EQ(TrailerOf(none, "x-trace-id").size(), 32u);
  EXPECT_EQ(server.Stop(), 0);
  const std::vector<json> spans = SpansAt(&collector);
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans[0]["parentSpanId"], kCaller);
  EXPECT_EQ(server.CallLines()[1]["span_id"], spans[0]["spanId"]);
}

TEST(Trace, OfARefusedCallTellsWhyAndNothingOfIt) {
  HttpCollector collector;
  TracedServer server(collector.url());
  grpc::ClientContext context;
  context.AddMetadata("traceparent", ParentOf("01"));
  EXPECT_EQ(server.Generate(&context, "the-secret-model").error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(TrailerOf(context, "x-trace-id"), kTrace);
  EXPECT_EQ(server.Stop(), 0);
  const std::vector<json> spans = SpansAt(&collector);
  ASSERT_THAT(Names(spans), ElementsAre("eddy.v1.GenerationService/Generate"));
  const auto attributes = Attributes(spans[0]["attributes"]);
  EXPECT_EQ(attributes.at("rpc.grpc.status_code"), "5");
  EXPECT_EQ(attributes.at("error.type"), "MODEL_NOT_FOUND");
  EXPECT_EQ(spans[0]["status"], json::object());  // the client's fault, not the server's
  EXPECT_EQ(collector.requests()[0].body.find("secret"), std::string::npos);
}

TEST(Trace, OfACancelledStreamEndsWithItsDelivery) {
  HttpCollector collector;
  TracedServer server(collector.url(), {"--max_new_tokens=1000000"});
  grpc::ClientContext context;
  context.AddMetadata("traceparent", ParentOf("01"));
  auto reader = server.stub().GenerateStream(&context, TracedServer::Request("", 1000000));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  EXPECT_EQ(server.Stop(), 0);
  const std::vector<json> spans = SpansAt(&collector);
  ASSERT_THAT(Names(spans), ElementsAre("eddy.v1.GenerationService/GenerateStream", "queue",
                                        "prefill", "decode", "delivery"));
  ExpectChildrenInOrder(spans);
  EXPECT_EQ(Attributes(spans[0]["attributes"]).at("error.type"), "CANCELLED");
}

// Whoever adds an attribute has to think of what it may tell, and add it here.
TEST(Trace, HasOnlyAttributesThatAreKnownToTellNothingOfTexts) {
  HttpCollector collector;
  TracedServer server(collector.url());
  grpc::ClientContext generate, score, refuse;
  ASSERT_TRUE(server.Generate(&generate).ok());
  v1::ScoreRequest request;
  for (const uint32_t id : {1u, 2u, 3u}) request.mutable_token_ids()->add_ids(id);
  v1::ScoreResponse scores;
  ASSERT_TRUE(server.stub().Score(&score, request, &scores).ok());
  EXPECT_FALSE(server.Generate(&refuse, "none").ok());
  EXPECT_EQ(server.Stop(), 0);
  const std::vector<json> spans = SpansAt(&collector);
  EXPECT_THAT(Names(spans),
              ElementsAre("eddy.v1.GenerationService/Generate", "queue", "prefill", "decode",
                          "delivery", "eddy.v1.GenerationService/Score", "queue", "prefill",
                          "delivery", "eddy.v1.GenerationService/Generate"));
  std::set<std::string> keys;
  for (const json& span : spans) {
    for (const auto& [key, value] : Attributes(span["attributes"])) keys.insert(key);
  }
  EXPECT_THAT(
      keys, IsSubsetOf({"rpc.system", "rpc.service", "rpc.method", "rpc.grpc.status_code",
                        "eddy.request_id", "eddy.steps", "error.type", "gen_ai.operation.name",
                        "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.request.max_tokens",
                        "gen_ai.response.model", "gen_ai.response.finish_reasons",
                        "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"}));
}

TEST(Trace, IsCountedAndCostsACallNothingWhenTheCollectorNeverAnswers) {
  HttpCollector collector([](int) { return HttpCollector::Answer{.silent = true}; });
  TracedServer server(collector.url());
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    ASSERT_TRUE(server.Generate(&context).ok());
  }
  EXPECT_THAT(server.Metrics(), HasSubstr("eddy_trace_spans_sent_total 0"));
  const absl::Time began = absl::Now();
  EXPECT_EQ(server.Stop(), 0);
  EXPECT_LT(absl::Now() - began, absl::Seconds(9));  // one answer's time alone is 10 s
  EXPECT_EQ(server.program().LogLines("trace_export_fails").size(), 1u);
}

TEST(Trace, IsCountedWhenTheCollectorTakesIt) {
  HttpCollector collector;
  TracedServer server(collector.url());
  grpc::ClientContext context;
  ASSERT_TRUE(server.Generate(&context).ok());
  collector.Await(1);
  // The answer is on its way, and is counted when it is there.
  for (const absl::Time late = absl::Now() + absl::Minutes(1); absl::Now() < late;) {
    if (server.Metrics().find("eddy_trace_spans_sent_total 5") != std::string::npos) break;
  }
  EXPECT_THAT(server.Metrics(), HasSubstr("eddy_trace_spans_sent_total 5"));
}

TEST(Trace, LetsTheProgramEndAtOnceWhenNobodyIsThere) {
  std::string url;
  {
    const HttpCollector gone;
    url = gone.url();
  }
  TracedServer server(url);
  grpc::ClientContext context;
  ASSERT_TRUE(server.Generate(&context).ok());
  EXPECT_EQ(server.Stop(), 0);
  EXPECT_EQ(server.program().LogLines("stopped").size(), 1u);
}

}  // namespace
}  // namespace eddy
