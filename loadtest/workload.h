// What is asked for: lengths, who cancels, who reads slowly. One call after the other is drawn, so
// that a run that is bounded by time alone can go on.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "loadtest/arrivals.h"
#include "loadtest/call.h"
#include "loadtest/trace.h"

namespace eddy::loadtest {

// Lengths in tokens.
struct LengthSettings {
  enum class Shape {
    kUniform,    // mean * (1 - range_ratio) to mean * (1 + range_ratio); ratio 0: always the mean
    kLogNormal,  // of this mean and coefficient of variation `cv`, as chats have them
  };
  Shape shape = Shape::kUniform;
  double mean = 128;
  double range_ratio = 0;
  double cv = 1;
  int most = 8192;  // drawn again while above; so the mean is a little lower than asked for
};

// Draws lengths of at least 1. One thread.
class Lengths {
 public:
  // REQUIRES: 1 <= mean <= most, 0 <= range_ratio < 1, 0 < cv.
  explicit Lengths(const LengthSettings& settings);
  int Draw(std::mt19937_64* rng);

 private:
  const LengthSettings settings_;
  std::lognormal_distribution<double> log_normal_;
};

struct WorkloadSettings {
  LengthSettings prompt = {};
  LengthSettings output = {};
  double cancel_share = 0;       // of all calls; each after 1 to all of its tokens
  double slow_reader_share = 0;  // of all calls
  uint64_t seed = 0;
};

// The calls of one run. One thread. What a call asks for depends on the seed and its place alone,
// not on the rate, so that runs at several rates compare.
class CallSource {
 public:
  CallSource(const WorkloadSettings& settings, const Arrivals::Settings& arrivals);
  // Times and lengths are those of the trace.
  CallSource(const WorkloadSettings& settings, std::vector<TraceEntry> trace);

  // Nothing once the run is full.
  std::optional<PlannedCall> Next();

 private:
  const WorkloadSettings settings_;
  Lengths prompt_, output_;
  std::optional<Arrivals> arrivals_;
  const std::vector<TraceEntry> trace_;
  size_t next_entry_ = 0;
  std::mt19937_64 rng_;
};

}  // namespace eddy::loadtest
