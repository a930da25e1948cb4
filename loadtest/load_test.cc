#include "loadtest/load_test.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "loadtest/http_get.h"
#include "loadtest/result.h"
#include "loadtest/runner.h"
#include "loadtest/scrape.h"

namespace eddy::loadtest {
namespace {

constexpr absl::Duration kScrapeTimeout = absl::Seconds(5);
// Of the closed loop that finds the saturated rate.
constexpr int kSweepConcurrency = 64;

double ProcessorSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class LoadTest {
 public:
  LoadTest(const Options& options, Client* client, std::FILE* out, std::FILE* progress)
      : options_(options), client_(client), out_(out), progress_(progress) {}

  absl::StatusOr<LoadTestResult> Run() {
    if (options_.save_result) {
      file_.open(options_.result_filename, std::ios::trunc);
      EDDY_RETURN_IF_ERROR(CheckFile());
    }
    EDDY_RETURN_IF_ERROR(WarmUp());
    EDDY_RETURN_IF_ERROR(options_.sweep ? Sweep() : RunPoints());
    return std::move(result_);
  }

 private:
  absl::Status CheckFile() {
    return file_ ? absl::OkStatus()
                 : absl::UnavailableError(
                       absl::StrCat(options_.result_filename, ": cannot be written"));
  }

  CallSource Source(const Point& point, int64_t calls_max, double seconds) const {
    WorkloadSettings workload = options_.workload;
    workload.seed = point.seed;
    if (!options_.trace.empty() && calls_max == 0) return CallSource(workload, options_.trace);
    if (!options_.trace.empty()) {
      const auto calls = std::min<int64_t>(calls_max, static_cast<int64_t>(options_.trace.size()));
      return CallSource(workload, {options_.trace.begin(), options_.trace.begin() + calls});
    }
    Arrivals::Settings arrivals = {.process = options_.process,
                                   .burstiness = options_.burstiness,
                                   .ramp_from = options_.ramp_from,
                                   .calls_max = calls_max,
                                   .seconds = seconds,
                                   .seed = point.seed};
    if (point.request_rate.has_value()) arrivals.rate = *point.request_rate;
    return CallSource(workload, arrivals);
  }

  // Prompts that no run asks for, one after the other.
  absl::Status WarmUp() {
    if (options_.num_warmups == 0) return absl::OkStatus();
    Runner runner(client_, nullptr);
    Point point = {.max_concurrency = 1, .closed_loop = true, .seed = ~options_.seed};
    CallSource source = Source(point, options_.num_warmups, /*seconds=*/0);
    const RunResult run = runner.Run(&source, {.closed_loop = true, .concurrency_max = 1});
    for (const CallRecord& call : run.calls) {
      if (call.ok() || call.cancelled_here) continue;
      return absl::UnavailableError(
          absl::StrCat("a warm-up call failed: ", CodeName(call.code), ": ", call.error));
    }
    return absl::OkStatus();
  }

  absl::Status RunPoints() {
    std::vector<Point> points;
    const bool closed = options_.request_rates.empty() && options_.trace.empty();
    if (!options_.request_rates.empty()) {
      const int most = options_.max_concurrencies.empty() ? 0 : options_.max_concurrencies[0];
      for (const double rate : options_.request_rates) {
        points.push_back({.request_rate = rate, .max_concurrency = most});
      }
    } else if (!options_.max_concurrencies.empty()) {
      for (const int most : options_.max_concurrencies) {
        points.push_back({.max_concurrency = most, .closed_loop = closed});
      }
    } else {
      points.push_back({});
    }
    for (const Point& point : points) EDDY_RETURN_IF_ERROR(Repeat(point));
    return absl::OkStatus();
  }

  absl::Status Sweep() {
    const int most =
        options_.max_concurrencies.empty() ? kSweepConcurrency : options_.max_concurrencies[0];
    EDDY_RETURN_IF_ERROR(Repeat({.max_concurrency = most, .closed_loop = true}));
    double saturated = 0;
    for (const Summary& summary : result_.runs) saturated += summary.request_throughput;
    saturated /= static_cast<double>(result_.runs.size());
    if (!(saturated > 0)) {
      return absl::UnavailableError("no call of the closed loop ended well: nothing to sweep");
    }
    bool before = false;
    for (const double fraction : options_.sweep_fractions) {
      EDDY_RETURN_IF_ERROR(Repeat({.request_rate = fraction * saturated}));
      // One such point may be a hiccup of the machine.
      if (before && result_.runs.back().saturated) break;
      before = result_.runs.back().saturated;
    }
    return absl::OkStatus();
  }

  absl::Status Repeat(Point point) {
    for (int i = 0; i < options_.repeats; ++i) {
      point.seed = options_.seed + static_cast<uint64_t>(i);
      EDDY_RETURN_IF_ERROR(RunOnce(point));
    }
    return absl::OkStatus();
  }

  absl::Status RunOnce(Point point) {
    point.date = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
    std::vector<std::unique_ptr<WindowScraper>> scrapers = StartScrapers();
    Runner runner(client_, [this](const RunProgress& progress) {
      if (progress_ != nullptr) std::fputs(ToText(progress).c_str(), progress_);
    });
    CallSource source = Source(point, options_.num_prompts, options_.seconds);
    const double processor = ProcessorSeconds();
    const RunResult run = runner.Run(&source, {.closed_loop = point.closed_loop,
                                               .concurrency_max = point.max_concurrency,
                                               .seconds = options_.seconds});
    const double wall = static_cast<double>(run.ended_us - run.began_us) / 1e6;
    point.client_cpu_share =
        (ProcessorSeconds() - processor) / wall / std::max(1u, std::thread::hardware_concurrency());
    for (size_t i = 0; i < scrapers.size(); ++i) {
      point.servers.emplace_back(options_.metrics_urls[i], scrapers[i]->Finish());
    }
    const Summary summary = Summarize(run, options_.summary);
    std::fputs(ToText(options_, point, summary).c_str(), out_);
    for (const auto& [url, window] : point.servers) {
      if (!window.ok()) {
        std::fprintf(out_, "metrics: %s\n", std::string(window.status().message()).c_str());
      }
    }
    std::fflush(out_);
    if (options_.save_result) {
      file_ << ToJson(options_, client_->model(), point, summary, run).dump() << std::endl;
      EDDY_RETURN_IF_ERROR(CheckFile());
    }
    result_.runs.push_back(summary);
    return absl::OkStatus();
  }

  // Over the steady window where it is known beforehand, else over the whole run.
  std::vector<std::unique_ptr<WindowScraper>> StartScrapers() const {
    const double cut = options_.summary.warmup_cut, seconds = options_.seconds;
    std::vector<std::unique_ptr<WindowScraper>> scrapers;
    for (const std::string& url : options_.metrics_urls) {
      scrapers.push_back(
          std::make_unique<WindowScraper>([url] { return HttpGet(url, kScrapeTimeout); }));
      scrapers.back()->Start(seconds * cut, seconds > 0 ? seconds * (1 - cut)
                                                        : std::numeric_limits<double>::infinity());
    }
    return scrapers;
  }

  const Options& options_;
  Client* const client_;
  std::FILE* const out_;
  std::FILE* const progress_;
  std::ofstream file_;
  LoadTestResult result_;
};

}  // namespace

absl::StatusOr<LoadTestResult> RunLoadTest(const Options& options, Client* client, std::FILE* out,
                                           std::FILE* progress) {
  return LoadTest(options, client, out, progress).Run();
}

}  // namespace eddy::loadtest
