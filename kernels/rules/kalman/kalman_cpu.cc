#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd_kalman.h"
#include "kernels/rules/kalman/kalman.h"

namespace eddy {
namespace {

// Below this a precision counts as none.
constexpr float kLeast = 1e-12f;

double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The filters of the sequence in `slot`, for `rows` rows from `row` on.
simd::KalmanFilters Filters(const KalmanArgs& p, int32_t slot, int64_t row, int64_t rows) {
  return {.tokens = rows,
          .channels = p.channels,
          .state_dim = p.state_dim,
          .transition = p.transition,
          .noise = p.noise,
          .v = p.v + row * p.channels,
          .certainty = p.certainty + row * p.channels,
          .k = p.k + row * p.k_stride,
          .q = p.q + row * p.q_stride,
          .k_stride = p.k_stride,
          .q_stride = p.q_stride,
          .prior = p.prior,
          .precision = p.precision.at<float>(slot),
          .information = p.information.at<float>(slot),
          .y = p.y + row * p.channels};
}

// Before the update. With m = a eta / lambda and P = den / lambda, mean and variance of the
// prediction, the innovation v - k m has the variance V = k^2 P + 1/L if the model is right:
//   surprise    = mean (v - k m)^2 / V               1 on data of the model
//   information = sum 1/2 ln(1 + k^2 L P) / M        what the update takes off the entropy
void ReadInnovation(const KalmanArgs& p, const simd::KalmanFilters& f, int64_t row) {
  double surprise = 0, information = 0;
  for (int64_t m = 0; m < f.channels; ++m) {
    for (int64_t s = 0; s < f.state_dim; ++s) {
      const int64_t i = m * f.state_dim + s;
      const double a = f.transition[i], lambda = std::max(f.precision[i], kLeast);
      const double mean = a * f.information[i] / lambda;
      const double variance = a * a / lambda + f.noise[i];
      const double k = f.k[s], certainty = f.certainty[m];
      const double innovation = f.v[m] - k * mean;
      surprise += innovation * innovation / (k * k * variance + 1 / certainty);
      information += 0.5 * std::log1p(k * k * certainty * variance);
    }
  }
  const auto channels = static_cast<double>(f.channels);
  const auto states = static_cast<double>(f.channels * f.state_dim);
  if (p.readouts.surprise) p.readouts.surprise[row] = static_cast<float>(surprise / states);
  if (p.readouts.information) {
    p.readouts.information[row] = static_cast<float>(information / channels);
  }
}

// After the update.
void ReadPosterior(const KalmanArgs& p, const simd::KalmanFilters& f, int64_t row) {
  double sum = 0, least = std::numeric_limits<double>::infinity();
  for (int64_t m = 0; m < f.channels; ++m) {
    double of_y = 0;
    for (int64_t s = 0; s < f.state_dim; ++s) {
      const int64_t i = m * f.state_dim + s;
      const double a = f.transition[i], lambda = std::max(f.precision[i], kLeast);
      const double variance = p.prior ? a * a / lambda + f.noise[i] : 1 / lambda;
      of_y += static_cast<double>(f.q[s]) * f.q[s] * variance;
      sum += lambda;
      least = std::min(least, lambda);
    }
    if (p.readouts.variance) {
      p.readouts.variance[row * f.channels + m] = static_cast<float>(of_y);
    }
  }
  const auto states = static_cast<double>(f.channels * f.state_dim);
  if (p.readouts.precision) p.readouts.precision[row] = static_cast<float>(sum / states);
  if (p.readouts.least_precision) p.readouts.least_precision[row] = static_cast<float>(least);
}

void ZeroRows(const KalmanArgs& p, int64_t begin, int64_t rows) {
  const auto zero = [&](float* x, int64_t width) {
    if (x != nullptr) std::fill_n(x + begin * width, rows * width, 0.0f);
  };
  zero(p.y, p.channels);
  zero(p.readouts.variance, p.channels);
  zero(p.readouts.surprise, 1);
  zero(p.readouts.information, 1);
  zero(p.readouts.precision, 1);
  zero(p.readouts.least_precision, 1);
}

}  // namespace

KalmanDynamics Discretize(const KalmanDynamicsArgs& p) {
  KalmanDynamics dynamics;
  for (int64_t i = 0; i < p.count; ++i) {
    const double rate = std::exp(static_cast<double>(p.rate_log[i]));
    const double step = Softplus(p.step_raw[i]) + 1e-7;
    double noise = p.process_noise[i];
    noise = p.floored ? std::max(noise, 1e-7) : noise + 1e-12;
    if (p.floored && p.noise_max > 0) noise = std::min(noise, static_cast<double>(p.noise_max));
    const double floored_rate = std::max(rate, 1e-8);
    const double growth = p.discretization == Discretization::kOrnsteinUhlenbeck
                              ? -std::expm1(-2 * floored_rate * step) / (2 * floored_rate)
                              : step;
    dynamics.transition.push_back(static_cast<float>(std::exp(-step * rate)));
    dynamics.noise.push_back(static_cast<float>(noise * growth));
  }
  return dynamics;
}

void KalmanCpu(const Step& step, const KalmanArgs& p) {
  for (int i = 0; i < step.sequences; ++i) {
    const int32_t slot = step.slots[i];
    const int64_t begin = step.row_start[i], end = step.row_start[i + 1];
    if (slot == kNoSlot) {
      ZeroRows(p, begin, end - begin);
      continue;
    }
    if (!p.readouts.wanted()) {
      simd::KalmanSteps(Filters(p, slot, begin, end - begin));
      continue;
    }
    for (int64_t row = begin; row < end; ++row) {
      const simd::KalmanFilters filters = Filters(p, slot, row, 1);
      if (p.readouts.surprise || p.readouts.information) ReadInnovation(p, filters, row);
      simd::KalmanSteps(filters);
      if (p.readouts.variance || p.readouts.precision || p.readouts.least_precision) {
        ReadPosterior(p, filters, row);
      }
    }
  }
}

float KalmanSpread(const float* y, const float* variance, const float* weight, int64_t channels) {
  double unsure = 0, all = 0;
  for (int64_t m = 0; m < channels; ++m) {
    const double w = weight != nullptr ? weight[m] : 1;
    unsure += variance[m] * w * w;
    all += (static_cast<double>(y[m]) * y[m] + variance[m]) * w * w;
  }
  // Without any read-out (closed gates) nothing of it is unsure.
  return all > 0 ? static_cast<float>(std::sqrt(unsure / all)) : 0.0f;
}

float KalmanDeviation(const float* variance, int64_t channels) {
  double sum = 0;
  for (int64_t m = 0; m < channels; ++m) sum += std::sqrt(static_cast<double>(variance[m]));
  return static_cast<float>(sum / static_cast<double>(channels));
}

}  // namespace eddy
