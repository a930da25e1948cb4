#include <cuda_runtime.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/layers/mamba/mamba_parts_cuda.h"

namespace eddy {
namespace {

constexpr int kThreads = 256;

// x runs over rows, y over channels.
template <int kVec>
__global__ void __launch_bounds__(kThreads) StepsKernel(const MambaStepsArgs p) {
  const int64_t row = blockIdx.x;
  float square = 0.0f;  // |k|^2, by each warp for itself
  if (p.longhorn) {
    for (int64_t n = threadIdx.x % 32; n < p.state_dim; n += 32) {
      const float k = p.k[row * p.k_stride + n];
      square = fmaf(k, k, square);
    }
    square = ReduceGroup<32>(square);
  }
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
  if (channel >= p.channels) return;
  const int64_t at = row * p.channels + channel;
  auto step = LoadFloats<kVec>(p.step, at);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (p.longhorn) {
      const float b = Sigmoid(step.v[i]);
      step.v[i] = b / (1.0f + b * square);
    } else {
      step.v[i] = Softplus(step.v[i]);
    }
  }
  StoreFloats(p.step, at, step);
}

template <int kVec>
__global__ void __launch_bounds__(kThreads) OutputKernel(const MambaOutputArgs p) {
  const int64_t row = blockIdx.x;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
  if (channel >= p.channels) return;
  const int64_t at = row * p.channels + channel;
  auto o = LoadFloats<kVec>(p.o, at);
  const auto s = LoadTyped<kVec>(p.s, p.type, at);
  const auto skip = LoadFloats<kVec>(p.skip, channel);
  const auto z = LoadFloats<kVec>(p.z, row * p.z_stride + channel);
#pragma unroll
  for (int i = 0; i < kVec; ++i) o.v[i] = fmaf(skip.v[i], s.v[i], o.v[i]) * Silu(z.v[i]);
  StoreTyped(p.out, p.type, at, o);
}

dim3 Grid(int64_t rows, int64_t channels, int each) {
  return dim3(static_cast<unsigned>(rows),
              static_cast<unsigned>((channels + kThreads * each - 1) / (kThreads * each)));
}

}  // namespace

void MambaStepsCuda(Stream stream, const MambaStepsArgs& p) {
  if (p.rows == 0) return;
  const bool four = p.channels % 4 == 0 && TakesFour(p.step, 0);
  const auto kernel = four ? StepsKernel<4> : StepsKernel<1>;
  kernel<<<Grid(p.rows, p.channels, four ? 4 : 1), kThreads, 0,
           static_cast<cudaStream_t>(stream)>>>(p);
}

void MambaOutputCuda(Stream stream, const MambaOutputArgs& p) {
  if (p.rows == 0) return;
  const bool four = p.channels % 4 == 0 && TakesFour(p.o, 0) && TakesFour(p.s, 0, p.type) &&
                    TakesFour(p.skip, 0) && TakesFour(p.z, p.z_stride) &&
                    TakesFour(p.out, 0, p.type);
  const auto kernel = four ? OutputKernel<4> : OutputKernel<1>;
  kernel<<<Grid(p.rows, p.channels, four ? 4 : 1), kThreads, 0,
           static_cast<cudaStream_t>(stream)>>>(p);
}

}  // namespace eddy
