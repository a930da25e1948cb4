#include "server/grpc_status.h"

#include <google/protobuf/any.pb.h>
#include <grpcpp/support/error_details.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/checks.h"

namespace eddy {
namespace {

constexpr size_t kMessageBytes = 512;      // the message goes out twice
constexpr size_t kDescriptionBytes = 256;  // of one fault
constexpr size_t kFaultsBytes = 2560;      // of all faults together
constexpr size_t kMetadataValueBytes = 128;

// At most `most` bytes of valid UTF-8, ending in "..." if there was more.
std::string Shortened(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

google::rpc::BadRequest BadRequestOf(const std::vector<FieldFault>& faults) {
  google::rpc::BadRequest bad;
  size_t bytes = 0;
  size_t told = 0;
  for (const FieldFault& fault : faults) {
    const std::string field = Shortened(fault.field, kDescriptionBytes);
    const std::string description = Shortened(fault.description, kDescriptionBytes);
    bytes += field.size() + description.size() + 8;
    if (bytes > kFaultsBytes) break;
    google::rpc::BadRequest::FieldViolation* const violation = bad.add_field_violations();
    violation->set_field(field);
    violation->set_description(description);
    ++told;
  }
  if (told < faults.size()) {
    bad.add_field_violations()->set_description(
        absl::StrCat("and ", faults.size() - told, " more"));
  }
  return bad;
}

}  // namespace

grpc::Status ToGrpcStatus(const Error& error) {
  google::rpc::Status status;
  status.set_code(static_cast<int>(error.code));
  status.set_message(Shortened(error.message, kMessageBytes));

  google::rpc::ErrorInfo info;
  info.set_reason(error.reason);
  info.set_domain("eddy.v1");
  for (const auto& [key, value] : error.metadata) {
    (*info.mutable_metadata())[key] = Shortened(value, kMetadataValueBytes);
  }
  status.add_details()->PackFrom(info);
  if (!error.faults.empty()) status.add_details()->PackFrom(BadRequestOf(error.faults));
  if (error.missing.has_value()) {
    google::rpc::ResourceInfo resource;
    resource.set_resource_type(error.missing->type);
    resource.set_resource_name(Shortened(error.missing->name, kMetadataValueBytes));
    resource.set_description(status.message());
    status.add_details()->PackFrom(resource);
  }
  if (error.retry_after.has_value()) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() = ToProto(*error.retry_after);
    status.add_details()->PackFrom(retry);
  }
  grpc::Status result;
  const grpc::Status set = grpc::SetErrorDetails(status, &result);
  // SetErrorDetails refuses codes that gRPC does not know; ours are gRPC's.
  return set.ok() ? result : grpc::Status(grpc::StatusCode::INTERNAL, status.message());
}

}  // namespace eddy
