#include <cuda_runtime.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/group_norm.cuh"
#include "kernels/layers/mamba2/mamba2_parts_cuda.h"

namespace eddy {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) StepsKernel(const Mamba2StepsArgs p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.rows * p.heads) return;
  const int64_t row = i / p.heads, head = i % p.heads;
  const float delta = Softplus(p.d[row * p.d_stride + head] + p.step_bias[head]);
  // NaN passes.
  const float bounded = delta < p.step_min ? p.step_min : delta > p.step_max ? p.step_max : delta;
  p.delta[i] = bounded;
  p.decay[i] = expf(-bounded * expf(p.rate_log[head]));
}

struct OutputParts {
  Mamba2OutputArgs p;
  __device__ float Begin(int64_t row, int64_t i) const {
    const float y = p.y[row * p.heads * p.head_dim + i];
    const float s = p.s[row * p.s_stride + i];
    return fmaf(p.skip[static_cast<int>(i) / static_cast<int>(p.head_dim)], s, y) *
           Silu(p.z[row * p.z_stride + i]);
  }
  __device__ float Finish(int64_t, int64_t i, float x) const { return x * p.norm[i]; }
};

}  // namespace

void Mamba2StepsCuda(Stream stream, const Mamba2StepsArgs& p) {
  if (p.rows == 0) return;
  const auto blocks = static_cast<unsigned>((p.rows * p.heads + kThreads - 1) / kThreads);
  StepsKernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

void Mamba2OutputCuda(Stream stream, const Mamba2OutputArgs& p) {
  RunGroupNorm(stream,
               {.rows = p.rows,
                .groups = p.groups,
                .width = p.heads * p.head_dim / p.groups,
                .eps = p.eps,
                .room = p.y,
                .out = p.out,
                .out_type = p.out_type},
               OutputParts{p});
}

}  // namespace eddy
