// Scalar Kalman filters side by side: M channels of Sn states each, all of them independent.
//
// The model of one state s of channel m is an Ornstein-Uhlenbeck process that is seen through k:
//   state_t = a state_t-1 + noise of variance p,   v_t = k_t state_t + noise of variance 1/L_t
// with a, p fixed per (m, s); L and v per token and channel; k and q per token and state, the same
// for all channels. The filter keeps the precision lambda = 1/variance and the information
// eta = lambda mean. Per token (Kalman Linear Attention, arXiv 2602.10743, information form):
//   den     = max(a^2 + p lambda, 1e-12)
//   lambda' = lambda / den + L k^2                 predict, then update
//   eta'    = (a / den) eta + L v k
//   mean    = eta' / max(lambda', 1e-12)
//   y[m]    = sum_s q[s] mean[m, s]                (prior read-out: a mean instead of mean)
// The precision of the prediction is lambda/den because its variance is a^2/lambda + p. With
// 0 < a < 1 and p > 0 the mean gains at most a per token, so it is stable although a/den may
// exceed 1.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// The fixed part of the model in discrete time, each [M, Sn].
struct KalmanDynamics {
  std::vector<float> transition;  // a
  std::vector<float> noise;       // p
};

enum class Discretization { kOrnsteinUhlenbeck, kZeroOrderHold };

struct KalmanDynamicsArgs {
  int64_t count = 0;                     // M * Sn; what follows is [M, Sn]
  const float* step_raw = nullptr;       // softplus of it + 1e-7 is the length of a step
  const float* rate_log = nullptr;       // -e^rate_log is the rate of decay in continuous time
  const float* process_noise = nullptr;  // variance per unit of time
  Discretization discretization = Discretization::kOrnsteinUhlenbeck;
  bool floored = true;     // noise at least 1e-7; else 1e-12 is added to it
  float noise_max = 0.0f;  // bound of floored noise; 0: none
};

// With rate r = e^rate_log and step d:
//   a = e^(-d r);  p = process_noise (1 - e^(-2 r d)) / (2 r), or process_noise d (zero-order hold)
// Computed in double, rounded once.
KalmanDynamics Discretize(const KalmanDynamicsArgs& args);

// What a token did to the memory; see ReadInnovation in kalman_cpu.cc. Null: not wanted, and not
// computed. Rows without a slot get zeros.
struct KalmanReadouts {
  float* variance = nullptr;     // [rows, M], of y: sum_s q^2 / lambda' (prior: a^2 / lambda' + p)
  float* surprise = nullptr;     // [rows], mean over (m, s) of the squared normalised innovation
  float* information = nullptr;  // [rows], nats per channel that the token taught
  float* precision = nullptr;    // [rows], mean over (m, s) of lambda'
  float* least_precision = nullptr;  // [rows], the least of them
  bool wanted() const {
    return variance != nullptr || surprise != nullptr || information != nullptr ||
           precision != nullptr || least_precision != nullptr;
  }
};

// Everything is fp32: bf16 states are off by 3e-2 in the mean.
struct KalmanArgs {
  int64_t channels = 0, state_dim = 0;
  const float* transition = nullptr;   // [M, Sn]
  const float* noise = nullptr;        // [M, Sn]
  const float* v = nullptr;            // [rows, M]
  const float* certainty = nullptr;    // [rows, M], L: the precision with which v is seen, > 0
  const float* k = nullptr;            // [rows, Sn] at k_stride
  const float* q = nullptr;            // [rows, Sn] at q_stride
  int64_t k_stride = 0, q_stride = 0;  // elements from one row to the next
  bool prior = false;                  // read out what is expected of the next token
  FieldView precision;                 // [M, Sn], lambda
  FieldView information;               // [M, Sn], eta
  float* y = nullptr;                  // [rows, M]
  KalmanReadouts readouts = {};
};

// Advances the filters of each sequence by its rows, one after another. Rows of sequences whose
// slot is kNoSlot get y = 0, and no state is touched for them.
void KalmanCpu(const Step& step, const KalmanArgs& args);

// The share of a row's read-out that is uncertainty, 0 to 1:
// sqrt(sum_m variance w^2 / sum_m (y^2 + variance) w^2). y, variance [M]; weight w [M] is what the
// layer multiplies y with, null: 1.
float KalmanSpread(const float* y, const float* variance, const float* weight, int64_t channels);

// The mean over channels of the standard deviation of y; variance [M].
float KalmanDeviation(const float* variance, int64_t channels);

}  // namespace eddy
