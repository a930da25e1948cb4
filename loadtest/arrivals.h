// When calls are sent in an open loop: times drawn from a process, whatever the server does.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <random>

namespace eddy::loadtest {

// Draws one time after the other. One thread. Equal settings and seeds give equal times.
class Arrivals {
 public:
  enum class Process {
    kGamma,     // gaps of mean 1/rate and squared coefficient of variation 1/burstiness: Poisson
                // arrivals for burstiness 1, bunches below, more even ones above
    kConstant,  // gaps of 1/rate
  };
  struct Settings {
    Process process = Process::kGamma;
    double rate = std::numeric_limits<double>::infinity();  // calls a second; infinite: all at 0
    double burstiness = 1;
    // The rate goes from here, in a straight line over the run's calls or its duration, to `rate`.
    std::optional<double> ramp_from = {};
    int64_t calls_max = 0;  // 0: no bound
    double seconds = 0;     // none at this time or later; 0: no bound
    uint64_t seed = 0;
  };
  // REQUIRES: rate and burstiness above 0; calls_max or seconds above 0. Where the rate is
  // infinite, seconds is no bound: the times of a closed loop, which its runner ends.
  explicit Arrivals(const Settings& settings);

  // Seconds after the run's start, never falling; nothing once the run is full.
  std::optional<double> Next();

 private:
  double Rate() const;

  const Settings settings_;
  std::mt19937_64 rng_;
  std::gamma_distribution<double> unit_gap_;  // of mean 1
  int64_t drawn_ = 0;
  double at_s_ = 0;
};

}  // namespace eddy::loadtest
