// The vector primitive of the Kalman rule; see simd.h for the others.
#pragma once

#include <cstdint>

namespace eddy::simd {

// M x Sn scalar Kalman filters of one sequence: see kernels/rules/kalman/kalman.h for the names.
struct KalmanFilters {
  int64_t tokens = 0, channels = 0, state_dim = 0;
  const float* transition = nullptr;  // [M, Sn]
  const float* noise = nullptr;       // [M, Sn]
  const float* v = nullptr;           // [tokens, M]
  const float* certainty = nullptr;   // [tokens, M]
  const float* k = nullptr;           // [tokens, Sn], at k_stride
  const float* q = nullptr;           // [tokens, Sn], at q_stride
  int64_t k_stride = 0, q_stride = 0;
  bool prior = false;
  float* precision = nullptr;    // [M, Sn]
  float* information = nullptr;  // [M, Sn]
  float* y = nullptr;            // [tokens, M]
};

// Advances them by `tokens` tokens. Every filter and every y takes the same operations in the same
// order however the tokens are split into calls.
void KalmanSteps(const KalmanFilters& filters);

}  // namespace eddy::simd
