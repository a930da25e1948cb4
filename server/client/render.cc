#include "server/client/render.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/support/error_details.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace eddy::client {
namespace {

constexpr const char* kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// Four digits are more than a float has to say about a logarithm at a glance; JSON has all.
std::string ShortNumber(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4f", value);
  return text;
}

// The token as text where the server has a tokenizer, else its id.
std::string TokenName(uint32_t id, const std::string& token) {
  return token.empty() ? absl::StrCat(id) : JsonQuote(token);
}

template <typename Detail>
bool Unpack(const google::rpc::Status& status, Detail* detail) {
  for (const google::protobuf::Any& any : status.details()) {
    if (any.UnpackTo(detail)) return true;
  }
  return false;
}

}  // namespace

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  EDDY_CHECK(google::protobuf::util::MessageToJsonString(message, &text, options).ok());
  return text;
}

std::string CodeName(grpc::StatusCode code) {
  const int number = code;
  if (number < 0 || number >= static_cast<int>(std::size(kCodeNames))) {
    return absl::StrCat("code ", number);
  }
  return kCodeNames[number];
}

std::string InMiB(uint64_t bytes) {
  constexpr double kMiB = 1 << 20;
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f MiB", static_cast<double>(bytes) / kMiB);
  return text;
}

void PrintError(const grpc::Status& status, bool json, std::ostream& err) {
  google::rpc::Status details;
  // Errors that gRPC itself makes, such as that of a connection, come without details.
  if (status.error_details().empty() || !grpc::ExtractErrorDetails(status, &details).ok()) {
    details.Clear();
    details.set_code(status.error_code());
    details.set_message(status.error_message());
  }
  if (json) {
    err << Json(details) << "\n";
    return;
  }
  google::rpc::ErrorInfo info;
  const bool has_info = Unpack(details, &info);
  err << "eddy: " << CodeName(status.error_code());
  if (has_info) err << " " << info.reason();
  err << ": " << status.error_message() << "\n";
  for (const auto& [key, value] : info.metadata()) err << "  " << key << ": " << value << "\n";
  google::rpc::BadRequest bad_request;
  if (Unpack(details, &bad_request)) {
    for (const auto& violation : bad_request.field_violations()) {
      err << "  " << violation.field() << ": " << violation.description() << "\n";
    }
  }
  google::rpc::RetryInfo retry;
  if (Unpack(details, &retry)) {
    err << "  retry after: " << absl::FormatDuration(ToDuration(retry.retry_delay())) << "\n";
  }
}

void PrintLogprob(const v1::TokenLogprob& logprob, std::ostream& out) {
  out << TokenName(logprob.token_id(), logprob.token()) << "\t"
      << (logprob.has_logprob() ? ShortNumber(logprob.logprob()) : "-") << "\t" << logprob.rank();
  for (const v1::Candidate& candidate : logprob.top()) {
    out << "\t";
    PrintCandidate(candidate, out);
  }
  out << "\n";
}

void PrintUncertainty(const v1::TokenUncertainty& uncertainty, std::ostream& out) {
  out << "entropy " << uncertainty.entropy();
  const auto also = [&](const char* name, bool is_there, float value) {
    if (is_there) out << "\t" << name << " " << value;
  };
  also("precision", uncertainty.has_kalman_precision_mean(), uncertainty.kalman_precision_mean());
  also("least_precision", uncertainty.has_kalman_precision_min(),
       uncertainty.kalman_precision_min());
  also("readout_std", uncertainty.has_kalman_readout_std(), uncertainty.kalman_readout_std());
  also("surprise", uncertainty.has_kalman_surprise(), uncertainty.kalman_surprise());
  also("information", uncertainty.has_kalman_information(), uncertainty.kalman_information());
  also("spread", uncertainty.has_kalman_spread(), uncertainty.kalman_spread());
  also("residual", uncertainty.has_delta_residual(), uncertainty.delta_residual());
  also("contraction", uncertainty.has_delta_contraction(), uncertainty.delta_contraction());
  also("decay", uncertainty.has_delta_decay(), uncertainty.delta_decay());
  out << "\n";
}

void PrintCandidate(const v1::Candidate& candidate, std::ostream& out) {
  out << TokenName(candidate.token_id(), candidate.token()) << " "
      << ShortNumber(candidate.logprob());
}

void PrintTimings(const v1::Timings& timings, std::ostream& out) {
  const auto text = [](const google::protobuf::Duration& duration) {
    return absl::FormatDuration(absl::Trunc(ToDuration(duration), absl::Microseconds(10)));
  };
  out << "queue " << text(timings.queue()) << ", prefill " << text(timings.prefill()) << " ("
      << timings.prefill_steps() << " steps), decode " << text(timings.decode()) << " ("
      << timings.decode_steps() << " steps), total " << text(timings.total()) << "\n";
}

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

}  // namespace eddy::client
