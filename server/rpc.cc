#include "server/rpc.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "server/grpc_status.h"
#include "server/ids.h"
#include "server/metrics.h"
#include "server/trace_exporter.h"

namespace eddy {
namespace {

constexpr char kIdKey[] = "x-request-id";
constexpr char kParentKey[] = "traceparent";

FinishLabel LabelOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return FinishLabel::kEos;
    case FinishReason::kLength:
      return FinishLabel::kLength;
    case FinishReason::kStopString:
      return FinishLabel::kStopString;
    case FinishReason::kStopToken:
      return FinishLabel::kStopToken;
    case FinishReason::kTimeLimit:
      return FinishLabel::kTimeLimit;
  }
  return FinishLabel::kLength;
}

LogLevel LevelOf(const Ending& ending) {
  if (!ending.error.has_value()) return LogLevel::kInfo;
  switch (ending.error->code) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss:
      return LogLevel::kError;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return LogLevel::kWarning;
    default:
      return LogLevel::kInfo;
  }
}

}  // namespace

Rpc::Rpc(grpc::CallbackServerContext* context, std::string_view method, const RpcEnvironment* env)
    : context_(context),
      service_(method.substr(0, method.find('/'))),
      method_(method.substr(method.find('/') + 1)),
      env_(env),
      timer_(env->clock) {
  const std::chrono::system_clock::time_point deadline = context->deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    client_deadline_ = absl::FromChrono(deadline);
  }
  if (const std::string name = Metadata(kIdKey); IsRequestId(name)) id_ = name;
  if (id_.empty()) id_ = NewUuid();
  // Two parents are as good as none; a tracestate may come in pieces.
  const auto& metadata = context->client_metadata();
  place_ = PlaceInTrace(metadata.count(kParentKey) == 1 ? Metadata(kParentKey) : "",
                        AllOf("tracestate"), env->trace_sample_ratio);
}

void Rpc::ChooseId(const std::string& field, Faults* faults) {
  const bool from_field = !field.empty();
  const std::string name = from_field ? field : Metadata(kIdKey);
  if (name.empty()) return;
  if (IsRequestId(name)) {
    id_ = name;
    return;
  }
  const std::string where = from_field ? "request_id" : absl::StrCat("metadata ", kIdKey);
  faults->Add(where,
              absl::StrCat(where, " is ", Shown(name), "; it must be 1 to 128 of [A-Za-z0-9._:-]"));
}

grpc::Status Rpc::Close(const Ending& ending) {
  context_->AddTrailingMetadata(kIdKey, id_);
  context_->AddTrailingMetadata("x-trace-id", place_.trace_id);
  WriteLog(ending);
  Count(ending);
  Trace(ending);
  if (!ending.error.has_value()) return grpc::Status::OK;
  if (ending.error->retry_after.has_value()) {
    context_->AddTrailingMetadata(
        "grpc-retry-pushback-ms",
        absl::StrCat(absl::ToInt64Milliseconds(*ending.error->retry_after)));
  }
  return ToGrpcStatus(*ending.error);
}

void Rpc::WriteLog(const Ending& ending) const {
  const absl::StatusCode code =
      ending.error.has_value() ? ending.error->code : absl::StatusCode::kOk;
  const Tally& tally = ending.tally;
  Log(LevelOf(ending), "call_end",
      {{"method", method_},
       {"request_id", id_},
       {"trace_id", place_.trace_id},
       {"span_id", place_.span_id},
       {"attempts_before", Metadata("grpc-previous-rpc-attempts")},
       {"code", absl::StatusCodeToString(code)},
       {"reason", ending.error.has_value() ? ending.error->reason : std::string()},
       {"prompt_tokens", tally.prompt_tokens},
       {"generated_tokens", tally.generated_tokens},
       {"queue_ms", absl::ToDoubleMilliseconds(tally.timings.queue)},
       {"prefill_ms", absl::ToDoubleMilliseconds(tally.timings.prefill)},
       {"decode_ms", absl::ToDoubleMilliseconds(tally.timings.decode)},
       {"total_ms", absl::ToDoubleMilliseconds(timer_.elapsed())}});
}

void Rpc::Count(const Ending& ending) const {
  if (ending.error.has_value()) return env_->metrics->CountFailure(ending.error->reason);
  if (!for_engine_ || !ending.finish.has_value()) return;
  env_->metrics->CountFinished({.finish = LabelOf(ending.finish->reason),
                                .total = ending.tally.total,
                                .queue = ending.tally.timings.queue,
                                .prefill = ending.tally.timings.prefill,
                                .decode = ending.tally.timings.decode,
                                .prompt_tokens = ending.tally.prompt_tokens,
                                .generated_tokens = ending.tally.generated_tokens});
}

void Rpc::Trace(const Ending& ending) const {
  if (env_->traces == nullptr || !place_.sampled) return;
  CallRecord call{.place = place_,
                  .service = service_,
                  .method = method_,
                  .request_id = id_,
                  .start = timer_.start(),
                  .duration = timer_.elapsed(),
                  .for_engine = for_engine_,
                  .max_new_tokens = max_new_tokens_,
                  .tally = ending.tally};
  if (ending.error.has_value()) {
    call.code = ending.error->code;
    call.reason = ending.error->reason;
  } else if (ending.finish.has_value()) {
    call.finish = ending.finish->reason;
  }
  env_->traces->Put(std::move(call));
}

std::string Rpc::Metadata(const char* key) const {
  const auto& metadata = context_->client_metadata();
  auto it = metadata.find(key);
  return it == metadata.end() ? std::string() : std::string(it->second.data(), it->second.size());
}

std::string Rpc::AllOf(const char* key) const {
  std::string joined;
  const auto [first, last] = context_->client_metadata().equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (!joined.empty()) joined += ',';
    joined.append(it->second.data(), it->second.size());
  }
  return joined;
}

}  // namespace eddy
