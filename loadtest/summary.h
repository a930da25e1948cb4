// What the calls of a run amount to. The words are those of README.md, "What is measured".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "loadtest/runner.h"

namespace eddy::loadtest {

// Of samples in milliseconds, most often.
struct Distribution {
  int64_t count = 0;
  double mean = 0, median = 0, std = 0, least = 0, most = 0;
  std::vector<double> percentiles = {};  // of SummarySettings::percentiles, in order
};

// Percentiles between two samples are interpolated in a straight line, as numpy does. All zero
// where there is no sample.
Distribution Describe(std::vector<double> samples, const std::vector<double>& percentiles);

// Most that a call may take to count for goodput. Milliseconds; none: no bound.
struct Slos {
  std::optional<double> ttft_ms = {}, tpot_ms = {}, e2el_ms = {};
  bool any() const { return ttft_ms.has_value() || tpot_ms.has_value() || e2el_ms.has_value(); }
};

struct SummarySettings {
  std::vector<double> percentiles = {50, 90, 99, 99.9};
  Slos slos = {};
  // Of the time in which calls were sent, this share at the beginning and at the end is no part of
  // the steady window: [0, 0.5).
  double warmup_cut = 0.1;
  double seconds = 0;  // planned time in which calls are sent; 0: until the last one was
};

// Seconds after the run's start.
struct Window {
  double begin_s = 0, end_s = 0;
  double seconds() const { return end_s - begin_s; }
};

// One second of a run.
struct Second {
  int64_t tokens = 0;  // received
  double open = 0;     // calls, on average
  double offered = 0;  // calls that were due
};

struct Summary {
  Window window = {};
  double run_seconds = 0;
  int64_t sent = 0;  // in the whole run, as the next
  int open_peak = 0;

  // Of the window: calls by their intended send, ends and tokens by when they came.
  int64_t calls = 0, completed = 0, failed = 0, cancelled = 0, slow_readers = 0;
  int64_t input_tokens = 0, output_tokens = 0, messages = 0;
  int64_t short_answers = 0;                     // ended well with fewer tokens than asked for
  std::map<std::string, int64_t> failures = {};  // "UNAVAILABLE DRAINING"
  double offered_rate = 0;                       // calls due per second
  double request_throughput = 0;                 // calls that ended well per second
  double request_goodput = 0;                    // calls within all SLOs per second
  double output_throughput = 0, total_token_throughput = 0;
  double concurrency = 0;  // calls open, on average
  double tokens_peak = 0;  // most tokens of a second of the run

  // Of calls of the window that were answered in full and that nobody here held up.
  Distribution ttft = {}, tpot = {}, itl = {}, icl = {}, e2el = {}, normalized = {};
  Distribution lag = {};  // intended to actual send, of all calls of the window
  // Mean time between tokens by the token's place: of places 2^i to 2^(i+1) - 1.
  std::vector<double> itl_by_place_ms = {};
  // Open calls and TTFT rose from quarter to quarter of the window: the server cannot keep up.
  bool saturated = false;
  std::vector<Second> timeline = {};
};

Summary Summarize(const RunResult& run, const SummarySettings& settings);

}  // namespace eddy::loadtest
