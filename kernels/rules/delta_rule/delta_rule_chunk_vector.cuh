// X and P where every key channel has a decay of its own.
#pragma once

#include "kernels/rules/delta_rule/delta_rule_chunk_grams.cuh"

namespace eddy::delta_chunk {

// Copies g [rows, K] to shared memory in the background, zeros behind it.
template <int K>
__device__ void LoadVectorDecays(const Problem& p, int64_t head_row, int rows, float* decays) {
  constexpr int kPieces = K / 4, kStep = kPrepareThreads / kPieces;
  const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;
  const float* g = p.log_decay + head_row * K + piece * 4;
  const uint32_t to = SharedAddress(decays + piece * 4);
#pragma unroll
  for (int i = 0; i < kChunk; i += kStep) {
    const int row = first + i;
    const bool valid = row < rows;
    const int64_t from = valid ? static_cast<int64_t>(row) * p.value_heads * K : 0;
    CopyAsync16(to + row * (K + kDecayPad) * 4, g + from, valid);
  }
}

// Inclusive sums of the rows in place: threads sum parts of a column, whose totals pass by `totals`
// [kPrepareThreads].
template <int K>
__device__ void SumVectorDecays(float* decays, float* totals) {
  constexpr int kParts = kPrepareThreads / K, kRows = kChunk / kParts, kPitch = K + kDecayPad;
  const int d = threadIdx.x % K, part = threadIdx.x / K;
  float* mine = decays + part * kRows * kPitch + d;
  float sums[kRows];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) sums[i] = sum += Log2Decay(mine[i * kPitch]);
  totals[threadIdx.x] = sum;
  __syncthreads();
  float before = 0;
#pragma unroll
  for (int i = 0; i < kParts - 1; ++i) {
    if (i < part) before += totals[i * K + d];
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) mine[i * kPitch] = before + sums[i];
}

// Sums of X and P: pairs of C tiles, [16, 16] each, at columns 16 (2 i + side).
struct GramSums {
  float x[2][2][4] = {}, p[2][2][4] = {};
};

// Multiplies the left operands `key` and `query` with 16 rows of the right one.
__device__ inline void AddGrams(const uint32_t (&key)[4], const uint32_t (&query)[4],
                                const uint32_t (&b)[4], int i, GramSums& sums) {
  Mma(sums.x[i][0], key, b[0], b[1]);
  Mma(sums.x[i][1], key, b[2], b[3]);
  Mma(sums.p[i][0], query, b[0], b[1]);
  Mma(sums.p[i][1], query, b[2], b[3]);
}

// Writes a warp's pairs of X and P left of column 16 `pairs`, masked. `between(i, j)` is the decay
// between rows i >= j.
template <typename Between>
__device__ void StoreGrams(const GramInputs& in, const GramPlace& place, int pairs,
                           const GramSums& sums, float* to_x, __nv_bfloat16* to_p,
                           Between between) {
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {  // column pairs, C tiles, rows g and g + 8
    const int pair = 2 * (tile / 4) + place.side, n = tile / 2 % 2, low = tile % 2;
    if (pair >= pairs) continue;
    const int i = place.block * 16 + place.g + 8 * low, column = pair * 16 + n * 8 + 2 * place.t;
    float xs[2], ps[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = column + j;
      const float decay = at <= i ? between(i, at) : 0.0f;
      xs[j] = at < i ? sums.x[tile / 4][n][2 * low + j] * decay * in.beta[i] : 0.0f;
      ps[j] = at <= i ? sums.p[tile / 4][n][2 * low + j] * decay : 0.0f;
    }
    *reinterpret_cast<float2*>(to_x + i * kXPitch + column) = {xs[0], xs[1]};
    if (i < in.rows) {
      *reinterpret_cast<uint32_t*>(to_p + i * in.score_stride + column) = PackBf16(ps[0], ps[1]);
    }
  }
}

template <int K>
__device__ float ReadElement(uint32_t matrix, int row, int column) {
  uint16_t bits;
  asm volatile("ld.shared.u16 %0, [%1];"
               : "=h"(bits)
               : "r"(matrix + PieceOffset(row, column / 8) + column % 8 * 2));
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// The warp's half of the block of 16 rows on the diagonal, element by element.
template <int K>
__device__ void DiagonalGrams(const GramInputs& in, const GramPlace& place, float* to_x,
                              __nv_bfloat16* to_p) {
  constexpr int kPitch = K + kDecayPad;
  const int first = place.block * 16;
  for (int pair = place.side * 32 + place.lane; pair < 256; pair += 64) {
    const int i = first + pair / 16, j = first + pair % 16;
    float x = 0, p = 0;
    for (int d = 0; d < K && j <= i; ++d) {
      const float between = Exp2(in.decays[i * kPitch + d] - in.decays[j * kPitch + d]);
      const float write = between * ReadElement<K>(in.writes, j, d);
      x = __fmaf_rn(write, ReadElement<K>(in.keys, i, d), x);
      p = __fmaf_rn(write, ReadElement<K>(in.queries, i, d), p);
    }
    to_x[i * kXPitch + j] = j < i ? x * in.beta[i] : 0.0f;
    if (i < in.rows) to_p[i * in.score_stride + j] = __float2bfloat16(p);
  }
}

// Scales the halves of a register of bf16 pairs.
__device__ inline uint32_t Scale(uint32_t pair, float2 by) {
  return PackBf16(LowBf16(pair) * by.x, HighBf16(pair) * by.y);
}

__device__ inline float2 Between(float2 later, float2 earlier) {
  return {Exp2(later.x - earlier.x), Exp2(later.y - earlier.y)};
}

// With a decay for each key channel, e^{G_i - G_j} goes into the operands, as e^{G_i - R} of the
// left and e^{R - G_j} of the right one with R the first row of the warp's block of 16 rows: both
// are at most one for the blocks left of the diagonal. On the diagonal the second one grows with
// the decay inside of 16 rows; where that passes 2^kSteep, the block is computed without it.
template <int K>
__device__ void VectorGrams(const GramInputs& in, float* to_x, __nv_bfloat16* to_p) {
  constexpr int kPitch = K + kDecayPad;
  constexpr float kSteep = 80;
  const GramPlace place;
  const int lane = place.lane;
  const float* block = in.decays + place.block * 16 * kPitch;
  bool steep = false;
  for (int d = lane; d < K; d += 32) steep |= block[d] - block[15 * kPitch + d] > kSteep;
  steep = __any_sync(~0u, steep);
  const int pairs = steep ? place.block : place.block + 1;

  GramSums sums;
  const auto decay = [&](const float* row, int k, int half) {
    return *reinterpret_cast<const float2*>(row + k * 16 + half * 8 + 2 * place.t);
  };
#pragma unroll 2
  for (int k = 0; k < K / 16 && place.side < pairs; ++k) {
    uint32_t key[4], query[4];
    const uint32_t left = PieceOffset(place.block * 16 + lane % 16, 2 * k + lane / 16);
    LoadTiles(key, in.keys + left);
    LoadTiles(query, in.queries + left);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 by =
          Between(decay(block + (place.g + i % 2 * 8) * kPitch, k, i / 2), decay(block, k, i / 2));
      key[i] = Scale(key[i], by);
      query[i] = Scale(query[i], by);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = 2 * i + place.side;
      if (pair >= pairs) continue;
      uint32_t b[4];
      LoadTiles(
          b, in.writes + PieceOffset(pair * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* row = in.decays + (pair * 16 + place.g + j / 2 * 8) * kPitch;
        b[j] = Scale(b[j], Between(decay(block, k, j % 2), decay(row, k, j % 2)));
      }
      AddGrams(key, query, b, i, sums);
    }
  }
  StoreGrams(in, place, pairs, sums, to_x, to_p, [](int, int) { return 1.0f; });
  if (steep) DiagonalGrams<K>(in, place, to_x, to_p);
}

// Keys times e^G in place; queries times e^G and writes times e^{G_c - G} to scratch.
template <int K>
__device__ void ApplyDecays(const Problem& p, int rows, const float* decays, int64_t head_row,
                            std::byte* keys, const std::byte* queries, const std::byte* writes) {
  constexpr int kPitch = K + kDecayPad, kPieces = K / 8;
  for (int i = threadIdx.x; i < rows * kPieces; i += kPrepareThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const uint32_t at = PieceOffset(row, piece);
    uint4 key = *reinterpret_cast<const uint4*>(keys + at);
    uint4 query = *reinterpret_cast<const uint4*>(queries + at);
    uint4 write = *reinterpret_cast<const uint4*>(writes + at);
    const float* now = decays + row * kPitch + piece * 8;
    const float* end = decays + (rows - 1) * kPitch + piece * 8;
    uint32_t* pairs[3] = {&key.x, &query.x, &write.x};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 g = *reinterpret_cast<const float2*>(now + 2 * j);
      const float2 last = *reinterpret_cast<const float2*>(end + 2 * j);
      const float2 since = Between(g, {0.0f, 0.0f});
      pairs[0][j] = Scale(pairs[0][j], since);
      pairs[1][j] = Scale(pairs[1][j], since);
      pairs[2][j] = Scale(pairs[2][j], Between(last, g));
    }
    *reinterpret_cast<uint4*>(keys + at) = key;
    const int64_t to = (head_row + static_cast<int64_t>(row) * p.value_heads) * K + piece * 8;
    *reinterpret_cast<uint4*>(p.queries + to) = query;
    *reinterpret_cast<uint4*>(p.writes + to) = write;
  }
}

template <int K>
__device__ void StoreChunkDecay(const Problem& p, const float* last, int head) {
  float* to = p.chunk_decay + (static_cast<int64_t>(blockIdx.x) * p.value_heads + head) * K;
  for (int d = threadIdx.x; d < K; d += kPrepareThreads) to[d] = Exp2(last[d]);
}

}  // namespace eddy::delta_chunk
