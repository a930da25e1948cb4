// The products of a walk. Left operands and sums are a warp's 16 rows in registers, right operands
// whole matrices of a chunk in shared memory, laid out as PieceOffset says.
//
// On sm_90a four neighbouring warps multiply together (wgmma), which reads the right operand once
// for all four; all of them must call. Sums of a product may be read, and its operands changed,
// after FinishProducts. Elsewhere every warp multiplies for itself and at once.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"

namespace eddy::delta_chunk {

// C tiles of 64 columns, for the 16 rows of a warp.
using Tiles = float[8][4];

inline constexpr uint32_t kBlockBytes = kChunk * 128;  // of 64 columns of a matrix

#ifdef EDDY_WGMMA

// Waits until at most the last kLeft products are under way, `sums` not among them.
template <int kLeft>
__device__ inline void FinishProducts(Tiles& sums) {
  WgmmaWait<kLeft>();
  WgmmaReceive(sums);
}

// What this thread copied to shared memory becomes visible to products; then a barrier.
__device__ inline void PublishToProducts() { WgmmaPublish(); }

// n += a keys', and o = a queries', or o += it if not `first`; keys and queries [64, kWidth].
template <int kWidth, bool kOutputs>
__device__ inline void MultiplyState(const uint32_t (&a)[kWidth / 16][4], uint32_t keys,
                                     uint32_t queries, int, bool first, Tiles& n, Tiles& o) {
  const uint64_t key = RowsOperand(keys), query = RowsOperand(queries);
  const auto at = [](int k) { return k / 4 * kBlockBytes + k % 4 * 32; };
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    Wgmma</*kTransposed=*/false>(n, a[k], OperandAt(key, at(k)), 1);
  }
  WgmmaCommit();
  if constexpr (kOutputs) {
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      Wgmma</*kTransposed=*/false>(o, a[k], OperandAt(query, at(k)), !first || k > 0);
    }
    WgmmaCommit();
  }
}

// o += a scores'; scores [64, 64].
__device__ inline void MultiplyScores(const uint32_t (&a)[4][4], uint32_t scores, int, Tiles& o) {
  const uint64_t score = RowsOperand(scores);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k) Wgmma</*kTransposed=*/false>(o, a[k], OperandAt(score, k * 32), 1);
  WgmmaCommit();
}

// state += a writes; writes [64, K].
template <int K>
__device__ void MultiplyWrites(const uint32_t (&a)[4][4], uint32_t writes, int,
                               Tiles (&state)[K / 64]) {
  const uint64_t write = RowsOperand(writes);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int block = 0; block < K / 64; ++block) {
      Wgmma</*kTransposed=*/true>(state[block], a[k],
                                  OperandAt(write, block * kBlockBytes + k * 2048), 1);
    }
  }
  WgmmaCommit();
}

#else

template <int kLeft>
__device__ inline void FinishProducts(Tiles&) {}

__device__ inline void PublishToProducts() {}

// Rows [first, first + 16) of a matrix as columns of the product, its columns
// [16 k, 16 k + 16) as rows.
__device__ inline void LoadRight(uint32_t (&b)[4], uint32_t matrix, int first, int k, int lane) {
  LoadTiles(b, matrix + PieceOffset(first + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}

template <int kWidth, bool kOutputs>
__device__ inline void MultiplyState(const uint32_t (&a)[kWidth / 16][4], uint32_t keys,
                                     uint32_t queries, int lane, bool first, Tiles& n, Tiles& o) {
  if (kOutputs && first) {
#pragma unroll
    for (int i = 0; i < 8; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
  }
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t b[4];
      LoadRight(b, keys, pair * 16, k, lane);
      Mma(n[2 * pair], a[k], b[0], b[1]);
      Mma(n[2 * pair + 1], a[k], b[2], b[3]);
      if constexpr (kOutputs) {
        LoadRight(b, queries, pair * 16, k, lane);
        Mma(o[2 * pair], a[k], b[0], b[1]);
        Mma(o[2 * pair + 1], a[k], b[2], b[3]);
      }
    }
  }
}

// Scores are lower triangular.
__device__ inline void MultiplyScores(const uint32_t (&a)[4][4], uint32_t scores, int lane,
                                      Tiles& o) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int pair = k; pair < 4; ++pair) {
      uint32_t b[4];
      LoadRight(b, scores, pair * 16, k, lane);
      Mma(o[2 * pair], a[k], b[0], b[1]);
      Mma(o[2 * pair + 1], a[k], b[2], b[3]);
    }
  }
}

template <int K>
__device__ void MultiplyWrites(const uint32_t (&a)[4][4], uint32_t writes, int lane,
                               Tiles (&state)[K / 64]) {
#pragma unroll
  for (int pair = 0; pair < K / 16; ++pair) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t b[4];
      LoadTilesTransposed(b, writes + PieceOffset(k * 16 + lane % 16, 2 * pair + lane / 16));
      Mma(state[pair / 4][pair % 4 * 2], a[k], b[0], b[1]);
      Mma(state[pair / 4][pair % 4 * 2 + 1], a[k], b[2], b[3]);
    }
  }
}

#endif

}  // namespace eddy::delta_chunk
