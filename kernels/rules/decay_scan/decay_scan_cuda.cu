// The step form: each element of the state is read and written once for a row.
#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/decay_scan/decay_scan_cuda.cuh"

namespace eddy {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// x runs over columns, y over states, z over sequences. kColumns neighbouring threads have kVec
// columns each of one row of the state, and of every (kThreads / kColumns)-th behind it. A thread
// comes back to its own elements only, so rows of a sequence can follow one another.
template <int kVec, int kColumns, int kReads, bool kChannel>
__global__ void __launch_bounds__(kThreads, kReads == 1 ? 8 : 4)
    StepKernel(const DecayPart part, const DecayScanCudaArgs p) {
  constexpr int kApart = kThreads / kColumns, kUnroll = 4;
  constexpr int kWidth = kColumns * kVec;
  // Threads of a warp that share a column are summed by the warp, so one sum is left of each.
  __shared__ float sums[kReads][kWarps][kWidth];
  const int key_dim = static_cast<int>(p.shape.key_dim);
  const int value_dim = static_cast<int>(p.shape.value_dim);
  const int reads = static_cast<int>(p.shape.reads);
  const int begin = static_cast<int>(blockIdx.x) * kWidth;
  const int column = begin + static_cast<int>(threadIdx.x) % kColumns * kVec;
  const bool live = column < value_dim;
  const int state = static_cast<int>(blockIdx.y);
  const int i = part.first + static_cast<int>(blockIdx.z);
  const int32_t slot = part.slots[i];
  const int64_t end = part.row_start[i + 1];
  float* const s = FieldAt<float>(p.state, slot) + int64_t{state} * key_dim * value_dim + column;
  const int bound = live ? key_dim : 0;
  for (int64_t row = part.row_start[i]; row < end; ++row) {
    const DecayHead head = HeadOfRow(p, part, row, state);
    if (slot == kNoSlot) {
      for (int r = threadIdx.x / kColumns; r < reads && live; r += kApart) {
        StoreFloats(head.out, int64_t{r} * value_dim + column, Floats<kVec>{});
      }
      continue;
    }
    Floats<kVec> v;
#pragma unroll
    for (int c = 0; c < kVec; ++c) v.v[c] = 1.0f;
    if (live && head.v != nullptr) v = LoadFloats<kVec>(head.v, column);
    if (head.write != nullptr) {
      const float write = *head.write;
#pragma unroll
      for (int c = 0; c < kVec; ++c) v.v[c] *= write;
    }
    for (int read = 0; read < reads; read += kReads) {
      const float* const q = head.q + int64_t{read} * key_dim;
      Floats<kVec> out[kReads] = {};
      for (int first = threadIdx.x / kColumns; first < bound; first += kApart * kUnroll) {
        Floats<kVec> e[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int n = first + u * kApart;
          if (n < bound) e[u] = LoadOnce<kVec>(s, int64_t{n} * value_dim);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int n = first + u * kApart;
          if (n >= bound) continue;
          if (read == 0) {
            const float a = head.decay[kChannel ? n : 0], k = head.k[n];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
              e[u].v[c] = __fmaf_rn(k, v.v[c], __fmul_rn(a, e[u].v[c]));
            }
            StoreOnce(s, int64_t{n} * value_dim, e[u]);
          }
#pragma unroll
          for (int r = 0; r < kReads; ++r) {
            const float qn = read + r < reads ? q[r * key_dim + n] : 0.0f;
#pragma unroll
            for (int c = 0; c < kVec; ++c) out[r].v[c] = __fmaf_rn(qn, e[u].v[c], out[r].v[c]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kReads; ++r) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
          float sum = out[r].v[c];
#pragma unroll
          for (int offset = 16; offset >= kColumns; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
          }
          if (threadIdx.x % 32 < kColumns) {
            sums[r][threadIdx.x / 32][threadIdx.x % 32 * kVec + c] = sum;
          }
        }
      }
      __syncthreads();
      for (int at = threadIdx.x; at < kReads * kWidth; at += kThreads) {
        const int r = at / kWidth, c = at % kWidth;
        if (read + r >= reads || begin + c >= value_dim) continue;
        float sum = sums[r][0][c];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) sum += sums[r][w][c];
        head.out[int64_t{read + r} * value_dim + begin + c] = p.query_scale * sum;
      }
      __syncthreads();
    }
  }
}

template <int kVec, int kColumns>
void Launch(const Step& step, const DecayScanCudaArgs& p, int first, int end) {
  constexpr int kWidth = kVec * kColumns;
  const dim3 grid(static_cast<unsigned>((p.shape.value_dim + kWidth - 1) / kWidth),
                  static_cast<unsigned>(p.shape.states), static_cast<unsigned>(end - first));
  const auto launch = [&]<int kReads>() {
    const auto kernel = p.channel_decay ? StepKernel<kVec, kColumns, kReads, true>
                                        : StepKernel<kVec, kColumns, kReads, false>;
    kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(step.stream)>>>(
        MakeDecayPart(step, p.shape, first, end), p);
  };
  p.shape.reads == 1 ? launch.template operator()<1>() : launch.template operator()<4>();
}

// Whether rows can be read four floats at a time.
bool TakesVectors(const DecayScanCudaArgs& p) {
  return p.v != nullptr && TakesFour(p.q, p.query_stride) && TakesFour(p.k, p.key_stride) &&
         TakesFour(p.v, p.value_stride) && TakesFour(p.decay, 0);
}

}  // namespace

void LaunchDecaySteps(const Step& step, const DecayScanCudaArgs& p, int first, int end) {
  const int64_t width = p.shape.value_dim;
  const bool four =
      width % 4 == 0 && TakesFour(p.state) && TakesFour(p.v, p.value_stride) && TakesFour(p.out, 0);
  if (four && width > 32) return Launch<4, 16>(step, p, first, end);
  if (four && width > 16) return Launch<4, 8>(step, p, first, end);
  if (four) return Launch<4, 4>(step, p, first, end);
  if (width > 4) return Launch<1, 32>(step, p, first, end);
  Launch<1, 1>(step, p, first, end);
}

void DecayScanCuda(const Step& step, const DecayScanCudaArgs& p) {
  const DecayScanShape& s = p.shape;
  EDDY_CHECK(s.states % s.key_heads == 0 && s.states * s.reads % s.query_heads == 0);
  EDDY_CHECK(s.reads == 1 || s.query_heads == s.states * s.reads);
  EDDY_CHECK(s.key_dim <= 1024);
  const int single = step.single_row_sequences;
  if (single > 0) LaunchDecaySteps(step, p, 0, single);
  if (step.sequences == single) return;
  const bool long_ones = step.max_rows_per_sequence >= kDecayChunkRows;
  const bool column = long_ones && DecayColumnFits(p);
  const bool chunks = long_ones && p.scratch != nullptr && DecayChunkFits(s) && TakesVectors(p);
  if (column) {
    LaunchDecayColumns(step, p);
  } else if (chunks) {
    LaunchDecayChunks(step, p);
  }
  const bool leave_long = column || chunks;
  if (!LaunchDecayRows(step, p, single, step.sequences, leave_long)) {
    EDDY_CHECK(!leave_long);
    LaunchDecaySteps(step, p, single, step.sequences);
  }
}

}  // namespace eddy
