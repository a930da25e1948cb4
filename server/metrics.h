// What the server tells about itself to Prometheus: every metric, made once, with every combination
// of labels at zero from the first scrape on. Any thread may call any function here; none looks up
// a family. What happens per token is handed in once per step, as lists.
//
// Knows no gRPC; rpc_metrics.h is the interceptor that fills `rpcs`, metrics_server.h the port.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "engine/stats.h"

namespace eddy {

// A histogram and its bounds, so that many values cost one lock.
class HistogramMetric {
 public:
  HistogramMetric(prometheus::Family<prometheus::Histogram>* family,
                  const prometheus::Labels& labels, std::vector<double> bounds);

  void Observe(double value) { histogram_->Observe(value); }
  void Observe(absl::Duration value) { histogram_->Observe(absl::ToDoubleSeconds(value)); }
  void ObserveAll(std::span<const double> values);

 private:
  std::vector<double> bounds_;  // ascending; the last bucket, to infinity, is not listed
  prometheus::Histogram* histogram_;
};

// The counters of one RPC method under the names of go-grpc-middleware, so that public dashboards
// work.
struct RpcMetrics {
  static constexpr int kCodes = 17;  // OK to UNAUTHENTICATED

  prometheus::Counter* started = nullptr;
  prometheus::Counter* received = nullptr;  // messages
  prometheus::Counter* sent = nullptr;      // messages
  std::array<prometheus::Counter*, kCodes> handled = {};
  std::unique_ptr<HistogramMetric> handling;
};

// How a call to the engine ended that ended well.
enum class FinishLabel { kEos, kLength, kStopString, kStopToken, kTimeLimit };
// The calls that reach the engine.
enum class MethodLabel { kGenerate, kGenerateStream, kScore };

// What is known of a call when it has ended well.
struct FinishedCall {
  FinishLabel finish = FinishLabel::kLength;
  absl::Duration total = absl::ZeroDuration();    // arrival to end
  absl::Duration queue = absl::ZeroDuration();    // the phases as in Timings
  absl::Duration prefill = absl::ZeroDuration();  // "
  absl::Duration decode = absl::ZeroDuration();   // ", first to last token
  int prompt_tokens = 0;
  int generated_tokens = 0;  // 0: a call that only scores; it has no decode time
};

// What is known once the model is loaded.
struct ModelFigures {
  std::string model_type;
  std::string state_type;
  int64_t record_bytes = 0;  // state of one sequence
  int slots_total = 0;       // without slot 0
  int pages_total = 0;
  int64_t weight_bytes = 0;  // the four: own allocations on the device
  int64_t state_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t workspace_bytes = 0;
  absl::Duration load_time = absl::ZeroDuration();
};

class Metrics {
 public:
  struct Options {
    std::string model_name;
    int max_prompt_tokens = 131072;  // the three: where the buckets of lengths end
    int max_new_tokens = 8192;
    int max_rows_per_step = 2048;
  };
  explicit Metrics(const Options& options);
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Once, after loading.
  void SetModel(const ModelFigures& model);
  void SetDraining() { draining_->Set(1); }

  // The engine's observer: once per step, on the engine thread.
  void ObserveStep(const StepStats& stats);

  // A call was accepted. `max_new_tokens` is 0 for Score, and then not observed.
  void CountRequest(MethodLabel method, int max_new_tokens);
  // Arrival to first token handed to delivery, and times between successive tokens of one
  // sequence, in seconds: all of one step in one call.
  void ObserveFirstTokens(std::span<const double> seconds) { first_token_->ObserveAll(seconds); }
  void ObserveInterToken(std::span<const double> seconds) { inter_token_->ObserveAll(seconds); }
  void CountFinished(const FinishedCall& call);
  // A call was refused or cut: `reason` as in ErrorInfo ("QUEUE_FULL"). A reason that is not in
  // FailureReasons() counts as "other".
  void CountFailure(std::string_view reason);
  // Those of this error table, as in ErrorInfo.
  static std::span<const std::string_view> FailureReasons();

  // Streams: text that waits for readers, all streams together; messages that carried more than one
  // step's text; streams cut off because their reader took nothing.
  void AddOutboxBytes(int64_t change) { outbox_bytes_->Increment(static_cast<double>(change)); }
  void CountCoalescedMessage() { coalesced_->Increment(); }
  void CountStall() { stalls_->Increment(); }

  // By full name, "/eddy.v1.GenerationService/Generate"; null for a method that is not ours.
  RpcMetrics* rpc(std::string_view method);

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }
  // Arrival of the oldest waiting request after the last step; InfiniteFuture: none waits. The page
  // computes its age when it is read, so it grows also while the engine is stuck.
  absl::Time oldest_waiting() const;
  const std::string& model_name() const { return model_name_; }

 private:
  void RegisterEngine(const Options& options);
  void RegisterCalls();
  void RegisterCallSizes(const Options& options);
  void RegisterServer();
  void RegisterRpcs();
  prometheus::Counter* AddCounter(const char* name, const char* help);
  prometheus::Gauge* AddGauge(const char* name, const char* help);
  std::unique_ptr<HistogramMetric> AddHistogram(const char* name, const char* help,
                                                std::vector<double> bounds);

  const std::string model_name_;
  const std::shared_ptr<prometheus::Registry> registry_;

  // Engine.
  prometheus::Gauge *running_ = nullptr, *waiting_ = nullptr, *waiting_prompt_tokens_ = nullptr;
  prometheus::Gauge *slots_used_ = nullptr, *slots_total_ = nullptr, *slot_usage_ = nullptr;
  prometheus::Gauge *pages_used_ = nullptr, *pages_total_ = nullptr;
  prometheus::Counter *prompt_tokens_ = nullptr, *generation_tokens_ = nullptr;
  prometheus::Counter *host_seconds_ = nullptr, *device_seconds_ = nullptr;
  prometheus::Counter* recorded_steps_ = nullptr;
  prometheus::Counter *fills_initial_ = nullptr, *fills_checkpoint_ = nullptr;
  prometheus::Counter* not_finite_ = nullptr;
  std::unique_ptr<HistogramMetric> step_prefill_, step_decode_, step_mixed_;
  std::unique_ptr<HistogramMetric> step_rows_, step_sequences_;
  std::atomic<int64_t> oldest_waiting_ns_;  // since the epoch; the greatest value: none waits

  // Calls.
  std::array<prometheus::Counter*, 3> requests_ = {};
  std::array<prometheus::Counter*, 5> successes_ = {};
  std::map<std::string, prometheus::Counter*, std::less<>> failures_;  // never changes
  prometheus::Counter* other_failures_ = nullptr;
  std::unique_ptr<HistogramMetric> first_token_, inter_token_, time_per_output_token_;
  std::unique_ptr<HistogramMetric> total_time_, queue_time_, prefill_time_, decode_time_;
  std::unique_ptr<HistogramMetric> prompt_lengths_, generation_lengths_, max_new_tokens_;

  // Server.
  prometheus::Gauge *outbox_bytes_ = nullptr, *draining_ = nullptr, *load_seconds_ = nullptr;
  prometheus::Counter *coalesced_ = nullptr, *stalls_ = nullptr;
  std::map<std::string, prometheus::Gauge*, std::less<>> device_memory_;  // by kind
  prometheus::Family<prometheus::Gauge>* model_info_ = nullptr;

  std::map<std::string, RpcMetrics, std::less<>> rpcs_;  // by full method name; never changes
};

}  // namespace eddy
