#include "server/live_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

namespace eddy {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily OneValue(const char* name, const char* help, MetricType type, double value,
                      std::vector<ClientMetric::Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return {.name = name, .help = help, .type = type, .metric = {metric}};
}

// Fields of /proc/self/stat, proc(5).
struct ProcessStat {
  double cpu_ticks = 0;    // user and system
  double start_ticks = 0;  // after boot
  double virtual_bytes = 0;
  double resident_pages = 0;
};

std::optional<ProcessStat> ReadProcessStat() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the program's name in parentheses and may hold anything, so counting starts
  // after the last one. The word there is field 3.
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  ProcessStat stat;
  std::string field;
  for (int number = 3; number <= 24; ++number) {
    if (!(fields >> field)) return std::nullopt;
    const double value = std::strtod(field.c_str(), nullptr);
    if (number == 14 || number == 15) stat.cpu_ticks += value;
    if (number == 22) stat.start_ticks = value;
    if (number == 23) stat.virtual_bytes = value;
    if (number == 24) stat.resident_pages = value;
  }
  return stat;
}

// Seconds since the epoch.
std::optional<double> ReadBootTime() {
  std::ifstream file("/proc/stat");
  std::string word;
  while (file >> word) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return std::nullopt;
}

std::optional<double> CountOpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return std::nullopt;
  // One of them is the folder that is being read.
  return static_cast<double>(std::distance(begin(files), end(files)) - 1);
}

void AppendProcess(std::vector<MetricFamily>* families) {
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (const std::optional<ProcessStat> stat = ReadProcessStat()) {
    families->push_back(OneValue("process_cpu_seconds_total",
                                 "User and system CPU time in seconds.", MetricType::Counter,
                                 stat->cpu_ticks / ticks_per_second));
    families->push_back(
        OneValue("process_resident_memory_bytes", "Resident memory in bytes.", MetricType::Gauge,
                 stat->resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE))));
    families->push_back(OneValue("process_virtual_memory_bytes", "Virtual memory in bytes.",
                                 MetricType::Gauge, stat->virtual_bytes));
    if (const std::optional<double> boot = ReadBootTime()) {
      families->push_back(
          OneValue("process_start_time_seconds", "Start of the process in seconds since the epoch.",
                   MetricType::Gauge, *boot + stat->start_ticks / ticks_per_second));
    }
  }
  if (const std::optional<double> open = CountOpenFiles()) {
    families->push_back(
        OneValue("process_open_fds", "Open file descriptors.", MetricType::Gauge, *open));
  }
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families->push_back(OneValue("process_max_fds", "Most file descriptors that may be open.",
                                 MetricType::Gauge, static_cast<double>(limit.rlim_cur)));
  }
}

}  // namespace

std::vector<MetricFamily> LiveMetrics::Collect() const {
  const absl::Time oldest = metrics_->oldest_waiting();
  // Clocks may differ by a little between threads; an age is never negative.
  const double age = oldest == absl::InfiniteFuture()
                         ? 0
                         : std::max(0.0, absl::ToDoubleSeconds(clock_->Now() - oldest));
  std::vector<MetricFamily> families = {OneValue(
      "eddy_oldest_waiting_seconds", "Age of the oldest request that waits; 0: none waits.",
      MetricType::Gauge, age, {{"model_name", metrics_->model_name()}})};
  AppendProcess(&families);
  return families;
}

}  // namespace eddy
