// Many tokens of a sequence, one after another, and the flush. A warp owns eight columns of one
// value head's S and needs nobody else: lane l keeps rows l, l + 32, ... in registers from the
// first token to the last, and sums over K are taken across the lanes, always in the same order.
#include <cuda_bf16.h>

#include "base/check.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rules/delta_rule/delta_rule_cuda.cuh"

namespace eddy {
namespace {

constexpr int kWarp = 32;
constexpr int kColumns = kReadoutColumns;                        // of a warp
constexpr int kThreads = kDeltaCountColumns / kColumns * kWarp;  // a block: columns with one count

// The columns of a warp; those beyond V read as zero and are not written.
struct Columns {
  __device__ explicit Columns(const DeltaKernelArgs& p, int first_of_warp)
      : first(first_of_warp), count(min(kColumns, p.value_dim - first_of_warp)) {}

  // Rows of S begin on a multiple of `numbers`, in which whole columns can be read.
  __device__ bool whole(const DeltaKernelArgs& p, int numbers) const {
    return count == kColumns && p.value_dim % numbers == 0;
  }

  int first, count;
};

// A row's kColumns numbers, all of them there; in accesses of 16 bytes.
__device__ void LoadRow(const float* from, float (&to)[kColumns]) {
  const float4 low = *reinterpret_cast<const float4*>(from);
  const float4 high = *reinterpret_cast<const float4*>(from + 4);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}
__device__ void LoadRow(const __nv_bfloat16* from, float (&to)[kColumns]) {
  const uint4 x = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    to[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
}
__device__ void StoreRow(const float (&from)[kColumns], float* to) {
  *reinterpret_cast<float4*>(to) = {from[0], from[1], from[2], from[3]};
  *reinterpret_cast<float4*>(to + 4) = {from[4], from[5], from[6], from[7]};
}
__device__ void StoreRow(const float (&from)[kColumns], __nv_bfloat16* to) {
  uint32_t words[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
}
__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void Put(float x, float* to) { *to = x; }
__device__ void Put(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }

// A lane's rows of S, whose numbers the record has as T.
template <typename T, int kRows>
struct State {
  float s[kRows][kColumns];

  __device__ void Load(const DeltaKernelArgs& p, const Columns& columns, const T* from) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const int row = lane + m * kWarp;
      const T* at = from + row * p.value_dim + columns.first;
      if (row < p.key_dim && columns.whole(p, 16 / sizeof(T))) {
        LoadRow(at, s[m]);
        continue;
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        s[m][c] = row < p.key_dim && c < columns.count ? ToFloat(at[c]) : 0.0f;
      }
    }
  }

  __device__ void Store(const DeltaKernelArgs& p, const Columns& columns, T* to) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const int row = lane + m * kWarp;
      if (row >= p.key_dim) continue;
      T* at = to + row * p.value_dim + columns.first;
      if (columns.whole(p, 16 / sizeof(T))) {
        StoreRow(s[m], at);
        continue;
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c < columns.count) Put(s[m][c], at + c);
      }
    }
  }

  // S <- diag(a) S
  __device__ void Decay(const float (&a)[kRows]) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[m][c] *= a[m];
    }
  }

  // S <- S + w n'
  __device__ void Add(const float (&w)[kRows], const float (&n)[kColumns]) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[m][c] = fmaf(w[m], n[c], s[m][c]);
    }
  }
};

// The lane's entries of a vector over K; `otherwise` beyond it.
template <int kRows>
__device__ void LoadKeys(const float* from, int key_dim, float otherwise, float (&to)[kRows]) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const int row = static_cast<int>(threadIdx.x) % kWarp + m * kWarp;
    to[m] = row < key_dim ? from[row] : otherwise;
  }
}

// Decay factors: one for all of K, or one each; null: none.
template <int kRows>
__device__ void LoadDecay(const float* from, const DeltaKernelArgs& p, float (&to)[kRows]) {
  if (from != nullptr && p.channel_decay) return LoadKeys(from, p.key_dim, 1.0f, to);
  const float all = from != nullptr ? *from : 1.0f;
#pragma unroll
  for (int m = 0; m < kRows; ++m) to[m] = all;
}

// Replays the pending pairs, oldest first.
template <typename T, int kRows>
__device__ void Replay(const DeltaKernelArgs& p, const DeltaHead& at, const Columns& columns,
                       int count, State<T, kRows>& state) {
  for (int pair = 0; pair < count; ++pair) {
    float a[kRows], w[kRows], n[kColumns];
    if (at.a != nullptr) {
      LoadDecay(at.a + pair * (p.channel_decay ? p.key_dim : 1), p, a);
      state.Decay(a);
    }
    LoadKeys(at.w + pair * p.key_dim, p.key_dim, 0.0f, w);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      n[c] = c < columns.count ? at.n[pair * p.value_dim + columns.first + c] : 0.0f;
    }
    state.Add(w, n);
  }
}

// What a lane needs of a token. After the sums over K, lane l has those of column l / 2 % 8: the
// lanes below 16 of S'k, the others of S'q.
template <int kRows>
struct Token {
  __device__ Token(const DeltaKernelArgs& p, const DeltaInputs& in, int column, bool inside)
      : v(inside ? in.v[column] : 0.0f), beta(*in.beta) {
    LoadKeys(in.q, p.key_dim, 0.0f, q);
    LoadKeys(in.k, p.key_dim, 0.0f, k);
    LoadKeys(in.w, p.key_dim, 0.0f, w);
    LoadDecay(in.decay, p, a);
  }

  float q[kRows], k[kRows], w[kRows], a[kRows];
  float v, beta;
};

// One token: advances S and returns o in the lanes from 16 on. `e` in the lanes below.
template <typename T, int kRows>
__device__ float Advance(const Token<kRows>& token, bool decays, State<T, kRows>& state, float* e) {
  if (decays) state.Decay(token.a);
  float sums[2 * kColumns] = {};
  float qw = 0;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    qw = fmaf(token.q[m], token.w[m], qw);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      sums[c] = fmaf(token.k[m], state.s[m][c], sums[c]);
      sums[kColumns + c] = fmaf(token.q[m], state.s[m][c], sums[kColumns + c]);
    }
  }
  qw = WarpSum(qw);
  const float sum = WarpSumEach<2 * kColumns>(sums);
  *e = token.v - sum;
  float n[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    n[c] = __shfl_sync(kWholeWarp, token.beta * *e, 2 * c);
  }
  state.Add(token.w, n);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return fmaf(qw, __shfl_sync(kWholeWarp, token.beta * *e, lane % (2 * kColumns)), sum);
}

// The warp's part of the read-outs of a token.
template <int kRows>
__device__ void WriteReadouts(const DeltaKernelArgs& p, const Token<kRows>& token, float e,
                              float* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float kw = 0, decay = 0;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    kw = fmaf(token.k[m], token.w[m], kw);
    if (lane + m * kWarp < p.key_dim) decay += token.a[m];
  }
  // Each column is in two lanes of those that have v.
  const float share = lane < 2 * kColumns && lane % 2 == 0 ? 1.0f : 0.0f;
  const float missed = WarpSum(share * e * e), length = WarpSum(share * token.v * token.v);
  kw = WarpSum(kw);
  decay = WarpSum(decay);
  if (lane != 0) return;
  to[0] = token.beta == 0 ? 0.0f : missed;
  to[1] = length;
  to[2] = (1.0f - token.beta * kw) * (1.0f - token.beta * kw);
  to[3] = decay / static_cast<float>(p.key_dim);
}

// The rows [first, last) of a sequence of one value head.
template <typename T, int kRows>
__device__ void AdvanceRows(const DeltaKernelArgs& p, int head, const Columns& columns, int first,
                            int last, State<T, kRows>& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int offset = lane / 2 % kColumns;  // of this lane's column
  const bool inside = offset < columns.count, decays = p.decay.data != nullptr;
  const int column = columns.first + offset;
  Token<kRows> next(p, DeltaInputs(p, first, head), column, inside);
  for (int row = first; row < last; ++row) {
    const Token<kRows> token = next;
    if (row + 1 < last) next = Token<kRows>(p, DeltaInputs(p, row + 1, head), column, inside);
    float e;
    const float out = Advance(token, decays, state, &e);
    if (inside && lane >= 2 * kColumns && lane % 2 == 0) {
      p.out[row * p.out_stride + head * p.value_dim + column] = out;
    }
    if (p.readouts != nullptr) {
      WriteReadouts(p, token, e, DeltaReadoutPart(p, row, head, columns.first / kColumns));
    }
  }
}

__device__ inline void WriteZeros(const DeltaKernelArgs& p, int head, const Columns& columns,
                                  int first, int last) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int row = first; row < last; ++row) {
    if (lane < columns.count) {
      p.out[row * p.out_stride + head * p.value_dim + columns.first + lane] = 0;
    }
    if (p.readouts != nullptr && lane < kReadoutParts) {
      DeltaReadoutPart(p, row, head, columns.first / kColumns)[lane] = 0;
    }
  }
}

// Blocks of a multiprocessor, which the compiler would trade for loads further ahead.
constexpr int Blocks(int rows) { return rows == 1 ? 10 : rows == 2 ? 9 : rows == 4 ? 5 : 2; }

// A block for 32 columns of a head of a sequence. `row_start` null: a flush.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads, Blocks(kRows))
    DeltaRows(const __grid_constant__ DeltaKernelArgs p, const int32_t* slots,
              const int32_t* row_start, int first_sequence) {
  const int part = static_cast<int>(blockIdx.x) % p.count_groups;
  const int head = static_cast<int>(blockIdx.x) / p.count_groups % p.value_heads;
  const int sequence =
      first_sequence + static_cast<int>(blockIdx.x) / p.count_groups / p.value_heads;
  const int first = row_start != nullptr ? row_start[sequence] : 0;
  const int last = row_start != nullptr ? row_start[sequence + 1] : 0;
  const int32_t slot = slots[sequence];
  const Columns columns(p, part * static_cast<int>(kDeltaCountColumns) +
                               static_cast<int>(threadIdx.x) / kWarp * kColumns);
  if (slot == kNoSlot) {
    if (columns.count > 0) WriteZeros(p, head, columns, first, last);
    return;
  }
  const DeltaHead at(p, slot, head);
  const int count = p.entries != 0 ? at.count[part] : 0;
  // All warps have read the count before one of them changes it.
  __syncthreads();
  if (count > 0 && threadIdx.x == 0) at.count[part] = 0;
  if (columns.count <= 0 || (count == 0 && first == last)) return;
  State<T, kRows> state;
  state.Load(p, columns, reinterpret_cast<const T*>(at.s));
  Replay(p, at, columns, count, state);
  if (first < last) AdvanceRows(p, head, columns, first, last, state);
  state.Store(p, columns, reinterpret_cast<T*>(at.s));
}

template <typename T>
void Launch(const Step& step, const DeltaKernelArgs& p, int first_sequence,
            const int32_t* row_start) {
  const int blocks = (step.sequences - first_sequence) * p.value_heads * p.count_groups;
  const auto launch = [&](auto* kernel) {
    kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(step.stream)>>>(
        p, step.slots, row_start, first_sequence);
  };
  if (p.key_dim <= 32) return launch(DeltaRows<T, 1>);
  if (p.key_dim <= 64) return launch(DeltaRows<T, 2>);
  if (p.key_dim <= 128) return launch(DeltaRows<T, 4>);
  return launch(DeltaRows<T, 8>);
}

// For the type of S.
void Launch(const Step& step, const DeltaKernelArgs& p, int first_sequence,
            const int32_t* row_start) {
  if (p.state_bytes == 4) return Launch<float>(step, p, first_sequence, row_start);
  Launch<__nv_bfloat16>(step, p, first_sequence, row_start);
}

}  // namespace

void DeltaRuleRowsCuda(const Step& step, const DeltaRuleCudaArgs& args, int first_sequence) {
  EDDY_CHECK(first_sequence >= 0 && first_sequence <= step.sequences);
  if (first_sequence == step.sequences) return;
  const DeltaKernelArgs p = ResolveDeltaArgs(args, kColumns);
  Launch(step, p, first_sequence, step.row_start);
  // Sequences before the first are of one row each, if their rows are someone else's.
  const int first_row = first_sequence;
  SumDeltaReadouts(args, p, first_row, step.rows - first_row, step.stream);
}

void DeltaRuleFlushCuda(const Step& step, const DeltaRuleCudaArgs& args) {
  if (step.sequences == 0 || args.pending_updates == 1) return;
  DeltaRuleCudaArgs state_only = args;
  state_only.readouts = {};
  Launch(step, ResolveDeltaArgs(state_only, kColumns), 0, nullptr);
}

}  // namespace eddy
