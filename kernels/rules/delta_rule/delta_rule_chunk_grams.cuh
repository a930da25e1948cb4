// The first half of a chunk's preparation: sums of the log decays, and X and P of delta_rule.h.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_products.cuh"

namespace eddy::delta_chunk {

// Warp i has 16 rows of the chunk, block i % 4, and shares them with one of the other half.
inline constexpr int kPrepareThreads = 256;
inline constexpr int kValueTile = 64;
inline constexpr int kXPitch = 72;   // floats; 8 modulo 32, so that pairs of a tile lie apart
inline constexpr int kDecayPad = 8;  // likewise

// Byte offsets in shared memory.
template <int K, bool kVector>
struct PrepareLayout {
  static constexpr int kMatrix = kChunk * K * 2;
  static constexpr int kKeys = 0, kQueries = kMatrix;
  static constexpr int kTiles = 2 * kChunk * kValueTile * 2;
  // Two tiles. They may take the place of the queries, which are done with early.
  static constexpr bool kOverQueries = !kVector && kTiles <= kMatrix;
  static constexpr int kValues = kOverQueries ? kQueries : 2 * kMatrix;
  static constexpr int kX = 2 * kMatrix + (kOverQueries ? 0 : kTiles);
  static constexpr int kScales = kX + kChunk * kXPitch * 4;  // of values, of keys
  static constexpr int kDecays = kScales + 2 * kChunk * 4;   // [64] or [64, K + kDecayPad]
  static constexpr int kWrites =
      (kDecays + kChunk * (kVector ? K + kDecayPad : 1) * 4 + 1023) / 1024 * 1024;
  __host__ __device__ static constexpr int Bytes(bool has_w) {
    return kWrites + (has_w ? kMatrix : 0);
  }
};

struct GramInputs {
  uint32_t keys, queries, writes;  // shared addresses
  const float* decays;             // shared: log2 of the decay since the chunk's beginning
  const float* beta;               // shared [64]
  int rows;
  int64_t score_stride;
};

// 2^x, with results below 2^-126 taken for zero.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// g in units of log2. What is forgotten by a factor of 2^-192 is zero in fp32 all the same, and
// finite sums have differences.
__device__ inline float Log2Decay(float g) {
  constexpr float kLog2E = 1.4426950408889634f, kLeast = -192.0f;
  const float log2 = g * kLog2E;
  return log2 < kLeast ? kLeast : log2;
}

// decays[i] = inclusive sums of the chunk's rows, by the first warp; rows behind `rows` do not
// decay. None depends on rows behind it.
__device__ inline void SumScalarDecays(const Problem& p, int64_t head_row, int rows,
                                       float* decays) {
  const int lane = threadIdx.x;
  const auto read = [&](int i) {
    if (i >= rows || p.log_decay == nullptr) return 0.0f;
    return Log2Decay(p.log_decay[head_row + static_cast<int64_t>(i) * p.value_heads]);
  };
  const float first = read(2 * lane);
  float sum = first + read(2 * lane + 1);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(~0u, sum, distance);
    if (lane >= distance) sum += other;
  }
  const float before = __shfl_up_sync(~0u, sum, 1);
  decays[2 * lane] = lane > 0 ? before + first : first;
  decays[2 * lane + 1] = sum;
}

// Where a thread stands: its warp's rows and half of the work on them, and its place in a C tile.
struct GramPlace {
  int block = threadIdx.x / 32 % 4, side = threadIdx.x / 128;
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
};

// Rounds the warp's C tile at columns [8 n, 8 n + 8) into a matrix [64, 64] of bf16.
__device__ inline void StageTile(const GramPlace& place, int n, const float (&tile)[4],
                                 std::byte* to) {
  const int row = place.block * 16 + place.g;
  *reinterpret_cast<uint32_t*>(to + PieceOffset(row, n) + 4 * place.t) = PackBf16(tile[0], tile[1]);
  *reinterpret_cast<uint32_t*>(to + PieceOffset(row + 8, n) + 4 * place.t) =
      PackBf16(tile[2], tile[3]);
}

// Writes the first `pieces` * 8 columns of the warp's rows of such a matrix to device memory.
__device__ inline void StoreStaged(const GramPlace& place, int pieces, int rows, int64_t stride,
                                   const std::byte* from, __nv_bfloat16* to) {
  __syncwarp();
  const int piece = place.lane % 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = place.block * 16 + i * 4 + place.lane / 8;
    if (row < rows && piece < pieces) {
      *reinterpret_cast<uint4*>(to + row * stride + piece * 8) =
          *reinterpret_cast<const uint4*>(from + PieceOffset(row, piece));
    }
  }
  __syncwarp();
}

// X, by the first half of the threads, and P, by the second one: a warp has all columns of its 16
// rows, in a walk's manner. P passes by the place of the warp's own queries.
template <int K>
__device__ void ScalarGrams(const GramInputs& in, std::byte* queries, float* to_x,
                            __nv_bfloat16* to_p) {
  const GramPlace place;
  const uint32_t left = place.side == 0 ? in.keys : in.queries;
  Tiles sums = {}, unused;
#pragma unroll 1
  for (int block = 0; block < K / 64; ++block) {
    uint32_t a[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      LoadTiles(a[k], left + PieceOffset(place.block * 16 + place.lane % 16,
                                         block * 8 + 2 * k + place.lane / 16));
    }
    MultiplyState<64, /*kOutputs=*/false>(a, in.writes + block * kBlockBytes, 0, place.lane,
                                          /*first=*/true, sums, unused);
    FinishProducts<0>(sums);
  }
  __syncwarp();  // all lanes have read the queries
  const int row = place.block * 16 + place.g, tiles = 2 * place.block + 2;
  const float decays[2] = {in.decays[row], in.decays[row + 8]};
  const float scale[2] = {place.side == 0 ? in.beta[row] : 1.0f,
                          place.side == 0 ? in.beta[row + 8] : 1.0f};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n >= tiles) break;
    const int column = n * 8 + 2 * place.t;
    const float2 since = *reinterpret_cast<const float2*>(in.decays + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int last = row + i / 2 * 8 - (place.side == 0 ? 1 : 0);  // P has the diagonal
      const float between = Exp2(decays[i / 2] - (i % 2 == 0 ? since.x : since.y));
      sums[n][i] = column + i % 2 > last ? 0.0f : sums[n][i] * between * scale[i / 2];
    }
    if (place.side == 0) {
      float* to = to_x + row * kXPitch + column;
      *reinterpret_cast<float2*>(to) = {sums[n][0], sums[n][1]};
      *reinterpret_cast<float2*>(to + 8 * kXPitch) = {sums[n][2], sums[n][3]};
    } else {
      StageTile(place, n, sums[n], queries);
    }
  }
  if (place.side == 1) StoreStaged(place, tiles, in.rows, in.score_stride, queries, to_p);
}

}  // namespace eddy::delta_chunk
