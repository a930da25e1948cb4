// The form for many rows: the state stays in registers, and the tokens go by, one after another.
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/decay_scan/decay_scan_cuda.cuh"

namespace eddy {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int64_t kSharedBytes = 48 * 1024;  // what a kernel may have without asking for more
constexpr int kMostTokens = 16;              // in a tile

// What a tile holds of one token, in floats: k, decay, queries, v, write. The vectors over K are
// zeros beyond it up to `keys`, a multiple of 4 that is the same for all.
struct TokenLayout {
  int keys = 0, decays = 0, reads = 0, columns = 0;
  __host__ __device__ int k() const { return 0; }
  __host__ __device__ int decay() const { return keys; }
  __host__ __device__ int q() const { return decay() + decays; }
  __host__ __device__ int v() const { return q() + reads * keys; }
  __host__ __device__ int write() const { return v() + columns; }
  __host__ __device__ int floats() const { return (write() + 1 + 3) / 4 * 4; }
};

// Starts copying the tokens [0, count) from `head` on into `tile`, kUnit floats at once; no threads
// wait here. `values`: columns of the block that there are.
template <int kUnit>
__device__ inline void Fetch(const DecayScanCudaArgs& p, const TokenLayout& layout,
                             const DecayHead& head, int count, int values, float* tile) {
  const int keys = static_cast<int>(p.shape.key_dim) / kUnit;
  const int decays = p.channel_decay ? keys : 0, queries = layout.reads * keys;
  const int value_units = head.v == nullptr ? 0 : values / kUnit;
  const int units = keys + decays + queries + value_units;
  const int64_t decay_stride = p.shape.states * (p.channel_decay ? p.shape.key_dim : 1);
  for (int at = threadIdx.x; at < count * units; at += kThreads) {
    const int t = at / units;
    int unit = at - t * units;
    float* to = tile + t * layout.floats();
    const float* from;
    if (unit < keys) {
      to += layout.k();
      from = head.k + t * p.key_stride;
    } else if ((unit -= keys) < decays) {
      to += layout.decay();
      from = head.decay + t * decay_stride;
    } else if ((unit -= decays) < queries) {
      // Rows of the tile are longer than the keys.
      const int read = unit / keys;
      to += layout.q() + read * (layout.keys - keys * kUnit);
      from = head.q + t * p.query_stride;
    } else {
      unit -= queries;
      to += layout.v();
      from = head.v + t * p.value_stride;
    }
    __pipeline_memcpy_async(to + unit * kUnit, from + unit * kUnit, sizeof(float) * kUnit);
  }
  for (int t = threadIdx.x; t < count; t += kThreads) {
    float* const token = tile + t * layout.floats();
    const int64_t on = t * p.shape.states;
    token[layout.write()] = head.write == nullptr ? 1.0f : head.write[on];
    if (!p.channel_decay) token[layout.decay()] = head.decay[on];
  }
}

// `head` so many rows further on.
__device__ inline DecayHead RowsFurther(const DecayScanCudaArgs& p, const DecayHead& head,
                                        int64_t rows) {
  const DecayScanShape& s = p.shape;
  return {.q = head.q + rows * p.query_stride,
          .k = head.k + rows * p.key_stride,
          .v = head.v == nullptr ? nullptr : head.v + rows * p.value_stride,
          .write = head.write == nullptr ? nullptr : head.write + rows * s.states,
          .decay = head.decay + rows * s.states * (p.channel_decay ? s.key_dim : 1),
          .out = head.out + rows * s.states * s.reads * s.value_dim};
}

// x runs over columns, y over states, z over sequences. A warp has kColumns (32 / kLanes) columns:
// kLanes neighbouring lanes share kColumns of them and have kKeys rows of the state each, in fours
// that take turns.
template <int kLanes, int kKeys, int kColumns, bool kChannel, int kUnit>
__global__ void __launch_bounds__(kThreads, 1)
    RowsKernel(const DecayPart part, const DecayScanCudaArgs p, const TokenLayout layout,
               int tokens, bool leave_long) {
  constexpr int kWidth = kWarps * (32 / kLanes) * kColumns;  // columns of the block
  extern __shared__ __align__(16) float shared[];            // two tiles
  const int64_t key_dim = p.shape.key_dim, value_dim = p.shape.value_dim;
  const int begin = static_cast<int>(blockIdx.x) * kWidth;
  const int lane = threadIdx.x % kLanes, own = threadIdx.x / kLanes * kColumns;
  const int values = min(kWidth, static_cast<int>(value_dim) - begin);
  const int state = static_cast<int>(blockIdx.y);
  const int i = part.first + static_cast<int>(blockIdx.z);
  const int64_t first = part.row_start[i];
  const int rows = static_cast<int>(part.row_start[i + 1] - first);
  const int32_t slot = part.slots[i];
  if (leave_long && TakesChunks(rows, slot)) return;
  DecayHead head = HeadOfRow(p, part, first, state);
  if (head.v != nullptr) head.v += begin;
  head.out += begin;
  const int64_t out_stride = p.shape.states * p.shape.reads * value_dim;
  if (slot == kNoSlot) {
    for (int t = 0; t < rows; ++t, head.out += out_stride) {
      for (int at = threadIdx.x; at < p.shape.reads * values; at += kThreads) {
        head.out[at / values * value_dim + at % values] = 0.0f;
      }
    }
    return;
  }
  const int tile_floats = tokens * layout.floats();
  // Zeros beyond the keys; values are ones unless others come.
  for (int at = threadIdx.x; at < 2 * tile_floats; at += kThreads) {
    const int in_token = at % layout.floats();
    shared[at] = head.v == nullptr && in_token >= layout.v() && in_token < layout.write();
  }

  float* const memory =
      FieldAt<float>(p.state, slot) + int64_t{state} * key_dim * value_dim + begin + own;
  float s[kKeys][kColumns];
  // Calls visit(element, address) for what this thread has of the state.
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const int64_t key = (n / 4 * kLanes + lane) * 4 + n % 4;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const bool there = key < key_dim && own + c < values;
        visit(s[n][c], there ? memory + key * value_dim + c : nullptr);
      }
    }
  };
  for_each([](float& e, const float* at) { e = at == nullptr ? 0.0f : *at; });
  __syncthreads();
  Fetch<kUnit>(p, layout, head, min(tokens, rows), values, shared);
  __pipeline_commit();
  for (int tile = 0; tile * tokens < rows; ++tile) {
    const int done = tile * tokens, count = min(tokens, rows - done);
    const int ahead = max(0, min(tokens, rows - done - tokens));
    Fetch<kUnit>(p, layout, RowsFurther(p, head, done + tokens), ahead, values,
                 shared + (tile + 1) % 2 * tile_floats);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const float* token = shared + tile % 2 * tile_floats;
    for (int t = 0; t < count; ++t, token += layout.floats()) {
      float v[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        v[c] = token[layout.v() + own + c] * token[layout.write()];
      }
      const float decay = token[layout.decay()];
#pragma unroll
      for (int n = 0; n < kKeys; n += 4) {
        const int at = (n / 4 * kLanes + lane) * 4;
        const auto k = LoadFloats<4>(token, layout.k() + at);
        Floats<4> a;
        if (kChannel) a = LoadFloats<4>(token, layout.decay() + at);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            float& x = s[n + e][c];
            x = __fmaf_rn(k.v[e], v[c], __fmul_rn(kChannel ? a.v[e] : decay, x));
          }
        }
      }
      float* const out = head.out + (done + t) * out_stride;
      for (int r = 0; r < layout.reads; ++r) {
        float sums[kColumns] = {};
#pragma unroll
        for (int n = 0; n < kKeys; n += 4) {
          const auto q =
              LoadFloats<4>(token, layout.q() + r * layout.keys + (n / 4 * kLanes + lane) * 4);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) sums[c] = __fmaf_rn(q.v[e], s[n + e][c], sums[c]);
          }
        }
        const int c = own + ReduceMany<kLanes>(sums);
        constexpr int kSame = kLanes / kColumns;  // lanes with the same sum
        if (lane % kSame == 0 && c < values) out[r * value_dim + c] = p.query_scale * sums[0];
      }
    }
    __syncthreads();  // the tile may be overwritten
  }
  for_each([](float e, float* at) {
    if (at != nullptr) *at = e;
  });
}

template <int kLanes, int kKeys, int kColumns>
bool Launch(const Step& step, const DecayScanCudaArgs& p, int first, int end, bool leave_long) {
  constexpr int kWidth = kWarps * (32 / kLanes) * kColumns, kMostKeys = kLanes * kKeys;
  const TokenLayout layout = {.keys = kMostKeys,
                              .decays = p.channel_decay ? kMostKeys : 4,
                              .reads = static_cast<int>(p.shape.reads),
                              .columns = kWidth};
  const int64_t token_bytes = layout.floats() * int64_t{sizeof(float)};
  const auto tokens =
      static_cast<int>(std::min<int64_t>(kMostTokens, kSharedBytes / (2 * token_bytes)));
  if (tokens == 0) return false;
  const auto bytes = static_cast<size_t>(2 * tokens * token_bytes);
  const dim3 grid(static_cast<unsigned>((p.shape.value_dim + kWidth - 1) / kWidth),
                  static_cast<unsigned>(p.shape.states), static_cast<unsigned>(end - first));
  const bool fours = p.shape.key_dim % 4 == 0 && p.shape.value_dim % 4 == 0 &&
                     TakesFour(p.q, p.query_stride) && TakesFour(p.k, p.key_stride) &&
                     TakesFour(p.v, p.value_stride) && TakesFour(p.decay, 0);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kThreads, bytes, static_cast<cudaStream_t>(step.stream)>>>(
        MakeDecayPart(step, p.shape, first, end), p, layout, tokens, leave_long);
  };
  if (p.channel_decay) {
    fours ? launch(RowsKernel<kLanes, kKeys, kColumns, true, 4>)
          : launch(RowsKernel<kLanes, kKeys, kColumns, true, 1>);
  } else {
    fours ? launch(RowsKernel<kLanes, kKeys, kColumns, false, 4>)
          : launch(RowsKernel<kLanes, kKeys, kColumns, false, 1>);
  }
  return true;
}

}  // namespace

bool LaunchDecayRows(const Step& step, const DecayScanCudaArgs& p, int first, int end,
                     bool leave_long) {
  const int64_t key_dim = p.shape.key_dim;
  if (key_dim <= 32) return Launch<8, 4, 4>(step, p, first, end, leave_long);
  if (key_dim <= 64) return Launch<8, 8, 2>(step, p, first, end, leave_long);
  if (key_dim <= 128) return Launch<8, 16, 2>(step, p, first, end, leave_long);
  if (key_dim <= 256) return Launch<16, 16, 2>(step, p, first, end, leave_long);
  if (key_dim <= 512) return Launch<32, 16, 2>(step, p, first, end, leave_long);
  return Launch<32, 32, 1>(step, p, first, end, leave_long);
}

}  // namespace eddy
