// Device code: the arithmetic of one token of a few neighbouring filters, shared by the kernels of
// the Kalman rule. The rounding of every operation is spelled out, so that what a step asks of the
// filters cannot change what they do.
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/kalman/kalman_cuda.h"

namespace eddy {

inline constexpr int kKalmanThreads = 128;
inline constexpr int kKalmanPartials = 8;  // floats per block and row; 7 of them are used

// Threads that share a channel: the power of two that just takes all its states, or a warp.
__host__ __device__ inline int KalmanGroup(int64_t state_dim, int vec) {
  int group = 1;
  while (group < 32 && group * vec < state_dim) group *= 2;
  return group;
}
__host__ __device__ inline int64_t KalmanBlocks(int64_t channels, int group) {
  const int64_t each = kKalmanThreads / group;
  return (channels + each - 1) / each;
}
// Floats of partials per row: enough for one state per thread, which takes the most blocks.
__host__ __device__ inline int64_t KalmanPartials(int64_t channels, int64_t state_dim) {
  return KalmanBlocks(channels, KalmanGroup(state_dim, 1)) * kKalmanPartials;
}

template <int kVec>
struct KalmanModel {
  Floats<kVec> a, p;
};

template <int kVec>
struct KalmanState {
  Floats<kVec> lambda, eta;
};

// What is seen in one token.
template <int kVec>
struct KalmanSeen {
  Floats<kVec> k, q;
  float v, certainty;
};

// Below 1e-12 a precision counts as none; NaN passes and shows.
__device__ inline float AtLeastNone(float precision) {
  float result;
  asm("max.NaN.f32 %0, %1, 0f2B8CBCCC;" : "=f"(result) : "f"(precision));
  return result;
}

// To a unit in the last place, of 1e-12 and more.
__device__ inline float Reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Predicts and updates; returns sum_s q mean, or a times that for a read-out of the prior.
template <int kVec>
__device__ inline float KalmanAdvance(const KalmanModel<kVec>& model, const KalmanSeen<kVec>& seen,
                                      bool prior, KalmanState<kVec>& state) {
  const float weighted_v = __fmul_rn(seen.certainty, seen.v);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const float a = model.a.v[i], k = seen.k.v[i], lambda = state.lambda.v[i];
    const float den = AtLeastNone(__fmaf_rn(model.p.v[i], lambda, __fmul_rn(a, a)));
    const float inverse = Reciprocal(den);
    const float certainty = __fmul_rn(seen.certainty, __fmul_rn(k, k));
    const float new_lambda = __fmaf_rn(lambda, inverse, certainty);
    const float new_eta =
        __fmaf_rn(__fmul_rn(a, inverse), state.eta.v[i], __fmul_rn(weighted_v, k));
    float mean = __fmul_rn(new_eta, Reciprocal(AtLeastNone(new_lambda)));
    if (prior) mean = __fmul_rn(a, mean);
    sum = __fmaf_rn(seen.q.v[i], mean, sum);
    state.lambda.v[i] = new_lambda;
    state.eta.v[i] = new_eta;
  }
  return sum;
}

// Sums over the filters of a thread in one token; see ReadInnovation in kalman_cpu.cc.
struct KalmanTold {
  float precision = 0, least = INFINITY, surprise = 0, information = 0, variance = 0;
};

template <int kVec>
__device__ inline void ReadInnovation(const KalmanModel<kVec>& model, const KalmanSeen<kVec>& seen,
                                      const KalmanState<kVec>& state, KalmanTold& told,
                                      int own = kVec) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (i >= own) continue;
    const float a = model.a.v[i], k = seen.k.v[i], lambda = AtLeastNone(state.lambda.v[i]);
    const float mean = a * state.eta.v[i] / lambda;
    const float variance = a * a / lambda + model.p.v[i];
    const float innovation = seen.v - k * mean;
    told.surprise += innovation * innovation / (k * k * variance + 1.0f / seen.certainty);
    told.information += 0.5f * log1pf(k * k * seen.certainty * variance);
  }
}

template <int kVec>
__device__ inline void ReadPosterior(const KalmanModel<kVec>& model, const KalmanSeen<kVec>& seen,
                                     bool prior, const KalmanState<kVec>& state, KalmanTold& told,
                                     int own = kVec) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (i >= own) continue;
    const float a = model.a.v[i], q = seen.q.v[i], lambda = AtLeastNone(state.lambda.v[i]);
    const float variance = prior ? a * a / lambda + model.p.v[i] : 1.0f / lambda;
    told.variance += q * q * variance;
    told.precision += lambda;
    told.least = Least()(told.least, lambda);
  }
}

// What one block has to say of a row goes to its partials. All threads of the block call it;
// `channel` may lie beyond the last one. kGroup threads share a channel and know its y.
template <int kGroup>
__device__ inline void TellRow(const KalmanCudaArgs& p, int64_t row, int64_t channel, float y,
                               const KalmanTold& told) {
  constexpr int kWarps = kKalmanThreads / 32;
  __shared__ float shared[kKalmanPartials][kWarps];
  const float variance = ReduceGroup<kGroup>(told.variance);
  const bool speaks = channel < p.channels && threadIdx.x % kGroup == 0;
  float weight = 1.0f;
  if (speaks && p.readouts.weight != nullptr) {
    weight = p.readouts.weight[row * p.readouts.weight_stride + channel];
  }
  const float unsure = speaks ? variance * weight * weight : 0.0f;
  const float all = speaks ? (y * y + variance) * weight * weight : 0.0f;
  const float deviation = speaks ? sqrtf(variance) : 0.0f;
  const float sums[kKalmanPartials] = {told.precision,   told.least, deviation, told.surprise,
                                       told.information, unsure,     all,       0};
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    const float sum = i == 1 ? ReduceGroup<32>(sums[i], Least()) : ReduceGroup<32>(sums[i]);
    if (threadIdx.x % 32 == 0) shared[i][threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 7) {
    float sum = shared[threadIdx.x][0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float other = shared[threadIdx.x][w];
      sum = threadIdx.x == 1 ? Least()(sum, other) : sum + other;
    }
    p.readouts.partials[row * KalmanPartials(p.channels, p.state_dim) +
                        blockIdx.x * int64_t{kKalmanPartials} + threadIdx.x] = sum;
  }
  __syncthreads();  // `shared` is free again
}

// Calls launch.operator()<kGroup>().
template <typename Launch>
void WithKalmanGroup(int group, const Launch& launch) {
  switch (group) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 4:
      return launch.template operator()<4>();
    case 8:
      return launch.template operator()<8>();
    case 16:
      return launch.template operator()<16>();
    default:
      return launch.template operator()<32>();
  }
}

// Advances the filters of sequences [first, end) of the step by all their rows, and leaves what is
// asked of them in the partials: that of so many blocks as it returns for each row. REQUIRES:
// KalmanRowsFit(state_dim).
int64_t KalmanRowsCuda(const Step& step, const KalmanCudaArgs& args, int first, int end);
inline bool KalmanRowsFit(int64_t state_dim) { return state_dim <= 128; }

}  // namespace eddy
