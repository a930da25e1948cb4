// Names of calls and traces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace eddy {

// 1-128 of [A-Za-z0-9._:-].
bool IsRequestId(std::string_view text);
// A random UUID, version 4 (RFC 9562, section 5.4).
std::string NewUuid();
uint64_t RandomSeed();

// The trace-id of a W3C traceparent header, version 00 ("00-<32 hex>-<16 hex>-<2 hex>", neither id
// all zeros); empty if it is anything else.
std::string TraceIdOf(std::string_view traceparent);
std::string NewSpanId();  // 16 hex digits, not all zeros

}  // namespace eddy
