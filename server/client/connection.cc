#include "server/client/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/version.h"

namespace eddy::client {
namespace {

// An answer with the log-probabilities of a long prompt is far above gRPC's 4 MiB.
constexpr int kReceiveBytesMax = 256 << 20;

std::string ServiceConfig(int retries) {
  if (retries == 0) return "{}";
  return absl::StrCat(R"({"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":)", retries + 1,
                      R"(,"initialBackoff":"0.2s","maxBackoff":"5s","backoffMultiplier":2,)",
                      R"("retryableStatusCodes":["UNAVAILABLE","RESOURCE_EXHAUSTED"]}}]})");
}

}  // namespace

Connection::Connection(const CommonFlags& common)
    : timeout_(common.timeout), traceparent_(common.traceparent) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
  arguments.SetServiceConfigJSON(ServiceConfig(common.retries));
  arguments.SetUserAgentPrefix(absl::StrCat("eddy/", std::string(Version())));
  channel_ =
      grpc::CreateCustomChannel(common.target, grpc::InsecureChannelCredentials(), arguments);
}

void Connection::Prepare(grpc::ClientContext* context) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  if (!traceparent_.empty()) context->AddMetadata("traceparent", traceparent_);
}

void Connection::NoteTrace(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find("x-trace-id");
  trace_id_ = it == trailers.end() ? "" : std::string(it->second.data(), it->second.size());
}

}  // namespace eddy::client
