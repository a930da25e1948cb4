// States of one column that is written with ones, for many rows and in float: every warp has a run
// of the rows, finds what it adds to a state that only decays, and walks a second time from what
// those before it leave.
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/decay_scan/decay_scan_cuda.cuh"

namespace eddy {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;

// x runs over states, y over sequences. A lane has every 32nd of the keys.
template <int kKeys>
__global__ void __launch_bounds__(kThreads)
    ColumnKernel(const DecayPart part, const DecayScanCudaArgs p) {
  constexpr int kAtOnce = kKeys > 8 ? 2 : 4;  // rows that are on their way together
  extern __shared__ float states[];           // [warps, K]: what is added, then the state before
  __shared__ float decays[kWarps];
  const int i = part.first + static_cast<int>(blockIdx.y), state = static_cast<int>(blockIdx.x);
  const int64_t first = part.row_start[i];
  const int rows = static_cast<int>(part.row_start[i + 1] - first);
  const int32_t slot = part.slots[i];
  if (!TakesChunks(rows, slot)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int key_dim = static_cast<int>(p.shape.key_dim);
  const int run = (rows + kWarps - 1) / kWarps, begin = warp * run, end = min(begin + run, rows);
  float u[kKeys] = {};
  float all = 1;
  const auto walk = [&](auto reads) {
    for (int row = begin; row < end; row += kAtOnce) {
      float k[kAtOnce][kKeys], q[kAtOnce][kKeys], write[kAtOnce], decay[kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const bool there = row + r < end;
        const DecayHead head = HeadOfRow(p, part, first + (there ? row + r : row), state);
        write[r] = head.write == nullptr ? 1.0f : *head.write;
        decay[r] = *head.decay;
#pragma unroll
        for (int n = 0; n < kKeys; ++n) {
          const int key = n * 32 + lane;
          k[r][n] = key < key_dim ? head.k[key] : 0.0f;
          if constexpr (decltype(reads)::value) q[r][n] = key < key_dim ? head.q[key] : 0.0f;
        }
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (row + r >= end) break;
        all *= decay[r];
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kKeys; ++n) {
          u[n] = __fmaf_rn(k[r][n], write[r], __fmul_rn(decay[r], u[n]));
          if constexpr (decltype(reads)::value) sum = __fmaf_rn(q[r][n], u[n], sum);
        }
        if constexpr (decltype(reads)::value) {
          sum = ReduceGroup<32>(sum);
          if (lane == 0) p.out[(first + row + r) * p.shape.states + state] = p.query_scale * sum;
        }
      }
    }
  };
  walk(std::false_type());
#pragma unroll
  for (int n = 0; n < kKeys; ++n) {
    if (n * 32 + lane < key_dim) states[warp * key_dim + n * 32 + lane] = u[n];
  }
  if (lane == 0) decays[warp] = all;
  __syncthreads();
  float* const memory = FieldAt<float>(p.state, slot) + int64_t{state} * key_dim;
  for (int key = threadIdx.x; key < key_dim; key += kThreads) {
    float before = memory[key];
    for (int w = 0; w < kWarps; ++w) {
      float* const at = states + w * key_dim + key;
      const float added = *at;
      *at = before;
      before = __fmaf_rn(decays[w], before, added);
    }
    memory[key] = before;
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kKeys; ++n) {
    const int key = n * 32 + lane;
    u[n] = key < key_dim ? states[warp * key_dim + key] : 0.0f;
  }
  walk(std::true_type());
}

}  // namespace

bool DecayColumnFits(const DecayScanCudaArgs& p) {
  const DecayScanShape& s = p.shape;
  return s.value_dim == 1 && p.v == nullptr && s.reads == 1 && !p.channel_decay && s.key_dim <= 512;
}

void LaunchDecayColumns(const Step& step, const DecayScanCudaArgs& p) {
  const int first = step.single_row_sequences;
  const dim3 grid(static_cast<unsigned>(p.shape.states),
                  static_cast<unsigned>(step.sequences - first));
  const int64_t key_dim = p.shape.key_dim;
  const auto kernel = key_dim <= 128   ? ColumnKernel<4>
                      : key_dim <= 256 ? ColumnKernel<8>
                                       : ColumnKernel<16>;
  kernel<<<grid, kThreads, static_cast<size_t>(kWarps * key_dim) * sizeof(float),
           static_cast<cudaStream_t>(step.stream)>>>(
      MakeDecayPart(step, p.shape, first, step.sequences), p);
}

}  // namespace eddy
