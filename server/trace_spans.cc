#include "server/trace_spans.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/ids.h"

namespace eddy {
namespace {

// Operations have names in the conventions or, like "score", of our own.
const char* OperationOf(std::string_view method) {
  return method == "Score" ? "score" : "text_completion";
}

// In the words of eddy_request_success_total.
const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kTimeLimit:
      return "time_limit";
  }
  return "length";
}

// Which statuses of a gRPC server are its own fault, by the conventions; others are the client's.
bool IsFault(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

Span RpcSpan(const CallRecord& call, const std::string& model_name) {
  Span span{.name = absl::StrCat(std::string(call.service), "/", std::string(call.method)),
            .kind = Span::Kind::kServer,
            .trace_id = call.place.trace_id,
            .span_id = call.place.span_id,
            .parent_id = call.place.parent_id,
            .state = call.place.state,
            .remote_parent = !call.place.parent_id.empty(),
            .start_ns = absl::ToUnixNanos(call.start),
            .end_ns = absl::ToUnixNanos(call.start + call.duration),
            .failed = IsFault(call.code)};
  std::vector<Attribute>& to = span.attributes;
  to = {{"rpc.system", "grpc"},
        {"rpc.service", std::string(call.service)},
        {"rpc.method", std::string(call.method)},
        {"rpc.grpc.status_code", static_cast<int64_t>(call.code)},
        {"eddy.request_id", call.request_id}};
  if (!call.reason.empty()) to.emplace_back("error.type", call.reason);
  if (!call.for_engine) return span;
  to.emplace_back("gen_ai.operation.name", OperationOf(call.method));
  to.emplace_back("gen_ai.provider.name", "eddy");
  to.emplace_back("gen_ai.request.model", model_name);
  if (call.max_new_tokens > 0) {
    to.emplace_back("gen_ai.request.max_tokens", int64_t{call.max_new_tokens});
  }
  if (!call.tally.phase.has_value()) return span;
  to.emplace_back("gen_ai.response.model", model_name);
  to.emplace_back("gen_ai.usage.input_tokens", int64_t{call.tally.prompt_tokens});
  to.emplace_back("gen_ai.usage.output_tokens", int64_t{call.tally.generated_tokens});
  if (call.finish.has_value()) {
    to.emplace_back("gen_ai.response.finish_reasons",
                    std::vector<std::string>{NameOf(*call.finish)});
  }
  return span;
}

// Puts children one after another under the span of an RPC. Phases are differences of the clock on
// the wall; should that have leapt, what they tell too much is cut off at the end of the call.
class Children {
 public:
  explicit Children(std::vector<Span>* spans) : spans_(spans), at_ns_(spans->front().start_ns) {}

  Span* Add(const char* name, absl::Duration length) {
    const Span& parent = spans_->front();
    const int64_t least = std::max<int64_t>(absl::ToInt64Nanoseconds(length), 0);
    const int64_t end_ns = at_ns_ + std::min(least, parent.end_ns - at_ns_);
    spans_->push_back({.name = name,
                       .trace_id = parent.trace_id,
                       .span_id = NewSpanId(),
                       .parent_id = parent.span_id,
                       .state = parent.state,
                       .start_ns = at_ns_,
                       .end_ns = end_ns});
    at_ns_ = end_ns;
    return &spans_->back();
  }

 private:
  std::vector<Span>* const spans_;
  int64_t at_ns_;  // where the next begins
};

}  // namespace

int NumSpans(const CallRecord& call) {
  if (!call.tally.phase.has_value()) return 1;
  switch (*call.tally.phase) {
    case Phase::kQueue:
      return 2;
    case Phase::kPrefill:
      return 4;
    case Phase::kDecode:
      return 5;
  }
  return 1;
}

std::vector<Span> SpansOf(const CallRecord& call, const std::string& model_name) {
  std::vector<Span> spans;
  spans.reserve(static_cast<size_t>(NumSpans(call)));
  spans.push_back(RpcSpan(call, model_name));
  if (!call.tally.phase.has_value()) return spans;
  const Timings& timings = call.tally.timings;
  const Phase phase = *call.tally.phase;
  Children children(&spans);
  children.Add("queue", timings.queue);
  if (phase == Phase::kQueue) return spans;
  children.Add("prefill", timings.prefill)->attributes = {
      {"eddy.steps", int64_t{timings.prefill_steps}}};
  if (phase == Phase::kDecode) {
    children.Add("decode", timings.decode)->attributes = {
        {"eddy.steps", int64_t{timings.decode_steps}}};
  }
  children.Add("delivery", absl::InfiniteDuration());
  return spans;
}

}  // namespace eddy
