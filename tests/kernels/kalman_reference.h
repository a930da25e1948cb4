// The scalar Kalman filter and the layer around it in float64, written from the textbook and from
// the formulas of the paper's block, for the tests of the Kalman rule and layer. Of kernels/ it
// takes the words of the config only.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/layer.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {

struct DynamicsOptions {
  bool zoh = false;
  bool floored = true;
  double noise_max = 0;  // 0: none
};

// An Ornstein-Uhlenbeck process over a step: state' = a state + noise of variance p. As a
// zero-order hold the noise just adds up over the step.
struct ExactDynamics {
  double a = 0, p = 0;
  ExactDynamics(double rate_log, double step_raw, double process_noise, DynamicsOptions options) {
    const double rate = std::exp(rate_log);
    const double step = std::log(1 + std::exp(step_raw)) + 1e-7;
    double noise = process_noise;
    if (!options.floored) {
      noise += 1e-12;
    } else {
      noise = std::max(noise, 1e-7);
      if (options.noise_max > 0) noise = std::min(noise, options.noise_max);
    }
    a = std::exp(-rate * step);
    p = options.zoh ? noise * step : noise * (1 - a * a) / (2 * rate);
  }
};

// One filter in the textbook's covariance form (Kalman 1960): predict mean and variance, weigh the
// innovation with the gain, and shrink the variance. `mass` is the mean with every observation
// taken as positive: what rounding is relative to where observations cancel.
struct Covariance {
  double mean = 0, variance = 1, mass = 0;
  double surprise = 0, surprise_mass = 0, information = 0;  // of the last update
  void Update(double a, double p, double k, double v, double noise) {
    const double prior_mean = a * mean, prior_variance = a * a * variance + p;
    const double innovation = v - k * prior_mean;
    const double innovation_variance = k * k * prior_variance + noise;
    const double gain = prior_variance * k / innovation_variance;
    const double reach = std::abs(v) + std::abs(k) * a * mass;
    surprise = innovation * innovation / innovation_variance;
    surprise_mass = reach * reach / innovation_variance;
    mean = prior_mean + gain * innovation;
    mass = a * mass * (1 - gain * k) + std::abs(gain * v);
    variance = prior_variance - gain * k * prior_variance;
    information = -0.5 * std::log1p(-gain * k);  // 1/2 ln of how much the variance shrinks
  }
};

using Weights64 = std::map<std::string, std::vector<double>>;

// Outputs and final state of a fresh "kalman" layer for one sequence x [T, D], in the covariance
// form.
testing::Trace KalmanLayerReference(const LayerSpec& spec, const Weights64& weights,
                                    const std::vector<double>& x);

}  // namespace eddy
