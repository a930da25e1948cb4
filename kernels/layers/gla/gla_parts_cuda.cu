#include <cuda_runtime.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/group_norm.cuh"
#include "kernels/layers/gla/gla_parts_cuda.h"

namespace eddy {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    DecayKernel(int64_t count, float divisor, float least, float* g) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const float log_decay = LogSigmoid(g[i]) / divisor;
  g[i] = expf(log_decay < least ? least : log_decay);
}

struct OutputParts {
  GlaOutputArgs p;
  __device__ float Begin(int64_t row, int64_t i) const {
    return p.o[row * p.heads * p.value_dim + i];
  }
  __device__ float Finish(int64_t row, int64_t i, float x) const {
    return x * p.norm[static_cast<int>(i) % static_cast<int>(p.value_dim)] *
           Silu(p.z[row * p.heads * p.value_dim + i]);
  }
};

}  // namespace

void GlaDecayCuda(Stream stream, int64_t count, float divisor, float least, float* g) {
  if (count == 0) return;
  DecayKernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(count, divisor, least, g);
}

void GlaOutputCuda(Stream stream, const GlaOutputArgs& p) {
  RunGroupNorm(stream,
               {.rows = p.rows,
                .groups = p.heads,
                .width = p.value_dim,
                .eps = p.eps,
                .room = p.o,
                .out = p.out,
                .out_type = p.out_type},
               OutputParts{p});
}

}  // namespace eddy
