// eddy health [SERVICE]: succeeds if the service takes calls.
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/client/command.h"
#include "server/client/render.h"

namespace eddy::client {
namespace {

using grpc::health::v1::HealthCheckResponse;

std::string StatusName(HealthCheckResponse::ServingStatus status) {
  return HealthCheckResponse::ServingStatus_Name(status);
}

class Health : public Command {
 public:
  void AddFlags(FlagSet* flags) override {
    flags->Add("wait", &wait_, flag::Time(absl::ZeroDuration(), absl::Hours(24)),
               "wait so long for it to take calls");
  }

  std::vector<std::string> Prepare(const CommonFlags&, const FlagSet&,
                                   const std::vector<std::string>& words) override {
    if (words.size() > 1) return {absl::StrCat(words[1], ": health takes one service")};
    if (!words.empty()) request_.set_service(words[0]);
    return {};
  }

  grpc::Status Run(Connection* connection, Output* output) override {
    const auto stub = grpc::health::v1::Health::NewStub(connection->channel());
    HealthCheckResponse response;
    const grpc::Status status = wait_ == absl::ZeroDuration()
                                    ? Check(stub.get(), *connection, &response)
                                    : WaitUntilServing(stub.get(), &response);
    if (!status.ok()) return status;
    output->out << (output->json ? Json(response) : StatusName(response.status())) << "\n";
    if (response.status() == HealthCheckResponse::SERVING) return status;
    return {grpc::StatusCode::UNAVAILABLE,
            absl::StrCat("the service is ", StatusName(response.status()))};
  }

 private:
  using Stub = grpc::health::v1::Health::Stub;

  grpc::Status Check(Stub* stub, const Connection& connection, HealthCheckResponse* response) {
    grpc::ClientContext context;
    connection.Prepare(&context);
    return stub->Check(&context, request_, response);
  }

  // Also through a server that is not there yet, or goes and comes back.
  grpc::Status WaitUntilServing(Stub* stub, HealthCheckResponse* response) {
    const absl::Time deadline = absl::Now() + wait_;
    while (true) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(deadline));
      context.set_wait_for_ready(true);
      const auto reader = stub->Watch(&context, request_);
      while (reader->Read(response)) {
        if (response->status() != HealthCheckResponse::SERVING) continue;
        context.TryCancel();
        while (reader->Read(response)) continue;
        reader->Finish();
        response->set_status(HealthCheckResponse::SERVING);
        return grpc::Status::OK;
      }
      const grpc::Status status = reader->Finish();
      // A connection that broke; the channel waits longer from one attempt to the next.
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE && absl::Now() < deadline) continue;
      if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return status;
      return {status.error_code(), absl::StrCat("not SERVING after ", absl::FormatDuration(wait_))};
    }
  }

  absl::Duration wait_ = absl::ZeroDuration();
  grpc::health::v1::HealthCheckRequest request_;
};

}  // namespace

std::unique_ptr<Command> MakeHealth() { return std::make_unique<Health>(); }

}  // namespace eddy::client
