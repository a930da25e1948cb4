// The server's own figures of a run: its /metrics, read at the beginning and at the end of the
// steady window by a thread of its own, so that no send waits for it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace eddy::loadtest {

// Value of each series, by its name and labels as they are written in the page.
using Metrics = std::map<std::string, double>;

// Of Prometheus' text format. InvalidArgument with the line that is none.
absl::StatusOr<Metrics> ParseMetrics(const std::string& page);

// What happened between: of counters, sums and counts the differences; of gauges (all other names)
// the value at the end. Buckets are left out.
Metrics Difference(const Metrics& before, const Metrics& after);

// Reads twice. Start and Finish are called by one thread.
class WindowScraper {
 public:
  struct Result {
    double begin_s = 0, end_s = 0;  // when it was read, after Start
    Metrics change = {};
  };
  // Gets the page; called by the scraper's thread.
  using Get = std::function<absl::StatusOr<std::string>()>;

  explicit WindowScraper(Get get) : get_(std::move(get)) {}
  ~WindowScraper();

  // Reads so many seconds after now: at once for a begin_s of 0, in Finish for an infinite end_s.
  void Start(double begin_s, double end_s);
  // Ends both waits, reads what has not been read yet, and returns what changed; or the first
  // error. REQUIRES: Start.
  absl::StatusOr<Result> Finish();

 private:
  void Run(double begin_s, double end_s) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitFinish(int64_t until_us) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Metrics> Read();

  const Get get_;
  std::thread thread_;
  absl::StatusOr<Result> result_ = Result{};  // of the thread until it is joined

  Mutex mu_;
  CondVar news_;
  bool finish_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace eddy::loadtest
