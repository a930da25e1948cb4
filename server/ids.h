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

// Random ids of W3C Trace Context in small hex digits, 32 and 16 of them, not all zeros.
std::string NewTraceId();
std::string NewSpanId();

}  // namespace eddy
