// Steps of the attention kernels on tensor cores, each done by one warp: keys of bfloat16 in shared
// memory, scores, softmax and sums in registers.
//
// A warp's queries lie 16 to an "m tile", the lane's numbers as in an accumulator of
// mma.m16n8k16: of row lane / 4 (`half` 0) and lane / 4 + 8 (`half` 1), two neighbours of eight
// columns. Rows in shared memory are of kDim numbers, their 16-byte pieces permuted within eight
// rows, so that the eight addresses of a matrix fall into different banks.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/rules/attention/attention_task.cuh"

namespace eddy {

template <int kDim>
struct MmaTile {
  static constexpr int kPieces = kDim / 8;  // of 16 bytes, in a row
  static constexpr int kRowBytes = kDim * 2;
  __device__ static uint32_t At(uint32_t tile, int row, int piece) {
    return tile + row * kRowBytes + ((piece ^ (row & 7)) << 4);
  }
};

// Begins to copy kKeys keys and values; lane l < kKeys knows where number l lies. Those with no
// page become zeros.
template <int kDim, int kKeys>
__device__ inline void CopyKeys(const AttentionKernelArgs& p, int kv_head, const PageRow& of_lane,
                                uint32_t keys, uint32_t values) {
  using Tile = MmaTile<kDim>;
  constexpr int kRowsAtOnce = 32 / Tile::kPieces;
  const int lane = threadIdx.x % 32, piece = lane % Tile::kPieces;
  const int64_t row_bytes = static_cast<int64_t>(p.kv_heads) * Tile::kRowBytes;
  const int64_t head_bytes = kv_head * Tile::kRowBytes + piece * 16;
#pragma unroll
  for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
    const int row = i * kRowsAtOnce + lane / Tile::kPieces;
    const int page = __shfl_sync(~0u, of_lane.page, row);
    const int64_t within = __shfl_sync(~0u, of_lane.row, row) * row_bytes + head_bytes;
    const bool valid = page >= 0;
    const int64_t named = valid ? page : 0;
    CopyAsync16(Tile::At(keys, row, piece), p.keys + named * p.key_stride + within, valid);
    CopyAsync16(Tile::At(values, row, piece), p.values + named * p.value_stride + within, valid);
  }
}

// The online softmax's standing for the queries of kTiles m tiles.
template <int kDim, int kTiles>
struct MmaSums {
  float values[kTiles][kDim / 8][4];
  float greatest[kTiles][2];
  float sum[kTiles][2];  // of this lane's columns alone, until Finish

  __device__ void Clear() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[t][n][i] = 0.0f;
      }
      greatest[t][0] = greatest[t][1] = -INFINITY;
      sum[t][0] = sum[t][1] = 0.0f;
    }
  }

  // The four lanes of a row add their sums up, always in the same order.
  __device__ void Finish() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[t][half] += __shfl_xor_sync(~0u, sum[t][half], 1);
        sum[t][half] += __shfl_xor_sync(~0u, sum[t][half], 2);
      }
    }
  }
};

// scores [16 kTiles, 8 kColumns] = queries . keys, `keys` the first of 8 kColumns rows of a tile.
// query(t, step, a) gives the fragment of m tile t and numbers 16 step .. 16 step + 15.
template <int kDim, int kTiles, int kColumns, typename Query>
__device__ inline void Score(const Query& query, uint32_t keys,
                             float (&scores)[kTiles][kColumns][4]) {
  using Tile = MmaTile<kDim>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) query(t, step, a[t]);
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      uint32_t b[4];
      LoadTiles(b, Tile::At(keys, n * 8 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Mma(scores[t][n], a[t], b[0], b[1]);
        Mma(scores[t][n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// One step of the online softmax: scores become weights. A masked score is -infinity.
template <int kDim, int kTiles, int kColumns>
__device__ inline void Weigh(float (&scores)[kTiles][kColumns][4], MmaSums<kDim, kTiles>* sums) {
  float shrink[kTiles][2];
  bool changed = false;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float greatest = sums->greatest[t][half];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        greatest = fmaxf(greatest, fmaxf(scores[t][n][2 * half], scores[t][n][2 * half + 1]));
      }
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
      // While a row has read nothing, its greatest is -infinity, which has no difference to itself.
      const float base = greatest == -INFINITY ? 0.0f : greatest;
      shrink[t][half] = FastExp2(sums->greatest[t][half] - base);
      changed |= greatest != sums->greatest[t][half];
      sums->greatest[t][half] = greatest;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[t][n][i] = FastExp2(scores[t][n][i] - base);
          sum += scores[t][n][i];
        }
      }
      sums->sum[t][half] = fmaf(sums->sum[t][half], shrink[t][half], sum);
    }
  }
  // Without a new greatest all factors are 1.
  if (!__any_sync(~0u, changed)) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums->values[t][n][i] *= shrink[t][i / 2];
    }
  }
}

// Adds weights [16 kTiles, 8 kColumns] . values, of which `values` is the first row.
template <int kDim, int kTiles, int kColumns>
__device__ inline void AddValues(const float (&weights)[kTiles][kColumns][4], uint32_t values,
                                 MmaSums<kDim, kTiles>* sums) {
  using Tile = MmaTile<kDim>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kColumns; k += 2) {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      a[t][0] = PackBf16(weights[t][k][0], weights[t][k][1]);
      a[t][1] = PackBf16(weights[t][k][2], weights[t][k][3]);
      a[t][2] = PackBf16(weights[t][k + 1][0], weights[t][k + 1][1]);
      a[t][3] = PackBf16(weights[t][k + 1][2], weights[t][k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      LoadTilesTransposed(b, Tile::At(values, k * 8 + lane % 16, n + lane / 16));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Mma(sums->values[t][n], a[t], b[0], b[1]);
        Mma(sums->values[t][n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

}  // namespace eddy
