#include "server/metrics.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/version.h"
#include "eddy/v1/generation.pb.h"
#include "eddy/v1/model.pb.h"
#include "eddy/v1/session.pb.h"

namespace eddy {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Bounds = std::vector<double>;

constexpr int64_t kNoneWaits = std::numeric_limits<int64_t>::max();

// Bounds in seconds. Those of first tokens and of whole calls are the usual ones of model servers;
// those between tokens start at 0.5 ms, since recurrent models are fast.
const Bounds kFirstToken = {.001, .0025, .005, .01, .02, .04, .06, .08, .1, .25,
                            .5,   .75,   1,    2.5, 5,   7.5, 10,  20,  40, 80};
const Bounds kInterToken = {.0005, .001, .0015, .002, .003, .004, .006, .008, .01, .015, .02, .025,
                            .03,   .04,  .05,   .075, .1,   .15,  .2,   .3,   .5,  1,    2.5};
const Bounds kCall = {.005, .01, .025, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,
                      2.5,  5,   10,   15,  20, 30, 40, 60, 120, 240, 480};
const Bounds kStep = {.0002, .0005, .001, .002, .003, .005, .0075, .01,
                      .015,  .02,   .03,  .05,  .1,   .2,   .5,    1};
const Bounds kRpc = {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};

constexpr std::string_view kFailureReasons[] = {
    "INVALID_FIELD",    "PROMPT_EMPTY",     "PROMPT_TOO_LONG", "NEVER_FITS",    "NO_TOKENIZER",
    "MODEL_NOT_FOUND",  "FEATURE_DISABLED", "QUEUE_FULL",      "DEADLINE",      "REQUEST_TIME_MAX",
    "CANCELLED",        "NOT_READY",        "DRAINING",        "DRAIN_TIMEOUT", "DEVICE_LOST",
    "STATE_NOT_FINITE", "SLOW_READER",      "INTERNAL",
};

// In the order of FinishLabel and MethodLabel.
constexpr const char* kFinishLabels[] = {"eos", "length", "stop_string", "stop_token",
                                         "time_limit"};
constexpr const char* kMethodLabels[] = {"generate", "generate_stream", "score"};

// In the order of gRPC's codes, in the spelling of go-grpc-middleware.
constexpr const char* kCodeLabels[RpcMetrics::kCodes] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

// 1, 2, 5, 10, 20, 50, ... below `limit`, then `limit`.
Bounds OneTwoFive(int limit) {
  Bounds bounds;
  for (double decade = 1; decade < limit; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (decade * step < limit) bounds.push_back(decade * step);
    }
  }
  bounds.push_back(limit);
  return bounds;
}

// 1, 2, 4, ... below `limit`, then `limit`.
Bounds PowersOfTwo(int limit) {
  Bounds bounds;
  for (double bound = 1; bound < limit; bound *= 2) bounds.push_back(bound);
  bounds.push_back(limit);
  return bounds;
}

const char* RpcType(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) {
    return method.server_streaming() ? "bidi_stream" : "client_stream";
  }
  return method.server_streaming() ? "server_stream" : "unary";
}

}  // namespace

HistogramMetric::HistogramMetric(Family<Histogram>* family, const Labels& labels, Bounds bounds)
    : bounds_(std::move(bounds)), histogram_(&family->Add(labels, bounds_)) {}

void HistogramMetric::ObserveAll(std::span<const double> values) {
  if (values.empty()) return;
  Bounds counts(bounds_.size() + 1, 0.0);
  double sum = 0;
  for (const double value : values) {
    counts[std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin()] += 1;
    sum += value;
  }
  histogram_->ObserveMultiple(counts, sum);
}

Metrics::Metrics(const Options& options)
    : model_name_(options.model_name),
      registry_(std::make_shared<prometheus::Registry>()),
      oldest_waiting_ns_(kNoneWaits) {
  RegisterEngine(options);
  RegisterCalls();
  RegisterCallSizes(options);
  RegisterServer();
  RegisterRpcs();
}

Counter* Metrics::AddCounter(const char* name, const char* help) {
  return &BuildCounter()
              .Name(name)
              .Help(help)
              .Register(*registry_)
              .Add({{"model_name", model_name_}});
}

Gauge* Metrics::AddGauge(const char* name, const char* help) {
  return &BuildGauge()
              .Name(name)
              .Help(help)
              .Register(*registry_)
              .Add({{"model_name", model_name_}});
}

std::unique_ptr<HistogramMetric> Metrics::AddHistogram(const char* name, const char* help,
                                                       Bounds bounds) {
  auto& family = BuildHistogram().Name(name).Help(help).Register(*registry_);
  return std::make_unique<HistogramMetric>(&family, Labels{{"model_name", model_name_}},
                                           std::move(bounds));
}

void Metrics::RegisterEngine(const Options& options) {
  running_ = AddGauge("eddy_num_requests_running", "Sequences that hold a state slot.");
  waiting_ = AddGauge("eddy_num_requests_waiting", "Requests that wait for a state slot.");
  waiting_prompt_tokens_ =
      AddGauge("eddy_waiting_prompt_tokens", "Prompt tokens of the requests that wait.");
  slots_used_ = AddGauge("eddy_state_slots_used", "State slots in use.");
  slots_total_ = AddGauge("eddy_state_slots", "State slots there are.");
  slot_usage_ = AddGauge("eddy_state_slot_usage_ratio", "Share of the state slots in use, 0 to 1.");
  pages_used_ = AddGauge("eddy_kv_pages_used", "Attention pages in use.");
  pages_total_ = AddGauge("eddy_kv_pages", "Attention pages there are.");
  prompt_tokens_ = AddCounter("eddy_prompt_tokens_total", "Prompt tokens read by the model.");
  generation_tokens_ = AddCounter("eddy_generation_tokens_total", "Tokens generated.");
  host_seconds_ =
      AddCounter("eddy_engine_host_seconds_total", "Time of steps outside the device's work.");
  device_seconds_ = AddCounter("eddy_engine_device_wait_seconds_total",
                               "Time of steps spent waiting for the device's work.");
  recorded_steps_ = AddCounter("eddy_engine_recorded_steps_total",
                               "Steps that ran from a record (a CUDA graph) of such steps.");
  not_finite_ = AddCounter("eddy_state_nonfinite_total",
                           "Sequences ended because their numbers became NaN or infinite.");

  auto& fills = BuildCounter()
                    .Name("eddy_state_fills_total")
                    .Help("State slots filled at admission, by where the state came from.")
                    .Register(*registry_);
  fills_initial_ = &fills.Add({{"model_name", model_name_}, {"from", "initial"}});
  fills_checkpoint_ = &fills.Add({{"model_name", model_name_}, {"from", "checkpoint"}});

  auto& steps = BuildHistogram()
                    .Name("eddy_engine_step_duration_seconds")
                    .Help("Time of one engine step, by what its rows were for.")
                    .Register(*registry_);
  const auto step = [&](const char* phase) {
    return std::make_unique<HistogramMetric>(
        &steps, Labels{{"model_name", model_name_}, {"phase", phase}}, kStep);
  };
  step_prefill_ = step("prefill");
  step_decode_ = step("decode");
  step_mixed_ = step("mixed");
  step_rows_ = AddHistogram("eddy_engine_step_rows", "Tokens fed in one engine step.",
                            PowersOfTwo(options.max_rows_per_step));
  step_sequences_ = AddHistogram("eddy_engine_step_sequences", "Sequences fed in one engine step.",
                                 PowersOfTwo(options.max_rows_per_step));
}

void Metrics::RegisterCalls() {
  auto& requests = BuildCounter()
                       .Name("eddy_requests_total")
                       .Help("Calls accepted, by method.")
                       .Register(*registry_);
  for (size_t i = 0; i < requests_.size(); ++i) {
    requests_[i] = &requests.Add({{"model_name", model_name_}, {"method", kMethodLabels[i]}});
  }
  auto& successes = BuildCounter()
                        .Name("eddy_request_success_total")
                        .Help(
                            "Accepted calls that ended well, by why they ended; those that only "
                            "score end by length.")
                        .Register(*registry_);
  for (size_t i = 0; i < successes_.size(); ++i) {
    successes_[i] =
        &successes.Add({{"model_name", model_name_}, {"finish_reason", kFinishLabels[i]}});
  }
  auto& failures = BuildCounter()
                       .Name("eddy_request_failures_total")
                       .Help("Calls refused or cut off, by the reason of their error.")
                       .Register(*registry_);
  for (const std::string_view reason : kFailureReasons) {
    const std::string label = absl::AsciiStrToLower(std::string(reason));
    failures_[std::string(reason)] =
        &failures.Add({{"model_name", model_name_}, {"reason", label}});
  }
  other_failures_ = &failures.Add({{"model_name", model_name_}, {"reason", "other"}});
}

void Metrics::RegisterCallSizes(const Options& options) {
  first_token_ =
      AddHistogram("eddy_time_to_first_token_seconds",
                   "Arrival of a call to its first token, as handed to delivery.", kFirstToken);
  inter_token_ = AddHistogram("eddy_inter_token_latency_seconds",
                              "Time between successive tokens of one sequence.", kInterToken);
  time_per_output_token_ =
      AddHistogram("eddy_request_time_per_output_token_seconds",
                   "Mean time per token after the first, one value per sequence.", kInterToken);
  total_time_ =
      AddHistogram("eddy_e2e_request_latency_seconds", "Arrival of a call to its end.", kCall);
  queue_time_ =
      AddHistogram("eddy_request_queue_time_seconds", "Arrival of a call to its admission.", kCall);
  prefill_time_ = AddHistogram("eddy_request_prefill_time_seconds",
                               "Admission of a call to its first token.", kCall);
  decode_time_ =
      AddHistogram("eddy_request_decode_time_seconds", "First token of a call to its last.", kCall);
  prompt_lengths_ = AddHistogram("eddy_request_prompt_tokens", "Prompt tokens of a call.",
                                 OneTwoFive(options.max_prompt_tokens));
  generation_lengths_ =
      AddHistogram("eddy_request_generation_tokens", "Tokens generated for a call.",
                   OneTwoFive(options.max_new_tokens));
  max_new_tokens_ =
      AddHistogram("eddy_request_params_max_new_tokens", "Tokens that a call asked for at most.",
                   OneTwoFive(options.max_new_tokens));
}

void Metrics::RegisterServer() {
  const auto gauge = [&](const char* name, const char* help) {
    return &BuildGauge().Name(name).Help(help).Register(*registry_);
  };
  const auto counter = [&](const char* name, const char* help) {
    return &BuildCounter().Name(name).Help(help).Register(*registry_).Add({});
  };
  outbox_bytes_ =
      &gauge("eddy_stream_outbox_bytes", "Text that waits for its readers, in bytes.")->Add({});
  coalesced_ = counter("eddy_stream_coalesced_messages_total",
                       "Messages that carried what several steps had made.");
  stalls_ =
      counter("eddy_stream_stalls_total", "Streams cut off because their reader took nothing.");
  draining_ = &gauge("eddy_draining", "1 from the signal to end on, else 0.")->Add({});
  load_seconds_ = &gauge("eddy_model_load_duration_seconds", "Time that loading the model took.")
                       ->Add({{"model_name", model_name_}});
  Family<Gauge>* memory =
      gauge("eddy_device_memory_bytes", "Memory of the device held by the server, by what for.");
  for (const char* kind : {"weights", "state", "kv", "workspace"}) {
    device_memory_[kind] = &memory->Add({{"kind", kind}});
  }
  model_info_ = gauge("eddy_model_info", "1; the labels say which model is loaded.");
  gauge("eddy_build_info", "1; the labels say which build this is.")
      ->Add({{"version", std::string(Version())}, {"commit", std::string(Commit())}})
      .Set(1);
}

void Metrics::RegisterRpcs() {
  auto& started = BuildCounter()
                      .Name("grpc_server_started_total")
                      .Help("RPCs started on the server.")
                      .Register(*registry_);
  auto& handled = BuildCounter()
                      .Name("grpc_server_handled_total")
                      .Help("RPCs completed on the server, whatever their status.")
                      .Register(*registry_);
  auto& received = BuildCounter()
                       .Name("grpc_server_msg_received_total")
                       .Help("RPC messages received on the server.")
                       .Register(*registry_);
  auto& sent = BuildCounter()
                   .Name("grpc_server_msg_sent_total")
                   .Help("RPC messages sent by the server.")
                   .Register(*registry_);
  auto& handling = BuildHistogram()
                       .Name("grpc_server_handling_seconds")
                       .Help("Time from the start of an RPC to its status.")
                       .Register(*registry_);
  for (const google::protobuf::FileDescriptor* file :
       {v1::GenerateRequest::descriptor()->file(), v1::Model::descriptor()->file(),
        v1::Session::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        const google::protobuf::MethodDescriptor& method = *service.method(m);
        const Labels labels = {{"grpc_type", RpcType(method)},
                               {"grpc_service", service.full_name()},
                               {"grpc_method", method.name()}};
        RpcMetrics& rpc = rpcs_["/" + service.full_name() + "/" + method.name()];
        rpc.started = &started.Add(labels);
        rpc.received = &received.Add(labels);
        rpc.sent = &sent.Add(labels);
        rpc.handling = std::make_unique<HistogramMetric>(&handling, labels, kRpc);
        for (int code = 0; code < RpcMetrics::kCodes; ++code) {
          Labels with_code = labels;
          with_code["grpc_code"] = kCodeLabels[code];
          rpc.handled[code] = &handled.Add(with_code);
        }
      }
    }
  }
}

void Metrics::SetModel(const ModelFigures& model) {
  slots_total_->Set(model.slots_total);
  pages_total_->Set(model.pages_total);
  device_memory_.at("weights")->Set(static_cast<double>(model.weight_bytes));
  device_memory_.at("state")->Set(static_cast<double>(model.state_bytes));
  device_memory_.at("kv")->Set(static_cast<double>(model.kv_bytes));
  device_memory_.at("workspace")->Set(static_cast<double>(model.workspace_bytes));
  load_seconds_->Set(absl::ToDoubleSeconds(model.load_time));
  model_info_
      ->Add({{"model_name", model_name_},
             {"model_type", model.model_type},
             {"state_type", model.state_type},
             {"record_bytes", std::to_string(model.record_bytes)}})
      .Set(1);
}

void Metrics::ObserveStep(const StepStats& stats) {
  running_->Set(stats.running);
  waiting_->Set(stats.waiting);
  waiting_prompt_tokens_->Set(static_cast<double>(stats.waiting_prompt_tokens));
  oldest_waiting_ns_.store(stats.oldest_waiting == absl::InfiniteFuture()
                               ? kNoneWaits
                               : absl::ToUnixNanos(stats.oldest_waiting),
                           std::memory_order_relaxed);
  slots_used_->Set(stats.slots_used);
  slots_total_->Set(stats.slots_total);
  slot_usage_->Set(
      stats.slots_total == 0 ? 0 : static_cast<double>(stats.slots_used) / stats.slots_total);
  pages_used_->Set(stats.pages_used);
  pages_total_->Set(stats.pages_total);
  not_finite_->Increment(stats.not_finite);
  fills_initial_->Increment(stats.fills - stats.fills_from_checkpoint);
  fills_checkpoint_->Increment(stats.fills_from_checkpoint);
  if (stats.rows == 0) return;  // a step that only ended or saved something

  prompt_tokens_->Increment(stats.prompt_rows);
  generation_tokens_->Increment(stats.sampled);
  host_seconds_->Increment(absl::ToDoubleSeconds(stats.step_time - stats.device_time));
  device_seconds_->Increment(absl::ToDoubleSeconds(stats.device_time));
  recorded_steps_->Increment(stats.recorded ? 1 : 0);
  step_rows_->Observe(stats.rows);
  step_sequences_->Observe(stats.sequences);
  HistogramMetric& step = stats.prompt_rows == 0            ? *step_decode_
                          : stats.prompt_rows == stats.rows ? *step_prefill_
                                                            : *step_mixed_;
  step.Observe(stats.step_time);
}

void Metrics::CountRequest(MethodLabel method, int max_new_tokens) {
  requests_[static_cast<size_t>(method)]->Increment();
  if (max_new_tokens > 0) max_new_tokens_->Observe(max_new_tokens);
}

void Metrics::CountFinished(const FinishedCall& call) {
  successes_[static_cast<size_t>(call.finish)]->Increment();
  total_time_->Observe(call.total);
  queue_time_->Observe(call.queue);
  prefill_time_->Observe(call.prefill);
  prompt_lengths_->Observe(call.prompt_tokens);
  if (call.generated_tokens == 0) return;
  decode_time_->Observe(call.decode);
  generation_lengths_->Observe(call.generated_tokens);
  if (call.generated_tokens > 1) {
    time_per_output_token_->Observe(call.decode / (call.generated_tokens - 1));
  }
}

void Metrics::CountFailure(std::string_view reason) {
  const auto it = failures_.find(reason);
  (it == failures_.end() ? other_failures_ : it->second)->Increment();
}

std::span<const std::string_view> Metrics::FailureReasons() { return kFailureReasons; }

absl::Time Metrics::oldest_waiting() const {
  const int64_t ns = oldest_waiting_ns_.load(std::memory_order_relaxed);
  return ns == kNoneWaits ? absl::InfiniteFuture() : absl::FromUnixNanos(ns);
}

RpcMetrics* Metrics::rpc(std::string_view method) {
  const auto it = rpcs_.find(method);
  return it == rpcs_.end() ? nullptr : &it->second;
}

}  // namespace eddy
