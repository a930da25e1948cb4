// Proves the bytes that a collector gets, field by field as OTLP/JSON wants them, who they say sent
// them, and what is read of a collector's answer.
#include "server/trace_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/version.h"

namespace eddy {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Sent(const Resource& resource, const std::vector<Span>& spans) {
  return json::parse(ToOtlpJson(resource, spans));
}

std::map<std::string, std::string> Map(const Resource& resource) {
  return {resource.begin(), resource.end()};
}

TEST(TraceJson, HasTheShapeOfARequest) {
  const json body = Sent({{"service.name", "eddy-server"}}, {Span{.name = "a"}, Span{.name = "b"}});
  ASSERT_EQ(body["resourceSpans"].size(), 1u);
  const json& whole = body["resourceSpans"][0];
  EXPECT_EQ(whole["resource"], json::parse(R"({"attributes": [
      {"key": "service.name", "value": {"stringValue": "eddy-server"}}]})"));
  EXPECT_EQ(whole["schemaUrl"], kConventions);
  ASSERT_EQ(whole["scopeSpans"].size(), 1u);
  EXPECT_EQ(whole["scopeSpans"][0]["scope"]["name"], "eddy");
  EXPECT_EQ(whole["scopeSpans"][0]["scope"]["version"], Version());
  EXPECT_EQ(whole["scopeSpans"][0]["spans"][0]["name"], "a");
  EXPECT_EQ(whole["scopeSpans"][0]["spans"][1]["name"], "b");
}

TEST(TraceJson, WritesIdsAsHexAndLargeNumbersAsText) {
  const Span span{.name = "eddy.v1.GenerationService/Score",
                  .kind = Span::Kind::kServer,
                  .trace_id = "0af7651916cd43dd8448eb211c80319c",
                  .span_id = "b7ad6b7169203331",
                  .parent_id = "00f067aa0ba902b7",
                  .state = "a=1,b=2",
                  .remote_parent = true,
                  .start_ns = 1544712660000000001,
                  .end_ns = 1544712661000000002,
                  .attributes = {{"text", "x"},
                                 {"number", int64_t{1} << 53},
                                 {"list", std::vector<std::string>{"eos"}}},
                  .failed = true};
  EXPECT_EQ(Sent({}, {span})["resourceSpans"][0]["scopeSpans"][0]["spans"][0], json::parse(R"({
      "traceId": "0af7651916cd43dd8448eb211c80319c",
      "spanId": "b7ad6b7169203331",
      "parentSpanId": "00f067aa0ba902b7",
      "traceState": "a=1,b=2",
      "flags": 769,
      "name": "eddy.v1.GenerationService/Score",
      "kind": 2,
      "startTimeUnixNano": "1544712660000000001",
      "endTimeUnixNano": "1544712661000000002",
      "attributes": [
        {"key": "text", "value": {"stringValue": "x"}},
        {"key": "number", "value": {"intValue": "9007199254740992"}},
        {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "eos"}]}}}],
      "status": {"code": 2}})"));
}

TEST(TraceJson, LeavesOutWhatARootDoesNotHave) {
  const json span =
      Sent({}, {Span{.trace_id = "a"}})["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_FALSE(span.contains("parentSpanId"));
  EXPECT_FALSE(span.contains("traceState"));
  EXPECT_EQ(span["flags"], 0x101);
  EXPECT_EQ(span["kind"], 1);
  EXPECT_EQ(span["status"], json::object());
}

TEST(TraceJson, StaysUtf8WhateverTheEnvironmentSays) {
  EXPECT_THAT(ToOtlpJson({{"k", "a\xff"}}, {}), HasSubstr("a\xef\xbf\xbd"));
}

TEST(Resource, IsTheServersWhenNothingIsSaid) {
  std::string fault;
  const auto resource = Map(ReadResource(nullptr, nullptr, &fault));
  EXPECT_EQ(resource.at("service.name"), "eddy-server");
  EXPECT_EQ(resource.at("service.version"), Version());
  EXPECT_EQ(resource.at("service.instance.id").size(), 36u);
  EXPECT_NE(resource.at("service.instance.id"),
            Map(ReadResource("", "", &fault)).at("service.instance.id"));
  EXPECT_EQ(fault, "");
}

TEST(Resource, TakesAttributesAndPutsTheNameOfTheServiceFirst) {
  std::string fault;
  const std::string given = "service.name=a, service.instance.id=pod-7 ,k8s.ns=%41%2cb,x=1,x=2";
  auto resource = Map(ReadResource("tales", given.c_str(), &fault));
  EXPECT_EQ(resource["service.name"], "tales");
  EXPECT_EQ(resource["service.instance.id"], "pod-7");
  EXPECT_EQ(resource["k8s.ns"], "A,b");
  EXPECT_EQ(resource["x"], "2");
  EXPECT_EQ(resource.size(), ReadResource("tales", given.c_str(), &fault).size());
  EXPECT_EQ(Map(ReadResource(nullptr, given.c_str(), &fault))["service.name"], "a");
  EXPECT_EQ(fault, "");
}

TEST(Resource, LeavesOutAListThatIsMalformed) {
  for (const char* wrong : {"a", "a=1,b", "=1", "a=%4", "a=%zz", "a=1,,b=2"}) {
    std::string fault;
    const auto resource = Map(ReadResource(nullptr, wrong, &fault));
    EXPECT_THAT(fault, HasSubstr("OTEL_RESOURCE_ATTRIBUTES")) << wrong;
    EXPECT_EQ(resource.size(), 3u) << wrong;
  }
}

TEST(RejectedSpans, AreReadInBothFormsOfNumbers) {
  EXPECT_EQ(RejectedSpans(R"({"partialSuccess": {"rejectedSpans": "7"}})"), 7);
  EXPECT_EQ(RejectedSpans(R"({"partialSuccess": {"rejectedSpans": 7}})"), 7);
}

TEST(RejectedSpans, AreNoneInAnyOtherAnswer) {
  for (const char* answer :
       {"", "{}", "[]", "x", "{\"partialSuccess\": {}}", "{\"partialSuccess\": 3}",
        "{\"partialSuccess\": {\"rejectedSpans\": \"x\"}}",
        "{\"partialSuccess\": {\"rejectedSpans\": -4}}",
        "{\"partialSuccess\": {\"rejectedSpans\": {}}}"}) {
    EXPECT_EQ(RejectedSpans(answer), 0) << answer;
  }
}

}  // namespace
}  // namespace eddy
