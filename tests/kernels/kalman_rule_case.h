// Random inputs of the Kalman rule, records for it, and a call of it: what its tests share.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/rules/kalman/kalman.h"

namespace eddy::kalman_test {

using Floats = std::vector<float>;

struct Case {
  int64_t channels = 1, state_dim = 1, rows = 1;
  bool prior = false;
  Floats rate_log = {}, step_raw = {}, process_noise = {};  // [M, Sn]
  Discretization discretization = Discretization::kOrnsteinUhlenbeck;
  bool floored = true;
  float noise_max = 0;
  Floats v = {}, certainty = {};  // [rows, M]
  Floats kq = {};                 // [rows, 2 Sn]: k, then q

  KalmanDynamics Dynamics() const {
    return Discretize({.count = channels * state_dim,
                       .step_raw = step_raw.data(),
                       .rate_log = rate_log.data(),
                       .process_noise = process_noise.data(),
                       .discretization = discretization,
                       .floored = floored,
                       .noise_max = noise_max});
  }
};

// Records of several slots with gaps between them: [slot]{precision, information, canary}.
struct Pool {
  Pool(int slots, int64_t states)
      : size(states), stride(2 * states + 3), data(slots * stride, 7.5f) {
    for (int slot = 0; slot < slots; ++slot) {
      std::fill_n(precision(slot), size, 1.0f);
      std::fill_n(information(slot), size, 0.0f);
    }
  }
  float* precision(int64_t slot) { return data.data() + slot * stride; }
  float* information(int64_t slot) { return precision(slot) + size; }
  FieldView View(int64_t offset) {
    return {.base = reinterpret_cast<std::byte*>(data.data() + offset),
            .stride = stride * static_cast<int64_t>(sizeof(float))};
  }
  int64_t size, stride;
  Floats data;
};

struct Outputs {
  Floats y, variance, surprise, information, precision, least_precision;
};

// Runs rows [begin, end) of the case in `slot`.
inline Outputs Filter(const Case& c, Pool* pool, int32_t slot, int64_t begin, int64_t end,
                      bool readouts) {
  const KalmanDynamics dynamics = c.Dynamics();
  const int64_t rows = end - begin, m = c.channels;
  Outputs out;
  out.y.assign(rows * m, -1.0f);
  KalmanReadouts wanted;
  if (readouts) {
    out.variance.assign(rows * m, -1.0f);
    out.surprise.assign(rows, -1.0f);
    out.information = out.precision = out.least_precision = out.surprise;
    wanted = {.variance = out.variance.data(),
              .surprise = out.surprise.data(),
              .information = out.information.data(),
              .precision = out.precision.data(),
              .least_precision = out.least_precision.data()};
  }
  const int32_t row_start[] = {0, static_cast<int32_t>(rows)};
  const Step step = {
      .rows = static_cast<int>(rows), .sequences = 1, .row_start = row_start, .slots = &slot};
  const float* kq = c.kq.data() + begin * 2 * c.state_dim;
  KalmanCpu(step, {.channels = m,
                   .state_dim = c.state_dim,
                   .transition = dynamics.transition.data(),
                   .noise = dynamics.noise.data(),
                   .v = c.v.data() + begin * m,
                   .certainty = c.certainty.data() + begin * m,
                   .k = kq,
                   .q = kq + c.state_dim,
                   .k_stride = 2 * c.state_dim,
                   .q_stride = 2 * c.state_dim,
                   .prior = c.prior,
                   .precision = pool->View(0),
                   .information = pool->View(pool->size),
                   .y = out.y.data(),
                   .readouts = wanted});
  return out;
}

inline Case RandomCase(std::mt19937_64& random) {
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  const auto uniform = [&](int64_t n, float low, float high) {
    Floats x(n);
    for (float& value : x) value = std::uniform_real_distribution<float>(low, high)(random);
    return x;
  };
  Case c;
  c.channels = pick(1, 37);
  c.state_dim = pick(0, 3) == 0 ? 1 : pick(1, 35);
  c.rows = pick(0, 2) == 0 ? 1 : pick(1, 200);
  c.prior = pick(0, 1) == 1;
  c.discretization =
      pick(0, 1) == 1 ? Discretization::kOrnsteinUhlenbeck : Discretization::kZeroOrderHold;
  c.floored = pick(0, 2) > 0;
  c.noise_max = pick(0, 2) == 0 ? 0.02f : 0.0f;
  const int64_t states = c.channels * c.state_dim;
  c.rate_log = uniform(states, -3, 1);
  c.step_raw = uniform(states, -7, 1);
  c.process_noise = uniform(states, -0.01f, 0.1f);  // some below the floor
  if (!c.floored) c.process_noise.assign(states, 0.0f);
  c.v = uniform(c.rows * c.channels, -3, 3);
  c.certainty = uniform(c.rows * c.channels, -6, 6);
  for (float& value : c.certainty) value = std::exp(value);
  c.kq = uniform(c.rows * 2 * c.state_dim, -1, 1);
  return c;
}

}  // namespace eddy::kalman_test
