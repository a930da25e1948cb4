// What traces tell of one call: a span for the RPC, and below it one for each phase.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/output.h"
#include "server/trace_context.h"

namespace eddy {

// Runs from the arrival of a call. The clock on the wall is read once, at the start; where the call
// stands later is that time and what a steady clock has measured since, so that its spans keep
// their order and length when somebody sets the time of the machine.
class CallTimer {
 public:
  // `clock` outlives it.
  explicit CallTimer(const Clock* clock)
      : clock_(clock), start_(clock->Now()), started_(clock->Steady()) {}

  absl::Time start() const { return start_; }
  absl::Duration elapsed() const { return clock_->Steady() - started_; }

 private:
  const Clock* const clock_;
  const absl::Time start_;
  const absl::Duration started_;
};

// One call that is over. Has no text, no token and no word of a message: those are the client's.
struct CallRecord {
  TracePlace place = {};
  std::string_view service = {}, method = {};  // "eddy.v1.GenerationService" and "Generate"
  std::string request_id = {};
  absl::Time start = absl::InfinitePast();  // arrival
  absl::Duration duration = absl::ZeroDuration();
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason = {};  // of the error, as in ErrorInfo; empty: it ended well
  // Calls for the engine only, as far as they came.
  bool for_engine = false;
  int max_new_tokens = 0;  // 0: it asked for none
  std::optional<FinishReason> finish = {};
  Tally tally = {};
};

// A value is text, a number, or a list of texts.
using Attribute =
    std::pair<std::string_view, std::variant<std::string, int64_t, std::vector<std::string>>>;

struct Span {
  enum class Kind { kInternal = 1, kServer = 2 };  // the numbers of OTLP

  std::string name = {};
  Kind kind = Kind::kInternal;
  std::string trace_id = {}, span_id = {}, parent_id = {}, state = {};
  bool remote_parent = false;
  int64_t start_ns = 0, end_ns = 0;  // since the epoch
  std::vector<Attribute> attributes = {};
  bool failed = false;  // by a fault of the server's
};

// How many spans it has: 1 to 5.
int NumSpans(const CallRecord& call);

// The RPC first, then its children in order of time: `queue` from arrival to admission, `prefill`
// from there to the first token, `decode` to the last, `delivery` to the end of the call. They
// follow one another without gaps, inside the span of the RPC. A call that was cut has those that
// it came to; one that never reached the engine has none.
//
// Attributes have the names of OpenTelemetry's semantic conventions 1.37 (rpc.*, gen_ai.*,
// error.type); those that only eddy has begin with "eddy.".
std::vector<Span> SpansOf(const CallRecord& call, const std::string& model_name);

// The version of the conventions, as traces name it.
inline constexpr char kConventions[] = "https://opentelemetry.io/schemas/1.37.0";

}  // namespace eddy
