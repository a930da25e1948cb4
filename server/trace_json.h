// Spans as OTLP/JSON (OpenTelemetry protocol 1.x, "JSON Protobuf Encoding"), and what collectors
// answer. Ids are hex and numbers of 64 bits strings, unlike in protobuf's own JSON only the ids.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/trace_spans.h"

namespace eddy {

// Who sends: service.name and the like.
using Resource = std::vector<std::pair<std::string, std::string>>;

// From the environment of the process: `service_name` is OTEL_SERVICE_NAME, `attributes`
// OTEL_RESOURCE_ATTRIBUTES, "key=value,key=value" with percent-encoded values; each may be null.
// service.name is "eddy-server" and service.instance.id a new UUID where they are not given. A list
// that is malformed is left out as a whole, as the specification says, and `*fault` names it.
Resource ReadResource(const char* service_name, const char* attributes, std::string* fault);

// The body of a request to /v1/traces. Text that is no UTF-8 gets U+FFFD.
std::string ToOtlpJson(const Resource& resource, const std::vector<Span>& spans);

// How many spans the collector says it refused, in the answer to a request that it took.
int RejectedSpans(const std::string& answer);

}  // namespace eddy
