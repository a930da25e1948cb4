#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/row_stream.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/selective_scan/selective_scan_cuda.cuh"

namespace eddy {
namespace {

constexpr int kThreads = kSelectiveThreads;
constexpr int kStages = 4;

// What a block has in shared memory of kRows tokens. kGroup threads share a channel, of which each
// has kOwn states.
template <int kGroup, int kOwn>
struct Tile {
  static constexpr int kChannels = kThreads / kGroup, kStates = kGroup * kOwn;
  // Tokens between two sums over a group.
  static constexpr int kBatch = kOwn <= 2 ? 8 : kOwn <= 4 ? 4 : 1;
  static constexpr int kFit = 2048 / (2 * kChannels + 2 * kStates);
  static constexpr int kRows = kFit < kBatch ? kBatch : kFit / kBatch * kBatch;
  static constexpr int kKeys = kRows * kStates;
  float keys[2 * kKeys];            // k [kRows, kStates], then q
  float step[kRows * kChannels];    // [kRows, kChannels]
  float inputs[kRows * kChannels];  // x of the same shape, in its type
};

using Ring = TileRing<kStages, kThreads>;

struct Walk {
  const int32_t* row_start;
  const int32_t* slots;
  int first;     // sequence of blockIdx.y 0
  bool sixteen;  // rows can be copied 16 bytes at once
};

// The warp that copies what the block sees.
template <bool kHalf, typename T>
__device__ inline void CopyRows(const Walk& walk, const SelectiveScanCudaArgs& p, int64_t first,
                                int rows, T* tiles, Ring ring) {
  constexpr int kWide = T::kChannels * 4, kInput = kHalf ? 2 : 4;
  using Keys = RowStream<32, T::kRows, T::kStates * 4, float>;
  using Steps = RowStream<32, T::kRows, kWide, float>;
  using Inputs = std::conditional_t<kHalf, RowStream<32, T::kRows, kWide / 2, uint16_t>, Steps>;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * T::kChannels;
  const int64_t at = first * p.channels + channel;
  const int64_t wide = min(int64_t{T::kChannels}, p.channels - channel);
  const bool sixteen = walk.sixteen;
  Keys k(p.k + first * p.row_stride, p.row_stride * 4, p.states * 4, sixteen);
  Keys q(p.q + first * p.row_stride, p.row_stride * 4, p.states * 4, sixteen);
  Steps step(p.step + at, p.channels * 4, wide * 4, sixteen);
  Inputs x(static_cast<const std::byte*>(p.x) + at * kInput, p.channels * kInput, wide * kInput,
           sixteen);
  ring.FillAll([&](int index, int place) {
    const int count = min(rows - index * T::kRows, T::kRows);
    T& tile = tiles[place];
    k.Next(tile.keys, count);
    q.Next(tile.keys + T::kKeys, count);
    step.Next(tile.step, count);
    x.Next(tile.inputs, count);
  });
}

// What a thread sees of kBatch tokens, and the decays that follow from it.
template <int kOwn, int kBatch>
struct Seen {
  float step[kBatch], x[kBatch];
  Floats<kOwn> k[kBatch], q[kBatch];
};
template <int kOwn, int kBatch>
struct Decays {
  Floats<kOwn> a[kBatch];
};

// Those of token t.
template <bool kExponential, int kOwn, int kBatch>
__device__ inline void Decay(const Seen<kOwn, kBatch>& seen, const Floats<kOwn>& rate, int t,
                             Decays<kOwn, kBatch>& decays) {
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    decays.a[t].v[j] = SelectiveDecay<kExponential>(seen.step[t], rate.v[j], seen.k[t].v[j]);
  }
}

// By token t; returns sum_n q S.
template <int kOwn, int kBatch>
__device__ inline float Advance(const Seen<kOwn, kBatch>& seen, const Decays<kOwn, kBatch>& decays,
                                int t, Floats<kOwn>& s) {
  const float input = __fmul_rn(seen.step[t], seen.x[t]);
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const float kept = __fmul_rn(decays.a[t].v[j], s.v[j]), q = seen.q[t].v[j];
    s.v[j] = __fmaf_rn(seen.k[t].v[j], input, kept);
    sum = j == 0 ? __fmul_rn(q, s.v[j]) : __fmaf_rn(q, s.v[j], sum);
  }
  return sum;
}

// All rows of a sequence; y runs over sequences, x over channels. The states stay in registers.
template <bool kExponential, bool kHalf, int kGroup, int kOwn>
__global__ void __launch_bounds__(Ring::kThreads)
    RowsKernel(const Walk walk, const SelectiveScanCudaArgs p) {
  using T = Tile<kGroup, kOwn>;
  constexpr int kBatch = T::kBatch, kRows = T::kRows;
  __shared__ alignas(16) T tiles[kStages];
  const int i = walk.first + static_cast<int>(blockIdx.y);
  const int64_t first = walk.row_start[i];
  const int rows = static_cast<int>(walk.row_start[i + 1] - first);
  const int32_t slot = walk.slots[i];
  const int thread = ThreadOfBlock(), lane = thread % kGroup, column = thread / kGroup;
  const bool walks = WarpOfBlock() < kThreads / 32;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * T::kChannels + column;
  const bool live = walks && channel < p.channels;
  float* const out = p.out + first * p.channels + channel;
  if (slot == kNoSlot) {
    for (int64_t t = lane; t < rows && live; t += kGroup) out[t * p.channels] = 0.0f;
    return;
  }
  const int states = static_cast<int>(p.states), n = lane * kOwn;
  if (states < T::kStates) {  // those beyond the last one see zeros
    for (T& tile : tiles) {
      for (int t = thread; t < 2 * T::kKeys; t += Ring::kThreads) tile.keys[t] = 0.0f;
    }
    __syncthreads();
  }
  Ring ring((rows + kRows - 1) / kRows);
  if (!walks) return CopyRows<kHalf>(walk, p, first, rows, tiles, ring);

  float* const state = FieldAt<float>(p.state, slot) + int64_t{n} * p.channels + channel;
  Floats<kOwn> s = {}, rate = {};
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (!live || n + j >= states) continue;
    s.v[j] = state[j * p.channels];
    if (kExponential) rate.v[j] = p.rates[(n + j) * p.channels + channel];
  }
  using Input = std::conditional_t<kHalf, __nv_bfloat16, float>;
  // Of the next batch.
  const float *keys = tiles[0].keys, *steps = tiles[0].step;
  const auto* inputs = reinterpret_cast<const Input*>(tiles[0].inputs);
  int loaded = kRows;  // rows of the tile
  const auto load = [&](Seen<kOwn, kBatch>& to) {
    if (loaded == kRows) {
      const T& tile = tiles[ring.Next()];
      keys = tile.keys + n, steps = tile.step + column, loaded = 0;
      inputs = reinterpret_cast<const Input*>(tile.inputs) + column;
    }
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
      constexpr int kVec = kOwn % 4 == 0 ? 4 : kOwn;
      to.step[t] = steps[t * T::kChannels];
      to.x[t] = static_cast<float>(inputs[t * T::kChannels]);
#pragma unroll
      for (int j = 0; j < kOwn; j += kVec) {
        const auto k = LoadShared<kVec>(keys + t * T::kStates + j);
        const auto q = LoadShared<kVec>(keys + T::kKeys + t * T::kStates + j);
#pragma unroll
        for (int u = 0; u < kVec; ++u) to.k[t].v[j + u] = k.v[u], to.q[t].v[j + u] = q.v[u];
      }
    }
    keys += kBatch * T::kStates, steps += kBatch * T::kChannels, inputs += kBatch * T::kChannels;
    loaded += kBatch;
  };
  float sums[kBatch] = {};
  GroupRows<kGroup, kBatch> to(thread, out, p.channels, live ? rows : 0);
  Seen<kOwn, kBatch> seen;
  Decays<kOwn, kBatch> decays;
  const auto begin = [&] {
    load(seen);
#pragma unroll
    for (int t = 0; t < kBatch; ++t) Decay<kExponential>(seen, rate, t, decays);
  };
  begin();
  int row = 0;
  // While a batch advances, the next one comes out of shared memory and its decays are made. The
  // two take turns with the registers.
  const auto advance = [&](const auto& now, const auto& kept, auto& next, auto& next_kept) {
    load(next);
    float fresh[kBatch];
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
      fresh[t] = Advance(now, kept, t, s);
      if (t > 0) Decay<kExponential>(next, rate, t - 1, next_kept);
    }
    Decay<kExponential>(next, rate, kBatch - 1, next_kept);
    to.Write(sums);
#pragma unroll
    for (int t = 0; t < kBatch; ++t) sums[t] = fresh[t];
    row += kBatch;
  };
  while (row + 2 * kBatch < rows) {
    Seen<kOwn, kBatch> next;
    Decays<kOwn, kBatch> next_decays;
    advance(seen, decays, next, next_decays);
    advance(next, next_decays, seen, decays);
  }
  while (true) {
    to.Write(sums);
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
      if (row + t < rows) sums[t] = Advance(seen, decays, t, s);
    }
    row += kBatch;
    if (row >= rows) break;
    begin();
  }
  to.Write(sums);
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (live && n + j < states) state[j * p.channels] = s.v[j];
  }
}

template <int kGroup, int kOwn>
void Launch(const Step& step, const SelectiveScanCudaArgs& p, int first, int end) {
  constexpr int kChannels = Tile<kGroup, kOwn>::kChannels;
  const int64_t x_bytes = p.channels * SizeOf(p.x_type);
  const Walk walk = {.row_start = step.row_start,
                     .slots = step.slots,
                     .first = first,
                     .sixteen = TakesSixteen(p.k, p.row_stride * 4, p.states * 4) &&
                                TakesSixteen(p.q, p.row_stride * 4, p.states * 4) &&
                                TakesSixteen(p.step, p.channels * 4, p.channels * 4) &&
                                TakesSixteen(p.x, x_bytes, x_bytes)};
  const dim3 grid(static_cast<unsigned>((p.channels + kChannels - 1) / kChannels),
                  static_cast<unsigned>(end - first));
  const bool half = p.x_type == DType::kBF16;
  const auto kernel = p.rates != nullptr ? half ? RowsKernel<true, true, kGroup, kOwn>
                                                : RowsKernel<true, false, kGroup, kOwn>
                      : half ? RowsKernel<false, true, kGroup, kOwn>
                                         : RowsKernel<false, false, kGroup, kOwn>;
  kernel<<<grid, Ring::kThreads, 0, static_cast<cudaStream_t>(step.stream)>>>(walk, p);
}

}  // namespace

void SelectiveScanRowsCuda(const Step& step, const SelectiveScanCudaArgs& p, int first, int end) {
  if (p.states <= 4) return Launch<4, 1>(step, p, first, end);
  if (p.states <= 16) return Launch<4, 4>(step, p, first, end);
  if (p.states <= 32) return Launch<8, 4>(step, p, first, end);
  if (p.states <= 64) return Launch<16, 4>(step, p, first, end);
  if (p.states <= 128) return Launch<32, 4>(step, p, first, end);
  EDDY_CHECK(p.states <= 1024);
  Launch<32, 32>(step, p, first, end);
}

}  // namespace eddy
