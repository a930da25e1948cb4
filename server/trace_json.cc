#include "server/trace_json.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/numbers.h"
#include "base/version.h"
#include "server/ids.h"

namespace eddy {
namespace {

using nlohmann::json;

// The bits of Span.flags beside those of W3C: whether the parent is known to be of another process.
constexpr int kSampled = 1, kKnowsParent = 0x100, kRemoteParent = 0x200;
constexpr int kStatusError = 2;

json ValueOf(const std::string& text) { return {{"stringValue", text}}; }
json ValueOf(int64_t number) { return {{"intValue", std::to_string(number)}}; }
json ValueOf(const std::vector<std::string>& texts) {
  json values = json::array();
  for (const std::string& text : texts) values.push_back(ValueOf(text));
  return {{"arrayValue", {{"values", std::move(values)}}}};
}

json ToJson(const Span& span) {
  json attributes = json::array();
  for (const auto& [key, value] : span.attributes) {
    attributes.push_back(
        {{"key", std::string(key)},
         {"value", std::visit([](const auto& held) { return ValueOf(held); }, value)}});
  }
  json result = {{"traceId", span.trace_id},
                 {"spanId", span.span_id},
                 {"flags", kSampled | kKnowsParent | (span.remote_parent ? kRemoteParent : 0)},
                 {"name", span.name},
                 {"kind", static_cast<int>(span.kind)},
                 {"startTimeUnixNano", std::to_string(span.start_ns)},
                 {"endTimeUnixNano", std::to_string(span.end_ns)},
                 {"attributes", std::move(attributes)},
                 {"status", json::object()}};
  if (!span.parent_id.empty()) result["parentSpanId"] = span.parent_id;
  if (!span.state.empty()) result["traceState"] = span.state;
  if (span.failed) result["status"]["code"] = kStatusError;
  return result;
}

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

// "%41" is "A".
bool DecodePercent(const std::string& text, std::string* decoded) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *decoded += text[i];
      continue;
    }
    uint8_t byte = 0;
    if (i + 2 >= text.size()) return false;
    const char* const digits = text.data() + i + 1;
    if (std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) return false;
    *decoded += static_cast<char>(byte);
    i += 2;
  }
  return true;
}

bool ReadAttributes(const std::string& text, Resource* resource) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string member = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = member.find('=');
    if (equals == std::string::npos) return false;
    std::string key = Trimmed(member.substr(0, equals)), value;
    if (key.empty() || !DecodePercent(Trimmed(member.substr(equals + 1)), &value)) return false;
    std::erase_if(*resource, [&](const auto& one) { return one.first == key; });  // the last counts
    resource->emplace_back(std::move(key), std::move(value));
  }
  return true;
}

bool Has(const Resource& resource, std::string_view key) {
  return std::any_of(resource.begin(), resource.end(),
                     [&](const auto& attribute) { return attribute.first == key; });
}

}  // namespace

Resource ReadResource(const char* service_name, const char* attributes, std::string* fault) {
  Resource resource;
  if (attributes != nullptr && !ReadAttributes(attributes, &resource)) {
    resource.clear();
    *fault = "OTEL_RESOURCE_ATTRIBUTES: must be key=value,key=value with percent-encoded values";
  }
  if (service_name != nullptr && *service_name != '\0') {
    std::erase_if(resource, [](const auto& one) { return one.first == "service.name"; });
    resource.emplace_back("service.name", service_name);
  }
  const std::pair<const char*, std::string> defaults[] = {
      {"service.name", "eddy-server"},
      {"service.version", std::string(Version())},
      {"service.instance.id", NewUuid()}};
  for (const auto& [key, value] : defaults) {
    if (!Has(resource, key)) resource.emplace_back(key, value);
  }
  return resource;
}

std::string ToOtlpJson(const Resource& resource, const std::vector<Span>& spans) {
  json attributes = json::array(), list = json::array();
  for (const auto& [key, value] : resource) {
    attributes.push_back({{"key", key}, {"value", ValueOf(value)}});
  }
  for (const Span& span : spans) list.push_back(ToJson(span));
  json scope = {{"scope", {{"name", "eddy"}, {"version", std::string(Version())}}},
                {"spans", std::move(list)},
                {"schemaUrl", kConventions}};
  json whole = {{"resource", {{"attributes", std::move(attributes)}}},
                {"scopeSpans", json::array({std::move(scope)})},
                {"schemaUrl", kConventions}};
  const json body = {{"resourceSpans", json::array({std::move(whole)})}};
  return body.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

int RejectedSpans(const std::string& answer) {
  const json body = json::parse(answer, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("partialSuccess")) return 0;
  const json& partial = body["partialSuccess"];
  if (!partial.is_object() || !partial.contains("rejectedSpans")) return 0;
  const json& rejected = partial["rejectedSpans"];
  int64_t number = 0;
  if (rejected.is_number_integer()) number = rejected.get<int64_t>();
  if (rejected.is_string() && !absl::SimpleAtoi(rejected.get<std::string>(), &number)) return 0;
  return static_cast<int>(std::clamp<int64_t>(number, 0, std::numeric_limits<int>::max()));
}

}  // namespace eddy
