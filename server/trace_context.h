// Where a call stands in a trace that began elsewhere: W3C Trace Context, level 1
// (https://www.w3.org/TR/trace-context-1/), in the metadata `traceparent` and `tracestate`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace eddy {

// What the caller says of its own span.
struct TraceParent {
  std::string trace_id;  // 32 small hex digits, not all zeros
  std::string span_id;   // 16, the same
  bool sampled = false;
};

// Nothing if it is invalid. A version later than 00 is read as far as 00 knows it, as section 4.3
// demands; "ff" is none.
std::optional<TraceParent> ReadTraceParent(std::string_view traceparent);

// The members of a tracestate, without empty ones and white space, joined by commas; empty if one
// is malformed, if a key comes twice or if there are more than 32. One that is longer than 512
// bytes loses its members of more than 128 bytes, then those at its end, as section 3.5 says.
std::string ReadTraceState(std::string_view tracestate);

// The place of one call: its own span and the one above.
struct TracePlace {
  std::string trace_id;
  std::string span_id;
  std::string parent_id;  // empty: the trace begins here
  std::string state;      // the caller's tracestate
  bool sampled = false;   // whether the call's spans are to be kept
};

// A new span under the caller's; a new trace, of which a share of `sample_ratio` is sampled, if
// the caller's is missing or invalid, and then its tracestate is not looked at. Neither flag is a
// secret or a promise: a caller decides what is kept of its own calls.
TracePlace PlaceInTrace(std::string_view traceparent, std::string_view tracestate,
                        double sample_ratio);

// Whether a trace that begins here belongs to the share: decided by the last 56 bits of its id, so
// that all who sample by the same ratio keep the same traces.
bool IsSampled(std::string_view trace_id, double sample_ratio);

}  // namespace eddy
