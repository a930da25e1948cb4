// All that the command line of eddy-loadtest says, checked. The flags are spelled as those of
// `vllm bench serve` where both have them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/arrivals.h"
#include "loadtest/client.h"
#include "loadtest/summary.h"
#include "loadtest/trace.h"
#include "loadtest/workload.h"

namespace eddy::loadtest {

struct Options {
  ClientSettings client = {};
  std::vector<std::string> metrics_urls = {};

  // Points of the run. Rates without a concurrency: open loops; concurrencies without a rate:
  // closed loops, one after the other.
  std::vector<double> request_rates = {};
  std::vector<int> max_concurrencies = {};
  bool sweep = false;  // shares of the rate at which the server saturates
  std::vector<double> sweep_fractions = {};
  Arrivals::Process process = Arrivals::Process::kGamma;
  double burstiness = 1;
  std::optional<double> ramp_from = {};
  std::vector<TraceEntry> trace = {};  // empty: drawn
  int64_t num_prompts = 0;             // 0: bounded by seconds alone
  double seconds = 0;                  // 0: bounded by num_prompts alone
  int num_warmups = 0;
  int repeats = 1;
  uint64_t seed = 0;

  WorkloadSettings workload = {};
  SummarySettings summary = {};
  std::vector<std::string> percentile_metrics = {};  // of ttft, tpot, itl, icl, e2el, normalized

  bool save_result = false, save_detailed = false;
  std::string result_filename = {};
  std::string label = {};
  std::map<std::string, std::string> metadata = {};
  bool progress = true;
  std::vector<std::string> changed = {};  // name=value of the flags that are not at their default
};

// What a program does after its command line was read.
struct ReadOptionsResult {
  std::optional<Options> options = {};  // nothing: it was answered
  std::string answer = {};              // for standard output: help or version
};

// `args` without the program's name. InvalidArgument with all faults, one a line.
absl::StatusOr<ReadOptionsResult> ReadOptions(const std::vector<std::string>& args);

}  // namespace eddy::loadtest
