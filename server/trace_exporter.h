// Brings the spans of calls that are over to a collector, by OTLP over HTTP.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/http_post.h"
#include "server/trace_json.h"
#include "server/trace_spans.h"

namespace eddy {

// What becomes of spans; must not block. Any thread.
class TraceObserver {
 public:
  enum class Lost {
    kQueueFull,    // more came than the collector took
    kUnreachable,  // it was tried again and again, in vain
    kRefused,      // the collector did not want them
    kShutdown,     // not sent in the time that there was at the end
  };
  virtual ~TraceObserver() = default;
  virtual void SpansSent(int spans) = 0;
  virtual void SpansLost(Lost why, int spans) = 0;
};

// A bounded queue and one thread, which sends what it holds in batches. Thread-safe. However the
// collector fares, Put takes no longer: what does not fit is dropped and counted, whole calls at a
// time.
//
// A request is tried again after 429, 502, 503 and 504, and when there was no answer, as the
// protocol demands: after Retry-After, else after a pause that doubles each time. Where Retry-After
// is longer than a batch is kept, that is lost, and the next waits all the same. Other answers are
// final. Memory is bounded by queue_calls_max and batch_calls_max; a call takes about 1 KiB.
class TraceExporter {
 public:
  struct Options {
    std::string endpoint = {};  // http://host:port; /v1/traces is put behind it
    Resource resource = {};
    std::string model_name = {};
    int queue_calls_max = 2048;
    int batch_calls_max = 128;                          // sent at once when so many wait
    absl::Duration batch_delay = absl::Seconds(1);      // or when the first waited so long
    absl::Duration answer_timeout = absl::Seconds(10);  // for one try
    absl::Duration retry_first = absl::Seconds(1);      // the first pause, twice as long each time;
    absl::Duration retry_longest = absl::Seconds(30);   // up to this; up to a half is cut at random
    absl::Duration retry_time = absl::Minutes(1);       // from the first try of a batch to its last
    absl::Duration throttle_longest = absl::Minutes(5);  // what Retry-After may ask for
    absl::Duration drain_timeout = absl::Seconds(2);  // for all that is left when it is destroyed
  };

  // `clock` and `observer` outlive it.
  TraceExporter(const Options& options, const Clock* clock, TraceObserver* observer);
  // Sends what is left, each batch tried once and no more after the first that fails, within
  // drain_timeout.
  ~TraceExporter();

  void Put(CallRecord call) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Batch = std::vector<CallRecord>;

  void Run();
  // Waits until there is one; empty: closed, and nothing is left.
  Batch Take() ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const Batch& batch) ABSL_LOCKS_EXCLUDED(mu_);
  // What is left of one try that began at `began`.
  absl::Duration TimeLeft(absl::Duration began) ABSL_LOCKS_EXCLUDED(mu_);
  bool closed() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits, but not while it is closed.
  void Pause(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  void Taken(int spans, int rejected);
  void GiveUp(TraceObserver::Lost why, int spans, const HttpPost::Answer& answer);

  const Options options_;
  const Clock* const clock_;
  TraceObserver* const observer_;
  HttpPost post_;
  bool works_ = true;  // the thread's: whether the last batch was taken, so a fault is logged once
  bool lost_ = false;  // ": closed, and a try has failed since

  Mutex mu_;
  CondVar news_;
  std::deque<CallRecord> queue_ ABSL_GUARDED_BY(mu_);
  absl::Duration first_put_ ABSL_GUARDED_BY(mu_);  // steady; no call in queue_ is older
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration drained_by_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();  // steady
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace eddy
