#include "server/trace_exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"
#include "server/ids.h"

namespace eddy {
namespace {

std::string TracesUrl(std::string endpoint) {
  while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
  return endpoint + "/v1/traces";
}

bool IsWorthATry(int status) {
  return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;
}

// Between half of it and all.
absl::Duration SomeOf(absl::Duration pause) {
  const double share = static_cast<double>(RandomSeed() >> 11) * 0x1p-53;
  return pause * (0.5 + 0.5 * share);
}

}  // namespace

TraceExporter::TraceExporter(const Options& options, const Clock* clock, TraceObserver* observer)
    : options_(options),
      clock_(clock),
      observer_(observer),
      post_(TracesUrl(options.endpoint)),
      thread_([this] {
        NameThisThread("traces");
        Run();
      }) {}

TraceExporter::~TraceExporter() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    drained_by_ = clock_->Steady() + options_.drain_timeout;
    news_.NotifyOne();
  }
  post_.Wake();
  thread_.join();
}

void TraceExporter::Put(CallRecord call) {
  const int spans = NumSpans(call);
  {
    MutexLock lock(&mu_);
    if (std::ssize(queue_) < options_.queue_calls_max) {
      if (queue_.empty()) first_put_ = clock_->Steady();
      queue_.push_back(std::move(call));
      if (queue_.size() == 1 || std::ssize(queue_) == options_.batch_calls_max) news_.NotifyOne();
      return;
    }
  }
  observer_->SpansLost(TraceObserver::Lost::kQueueFull, spans);
}

void TraceExporter::Run() {
  for (Batch batch = Take(); !batch.empty(); batch = Take()) Send(batch);
}

TraceExporter::Batch TraceExporter::Take() {
  MutexLock lock(&mu_);
  while (!closed_ && std::ssize(queue_) < options_.batch_calls_max) {
    if (queue_.empty()) {
      news_.Wait(&mu_);
      continue;
    }
    const absl::Duration left = first_put_ + options_.batch_delay - clock_->Steady();
    if (left <= absl::ZeroDuration()) break;
    news_.WaitFor(&mu_, left);
  }
  const auto end =
      queue_.begin() + std::min(std::ssize(queue_), std::ptrdiff_t{options_.batch_calls_max});
  Batch batch(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  return batch;
}

void TraceExporter::Send(const Batch& batch) {
  std::vector<Span> all;
  for (const CallRecord& call : batch) {
    std::vector<Span> spans = SpansOf(call, options_.model_name);
    std::move(spans.begin(), spans.end(), std::back_inserter(all));
  }
  const int spans = static_cast<int>(all.size());
  if (lost_) return observer_->SpansLost(TraceObserver::Lost::kShutdown, spans);
  const std::string body = ToOtlpJson(options_.resource, all);
  const absl::Duration give_up_at = clock_->Steady() + options_.retry_time;
  for (absl::Duration pause = options_.retry_first;; pause = pause * 2) {
    const absl::Duration began = clock_->Steady();
    const HttpPost::Answer answer = post_.Send(body, [&] { return TimeLeft(began); });
    if (answer.status >= 200 && answer.status < 300) {
      return Taken(spans, std::min(RejectedSpans(answer.body), spans));
    }
    if (!IsWorthATry(answer.status)) return GiveUp(TraceObserver::Lost::kRefused, spans, answer);
    if (closed()) {
      lost_ = true;
      return GiveUp(TraceObserver::Lost::kShutdown, spans, answer);
    }
    const bool told = answer.retry_after.has_value();
    const absl::Duration wait = told ? std::min(*answer.retry_after, options_.throttle_longest)
                                     : SomeOf(std::min(pause, options_.retry_longest));
    const bool too_late = clock_->Steady() + wait > give_up_at;
    if (too_late) GiveUp(TraceObserver::Lost::kUnreachable, spans, answer);
    if (told || !too_late) Pause(wait);
    if (too_late) return;
  }
}

absl::Duration TraceExporter::TimeLeft(absl::Duration began) {
  MutexLock lock(&mu_);
  return std::min(began + options_.answer_timeout, drained_by_) - clock_->Steady();
}

bool TraceExporter::closed() {
  MutexLock lock(&mu_);
  return closed_;
}

void TraceExporter::Pause(absl::Duration time) {
  const absl::Duration until = clock_->Steady() + time;
  MutexLock lock(&mu_);
  while (!closed_) {
    const absl::Duration left = until - clock_->Steady();
    if (left <= absl::ZeroDuration()) return;
    news_.WaitFor(&mu_, left);
  }
}

void TraceExporter::Taken(int spans, int rejected) {
  observer_->SpansSent(spans - rejected);
  if (rejected > 0) {
    observer_->SpansLost(TraceObserver::Lost::kRefused, rejected);
    Log(LogLevel::kWarning, "trace_spans_rejected", {{"spans", rejected}});
  }
  if (!works_) Log(LogLevel::kInfo, "trace_export_works_again");
  works_ = true;
}

void TraceExporter::GiveUp(TraceObserver::Lost why, int spans, const HttpPost::Answer& answer) {
  observer_->SpansLost(why, spans);
  if (works_) {
    Log(LogLevel::kWarning, "trace_export_fails",
        {{"spans", spans}, {"http_status", answer.status}, {"error", answer.error}});
  }
  works_ = false;
}

}  // namespace eddy
