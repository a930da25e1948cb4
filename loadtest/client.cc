#include "loadtest/client.h"

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/version.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "eddy/v1/model.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace eddy::loadtest {
namespace {

// google.rpc.ErrorInfo's reason, or nothing.
std::string Reason(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return "";
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

// One call. Deletes itself once it is done.
class Call : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(v1::GenerationService::Stub* stub, v1::GenerateRequest request,
       const ClientSettings& settings, CallRecord* record, std::function<void()> done)
      : request_(std::move(request)),
        pause_(settings.slow_reader_pause),
        record_(record),
        done_(std::move(done)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + settings.timeout));
    stub->async()->GenerateStream(&context_, &request_, this);
    // Between the reads of a slow reader nothing else keeps the call alive.
    if (record_->plan.slow_reader) AddHold();
    record_->sent_us = NowUs();
    StartRead(&message_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      if (record_->plan.slow_reader) RemoveHold();
      return;
    }
    Note();
    if (!record_->plan.slow_reader) {
      StartRead(&message_);
      return;
    }
    alarm_.emplace();
    alarm_->Set(absl::ToChronoTime(absl::Now() + pause_), [this](bool) { StartRead(&message_); });
  }

  void OnDone(const grpc::Status& status) override {
    record_->done_us = NowUs();
    record_->code = status.error_code();
    record_->cancelled_here = cancelled_ && status.error_code() == grpc::CANCELLED;
    if (!status.ok()) {
      record_->reason = Reason(status);
      record_->error = status.error_message();
    }
    const std::function<void()> done = std::move(done_);
    delete this;
    done();
  }

  void Note() {
    uint32_t tokens = 0;
    for (const v1::SequenceOutput& output : message_.outputs()) tokens += output.num_tokens();
    if (tokens == 0) return;
    tokens_ += tokens;
    record_->messages.push_back(
        {.at_us = static_cast<uint32_t>(NowUs() - record_->intended_us), .tokens = tokens});
    if (record_->plan.cancel_after >= 0 && tokens_ >= record_->plan.cancel_after && !cancelled_) {
      cancelled_ = true;
      context_.TryCancel();
    }
  }

  const v1::GenerateRequest request_;
  const absl::Duration pause_;
  CallRecord* const record_;
  std::function<void()> done_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
  std::optional<grpc::Alarm> alarm_;
  int64_t tokens_ = 0;
  bool cancelled_ = false;
};

}  // namespace

std::string ServiceConfig(const std::string& lb_policy, int retries) {
  std::string config = absl::StrCat(R"({"loadBalancingConfig":[{")", lb_policy, R"(":{}}])");
  // Clients that balance leave a draining server at once; pick_first does not look at health.
  if (lb_policy != "pick_first") {
    absl::StrAppend(&config, R"(,"healthCheckConfig":{"serviceName":"eddy.v1.GenerationService"})");
  }
  if (retries > 0) {
    absl::StrAppend(&config,
                    R"(,"methodConfig":[{"name":[{"service":"eddy.v1.GenerationService"}],)",
                    R"("retryPolicy":{"maxAttempts":)", retries + 1,
                    R"(,"initialBackoff":"0.2s","maxBackoff":"5s","backoffMultiplier":2,)",
                    R"("retryableStatusCodes":["UNAVAILABLE","RESOURCE_EXHAUSTED"]}}])");
  }
  return config + "}";
}

struct Client::Channels {
  std::vector<std::shared_ptr<grpc::Channel>> all;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs;
  std::atomic<size_t> next = 0;
};

Client::Client(const ClientSettings& settings)
    : settings_(settings), channels_(std::make_unique<Channels>()) {
  for (int i = 0; i < settings.channels; ++i) {
    grpc::ChannelArguments arguments;
    // Without it all channels to one address share one connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetServiceConfigJSON(ServiceConfig(settings.lb_policy, settings.retries));
    arguments.SetUserAgentPrefix(absl::StrCat("eddy-loadtest/", std::string(Version())));
    channels_->all.push_back(
        grpc::CreateCustomChannel(settings.target, grpc::InsecureChannelCredentials(), arguments));
    channels_->stubs.push_back(v1::GenerationService::NewStub(channels_->all.back()));
  }
}

Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientSettings& settings) {
  auto client = std::unique_ptr<Client>(new Client(settings));
  EDDY_RETURN_IF_ERROR(client->AskModel());
  return client;
}

absl::Status Client::AskModel() {
  const auto stub = v1::ModelService::NewStub(channels_->all[0]);
  const auto deadline = absl::ToChronoTime(absl::Now() + absl::Seconds(10));
  grpc::ClientContext context, status_context;
  context.set_deadline(deadline);
  status_context.set_deadline(deadline);
  v1::GetModelRequest request;
  request.set_model(settings_.model);
  v1::GetModelResponse answer;
  grpc::Status asked = stub->GetModel(&context, request, &answer);
  v1::GetServerStatusResponse server;
  if (asked.ok()) asked = stub->GetServerStatus(&status_context, {}, &server);
  if (!asked.ok()) {
    return absl::UnavailableError(absl::StrCat(settings_.target, ": ", CodeName(asked.error_code()),
                                               ": ", asked.error_message()));
  }
  const v1::Model& model = answer.model();
  model_ = {.name = model.name(),
            .type = model.model_type(),
            .parameters = model.parameters(),
            .vocabulary = model.vocab_size(),
            .state_bytes = model.state_bytes_per_sequence(),
            .slots = model.limits().max_sequences(),
            .server_version = server.version() + " " + server.commit()};
  if (model_.vocabulary == 0) {
    return absl::InvalidArgumentError(absl::StrCat(settings_.target, ": vocab_size is 0"));
  }
  return absl::OkStatus();
}

void Client::Start(CallRecord* record, std::function<void()> done) {
  const PlannedCall& plan = record->plan;
  v1::GenerateRequest request;
  request.set_model(settings_.model);
  std::mt19937_64 rng(plan.seed);
  auto* const ids = request.mutable_token_ids()->mutable_ids();
  ids->Reserve(plan.prompt_tokens);
  for (int i = 0; i < plan.prompt_tokens; ++i) {
    ids->Add(static_cast<uint32_t>(rng() % model_.vocabulary));
  }
  request.mutable_sampling()->set_seed(rng());
  if (settings_.temperature.has_value()) {
    request.mutable_sampling()->set_temperature(static_cast<float>(*settings_.temperature));
  }
  request.mutable_stopping()->set_max_new_tokens(static_cast<uint32_t>(plan.max_new_tokens));
  request.mutable_stopping()->set_ignore_eos(settings_.ignore_eos);
  const size_t stub = channels_->next++ % channels_->stubs.size();
  new Call(channels_->stubs[stub].get(), std::move(request), settings_, record, std::move(done));
}

}  // namespace eddy::loadtest
