#include <cuda_runtime.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/layers/kalman/kalman_parts_cuda.h"

namespace eddy {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) CopyKernel(const KalmanCopyArgs p) {
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x, row = blockIdx.x;
  if (i >= p.width) return;
  StoreTyped<1>(p.y, p.y_type, row * p.width + i, Floats<1>{p.x[row * p.x_stride + i]});
}

// A vector of `n` states, by a warp.
__device__ inline void NormaliseKey(const KalmanSenseArgs& p, float* x) {
  const int lane = threadIdx.x % 32;
  float scale = 1.0f;
  if (p.qk_norm) {
    float sum = 0.0f;
    for (int64_t i = lane; i < p.state_dim; i += 32) sum = fmaf(x[i], x[i], sum);
    // A norm that is not a number is not hidden.
    const float norm = sqrtf(ReduceGroup<32>(sum));
    scale = 1.0f / (norm < 1e-12f ? 1e-12f : norm);
  }
  for (int64_t i = lane; i < p.state_dim; i += 32) {
    float value = x[i] * scale;
    if (p.clip > 0.0f) value = value > p.clip ? p.clip : value < -p.clip ? -p.clip : value;
    x[i] = value;
  }
}

// x runs over rows, y over channels; the first block of a row has its key and query.
template <int kVec>
__global__ void __launch_bounds__(kThreads) SenseKernel(const KalmanSenseArgs p) {
  const int64_t row = blockIdx.x;
  if (blockIdx.y == 0 && threadIdx.x < 64) {
    NormaliseKey(p, p.kq + row * p.kq_stride + threadIdx.x / 32 * p.state_dim);
  }
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
  if (channel >= p.channels) return;
  const int64_t certainty = row * p.certainty_stride + channel;
  auto l = LoadFloats<kVec>(p.certainty, certainty);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    float variance = Softplus(l.v[i]) + p.noise_min;
    if (p.noise_max > 0.0f && variance > p.noise_max) variance = p.noise_max;
    l.v[i] = 1.0f / variance;
  }
  StoreFloats(p.certainty, certainty, l);
  if (p.gate != nullptr) {
    auto gate = LoadFloats<kVec>(p.gate, row * p.gate_stride + channel);
#pragma unroll
    for (int i = 0; i < kVec; ++i) gate.v[i] = Activate(p.activation, gate.v[i]);
    StoreFloats(p.gate, row * p.gate_stride + channel, gate);
  }
  if (p.value != nullptr) {
    const int64_t at = row * p.channels + channel;
    StoreFloats(p.value, at, LoadTyped<kVec>(p.c, p.c_type, at));
  }
}

template <int kVec>
__global__ void __launch_bounds__(kThreads) OutputKernel(const KalmanOutputArgs p) {
  const int64_t row = blockIdx.x;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
  if (channel >= p.channels) return;
  const int64_t at = row * p.channels + channel;
  auto y = LoadFloats<kVec>(p.y, at);
  if (p.skip != nullptr) {
    const auto c = LoadTyped<kVec>(p.c, p.type, at);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      y.v[i] = fmaf(p.skip[p.skip_per_channel ? channel + i : 0], c.v[i], y.v[i]);
    }
  }
  if (p.gate != nullptr) {
    const auto gate = LoadFloats<kVec>(p.gate, row * p.gate_stride + channel);
#pragma unroll
    for (int i = 0; i < kVec; ++i) y.v[i] *= gate.v[i];
  }
  StoreTyped(p.out, p.type, at, y);
}

// Blocks of kThreads over rows of `width` elements, so many each.
dim3 Grid(int64_t width, int each, int64_t rows) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((width + kThreads * each - 1) / (kThreads * each)));
}

}  // namespace

void KalmanCopyCuda(Stream stream, const KalmanCopyArgs& p) {
  if (p.rows == 0) return;
  CopyKernel<<<Grid(p.width, 1, p.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

void KalmanSenseCuda(Stream stream, const KalmanSenseArgs& p) {
  if (p.rows == 0) return;
  const bool four = p.channels % 4 == 0 && TakesFour(p.certainty, p.certainty_stride) &&
                    TakesFour(p.gate, p.gate_stride) && TakesFour(p.c, 0, p.c_type) &&
                    TakesFour(p.value, 0);
  const auto kernel = four ? SenseKernel<4> : SenseKernel<1>;
  kernel<<<Grid(p.channels, four ? 4 : 1, p.rows), kThreads, 0,
           static_cast<cudaStream_t>(stream)>>>(p);
}

void KalmanOutputCuda(Stream stream, const KalmanOutputArgs& p) {
  if (p.rows == 0) return;
  const bool four = p.channels % 4 == 0 && TakesFour(p.y, 0) && TakesFour(p.c, 0, p.type) &&
                    TakesFour(p.gate, p.gate_stride) && TakesFour(p.out, 0, p.type);
  const auto kernel = four ? OutputKernel<4> : OutputKernel<1>;
  kernel<<<Grid(p.channels, four ? 4 : 1, p.rows), kThreads, 0,
           static_cast<cudaStream_t>(stream)>>>(p);
}

}  // namespace eddy
