#include "server/errors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"

namespace eddy {
namespace {

using Code = absl::StatusCode;

// absl::StrCat takes no std::string_view.
std::string Str(std::string_view text) { return std::string(text); }

}  // namespace

void Faults::Add(std::string_view reason, std::string_view field, std::string description,
                 std::vector<std::pair<std::string, std::string>> metadata) {
  faults_.push_back({.field = Str(field), .description = std::move(description)});
  reasons_.push_back(Str(reason));
  metadata_ = std::move(metadata);
}

void Faults::Add(const Faults& others) {
  faults_.insert(faults_.end(), others.faults_.begin(), others.faults_.end());
  reasons_.insert(reasons_.end(), others.reasons_.begin(), others.reasons_.end());
  metadata_ = others.metadata_;
}

Error Faults::ToError() const {
  EDDY_CHECK(!empty());
  Error error{.code = Code::kInvalidArgument, .faults = faults_};
  const bool one_reason =
      std::all_of(reasons_.begin(), reasons_.end(),
                  [this](const std::string& reason) { return reason == reasons_.front(); });
  error.reason = one_reason ? reasons_.front() : "INVALID_FIELD";
  // Metadata belongs to one fault; beside others it would be taken for theirs.
  if (faults_.size() == 1) error.metadata = metadata_;
  for (const FieldFault& fault : faults_) {
    absl::StrAppend(&error.message, error.message.empty() ? "" : "; ", fault.description);
  }
  return error;
}

Error ModelNotFound(std::string_view model, std::string_view served) {
  return {.code = Code::kNotFound,
          .reason = "MODEL_NOT_FOUND",
          .message =
              absl::StrCat("model ", Shown(model), " is not served here; ", Shown(served), " is"),
          .missing = MissingResource{.type = "eddy.v1/Model", .name = Str(model)}};
}

Error FeatureDisabled(std::string_view features) {
  return {.code = Code::kUnimplemented,
          .reason = "FEATURE_DISABLED",
          .message = absl::StrCat("not offered by this server: ", Str(features)),
          .metadata = {{"feature", Str(features)}}};
}

Error QueueFull(std::string_view what, int64_t waiting, int64_t limit, absl::Duration retry_after) {
  return {.code = Code::kResourceExhausted,
          .reason = "QUEUE_FULL",
          .message = absl::StrCat("the line is full: ", waiting, " ", Str(what),
                                  " wait, the limit is ", limit),
          .metadata = {{"waiting", absl::StrCat(waiting)}, {"limit", absl::StrCat(limit)}},
          .retry_after = retry_after};
}

Error DeadlinePassed(Phase phase) {
  return {.code = Code::kDeadlineExceeded,
          .reason = "DEADLINE",
          .message = absl::StrCat("the call's deadline passed in phase ", Str(PhaseName(phase))),
          .metadata = {{"phase", Str(PhaseName(phase))}}};
}

Error RequestTimePassed(absl::Duration limit) {
  return {.code = Code::kDeadlineExceeded,
          .reason = "REQUEST_TIME_MAX",
          .message = absl::StrCat("the call took longer than max_request_time, ",
                                  absl::FormatDuration(limit)),
          .metadata = {{"limit", absl::FormatDuration(limit)}}};
}

Error Cancelled() {
  return {.code = Code::kCancelled, .reason = "CANCELLED", .message = "the client cancelled"};
}

Error NotReady() {
  return {.code = Code::kUnavailable,
          .reason = "NOT_READY",
          .message = "the model is being loaded",
          .retry_after = absl::Milliseconds(1000)};
}

Error Draining() {
  return {.code = Code::kUnavailable,
          .reason = "DRAINING",
          .message = "the server is shutting down",
          .retry_after = absl::ZeroDuration()};
}

Error DrainTimeout() {
  return {.code = Code::kUnavailable,
          .reason = "DRAIN_TIMEOUT",
          .message = "the server shut down before the call had ended",
          .retry_after = absl::ZeroDuration()};
}

Error DeviceLost(std::string_view why) {
  return {.code = Code::kUnavailable,
          .reason = "DEVICE_LOST",
          .message = Str(why),
          .retry_after = absl::ZeroDuration()};
}

Error StateNotFinite(const NotFinite& what) {
  const std::string layer = what.layer < 0 ? "logits" : absl::StrCat(what.layer);
  const std::string position = absl::StrCat(what.position);
  return {
      .code = Code::kDataLoss,
      .reason = "STATE_NOT_FINITE",
      .message = absl::StrCat("NaN or infinity in layer ", layer, ", field ",
                              what.field.empty() ? "-" : what.field, ", at position ", position),
      .metadata = {{"layer", layer}, {"field", what.field}, {"position", position}}};
}

Error SlowReader(int64_t outbox_bytes) {
  return {.code = Code::kAborted,
          .reason = "SLOW_READER",
          .message = "the client took too little of the answer for too long",
          .metadata = {{"outbox_bytes", absl::StrCat(outbox_bytes)}}};
}

Error Internal(std::string_view what) {
  return {.code = Code::kInternal, .reason = "INTERNAL", .message = Str(what)};
}

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kQueue:
      return "queue";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kDecode:
      return "decode";
  }
  return "";
}

std::string Shown(std::string_view text) {
  constexpr size_t kMost = 64;
  if (text.size() <= kMost) return JsonQuote(text);
  return JsonQuote(text.substr(0, kMost)) + "...";
}

}  // namespace eddy
