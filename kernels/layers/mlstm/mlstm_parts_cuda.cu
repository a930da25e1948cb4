#include <cuda_runtime.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/group_norm.cuh"
#include "kernels/layers/mlstm/mlstm_parts_cuda.h"

namespace eddy {
namespace {

constexpr int kWarps = 4;

__device__ inline float Greater(float a, float b) { return a < b ? b : a; }

// x runs over heads, a warp for each, y over sequences. Of 32 tokens each lane has one. What tokens
// do to the stabiliser, m <- max(l + m, i), is (l, i); two of them after one another do
// (l1 + l2, max(i1 + l2, i2)), so a prefix scan over the lanes gives the stabiliser after each.
__global__ void __launch_bounds__(kWarps * 32)
    GatesKernel(const int32_t* row_start, const int32_t* slots, const MlstmGatesArgs p) {
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (head >= p.heads) return;
  const int lane = threadIdx.x % 32;
  const int64_t first = row_start[blockIdx.y], end = row_start[blockIdx.y + 1];
  const int32_t slot = slots[blockIdx.y];
  if (slot == kNoSlot) {
    for (int64_t row = first + lane; row < end; row += 32) {
      p.write[row * p.heads + head] = 0.0f;
      p.keep[row * p.heads + head] = 0.0f;
      p.least[row * p.heads + head] = 1.0f;
    }
    return;
  }
  float* const stabiliser = FieldAt<float>(p.stabiliser, slot) + head;
  const auto cap = [&](float a) { return p.softcap > 0.0f ? p.softcap * tanhf(a / p.softcap) : a; };
  float m = *stabiliser;
  for (int64_t begin = first; begin < end; begin += 32) {
    const int64_t at = (begin + lane) * p.heads + head;
    const bool there = begin + lane < end;
    // A token that is not there leaves the stabiliser alone.
    float i = -INFINITY, l = 0.0f;
    if (there) {
      const float f = cap(p.keep[at]);
      i = cap(p.write[at]);
      l = p.exponential_forget ? f : LogSigmoid(f);
    }
    float sum = l, greatest = i;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float earlier_sum = __shfl_up_sync(0xffffffffu, sum, distance);
      const float earlier = __shfl_up_sync(0xffffffffu, greatest, distance);
      if (lane < distance) continue;
      greatest = Greater(earlier + sum, greatest);
      sum = earlier_sum + sum;
    }
    const float after = Greater(sum + m, greatest);
    float before = __shfl_up_sync(0xffffffffu, after, 1);
    if (lane == 0) before = m;
    if (there) {
      p.write[at] = p.key_scale * expf(i - after);
      p.keep[at] = expf(l + before - after);
      p.least[at] = expf(-after);
    }
    m = __shfl_sync(0xffffffffu, after, 31);
  }
  if (lane == 0) *stabiliser = m;
}

struct OutputParts {
  MlstmOutputArgs p;
  __device__ float Begin(int64_t row, int64_t i) const {
    const int64_t head = row * p.heads + static_cast<int>(i) / static_cast<int>(p.value_dim);
    const float sum = fabsf(p.sums[head]), least = p.least[head];
    return p.h[row * p.heads * p.value_dim + i] / (Greater(sum, least) + 1e-6f);
  }
  __device__ float Finish(int64_t row, int64_t i, float x) const {
    return x * p.norm[i] * Sigmoid(p.z[row * p.heads * p.value_dim + i]);
  }
};

}  // namespace

void MlstmGatesCuda(const Step& step, const MlstmGatesArgs& p) {
  if (step.sequences == 0) return;
  const dim3 grid(static_cast<unsigned>((p.heads + kWarps - 1) / kWarps),
                  static_cast<unsigned>(step.sequences));
  GatesKernel<<<grid, kWarps * 32, 0, static_cast<cudaStream_t>(step.stream)>>>(step.row_start,
                                                                                step.slots, p);
}

void MlstmOutputCuda(Stream stream, const MlstmOutputArgs& p) {
  RunGroupNorm(stream,
               {.rows = p.rows,
                .groups = p.heads,
                .width = p.value_dim,
                .eps = p.eps,
                .centred = true,
                .room = p.h,
                .out = p.out,
                .out_type = p.out_type},
               OutputParts{p});
}

}  // namespace eddy
