// One warp's walk along the chunks of a segment.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/rules/decay_scan/decay_scan_chunk_cuda.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_products.cuh"

namespace eddy::decay_chunk {

using delta_chunk::Tiles;

// A warp owns 16 columns of S and keeps them, transposed, as accumulators [16, K]. With the chunk's
// matrices in shared memory as they lie in device memory, and all columns 16 wide,
//   O' = S' [q]' + V' P'     S' <- S' + V' [k]
// where S', rounded to bf16, is the left operand of the first product.

constexpr int kSlab = kChunk * kColumns * 4;  // bytes of a warp's columns of v

// Byte offsets of one chunk's matrices in a stage of shared memory; multiples of 1024, as wgmma
// wants them.
template <int K, bool kOutputs>
struct Stage {
  static constexpr int kKeys = 0;                                                // [64, K]
  static constexpr int kQueries = kKeys + kChunk * K * 2;                        // [64, K]
  static constexpr int kScores = kQueries + (kOutputs ? kChunk * K * 2 : 0);     // P [64, 64]
  static constexpr int kSlabs = kScores + (kOutputs ? kChunk * kChunk * 2 : 0);  // of four warps
  static constexpr int kBytes = kSlabs + 4 * kSlab;
};

// Where a float4 of a row of a slab lies: so that those that a warp reads at once, of rows two
// apart, are in different banks. Eight rows further it is 512 bytes further.
__device__ inline uint32_t SlabOffset(int row, int piece) {
  return static_cast<uint32_t>((row ^ (row >> 1 & 1)) * 64 + ((piece ^ (row >> 1 & 2)) << 4));
}

// A walk's state and one chunk's step of it.
template <int K, bool kVector, bool kOutputs>
struct Walker {
  using S = Stage<K, kOutputs>;
  static constexpr int kBlocks = K / 64;
  Tiles state[kBlocks] = {};  // S' [16, K]
  int lane, g, t;
  int lost = kChunk;  // first row of the chunk whose v is not finite, or 0 behind that chunk

  uint32_t value[2][2];  // bytes of v in a slab, of rows 2 t, 2 t + 1 and columns g, g + 8

  __device__ explicit Walker(int lane_index)
      : lane(lane_index), g(lane_index / 4), t(lane_index % 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[i / 2][i % 2] = SlabOffset(2 * t + i / 2, g / 4 + i % 2 * 2) + g % 4 * 4;
    }
  }

  // V' as left operands: rounded, and times what is left of each row at the chunk's end.
  __device__ void ReadValues(const std::byte* slab, const float2* factors, uint32_t (&read)[4][4],
                             uint32_t (&written)[4][4]) {
    __nv_bfloat162 check[2] = {};  // zero times what is not finite is NaN
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::byte* from = slab + k * 1024 + i / 2 * 512;
        const float low = *reinterpret_cast<const float*>(from + value[0][i % 2]);
        const float high = *reinterpret_cast<const float*>(from + value[1][i % 2]);
        const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
        check[i % 2] = __hfma2(both, __nv_bfloat162{}, check[i % 2]);
        read[k][i] = *reinterpret_cast<const uint32_t*>(&both);
        if constexpr (kVector) {
          written[k][i] = read[k][i];
        } else {
          const float2* factor = factors + k * 16 + i / 2 * 8 + 2 * t;
          written[k][i] = PackBf16(low * factor[0].y, high * factor[1].y);
        }
      }
    }
    const __nv_bfloat162 sum = __hadd2(check[0], check[1]);
    const bool finite = __low2float(sum) == 0.0f && __high2float(sum) == 0.0f;
    if (__any_sync(~0u, !finite)) [[unlikely]]
      TakeLost(slab, read, written);
  }

  // A product with zero does not remove what is not finite, so it is taken out from the first such
  // row on, for all columns of the warp; what comes behind, in O' and S', becomes NaN instead.
  __device__ void TakeLost(const std::byte* slab, uint32_t (&read)[4][4],
                           uint32_t (&written)[4][4]) {
    int first = kChunk;
    for (int i = lane; i < kChunk * kColumns; i += 32) {
      const float v = *reinterpret_cast<const float*>(
          slab + SlabOffset(i / kColumns, i % kColumns / 4) + i % 4 * 4);
      if (!isfinite(__bfloat162float(__float2bfloat16_rn(v)))) first = min(first, i / kColumns);
    }
    lost = min(lost, __reduce_min_sync(~0u, first));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = k * 16 + i / 2 * 8 + 2 * t;
        const uint32_t keep = row >= lost ? 0 : (row + 1 >= lost ? 0xffffu : ~0u);
        read[k][i] &= keep;
        written[k][i] &= keep;
      }
    }
  }

  // O' times e^G of the rows.
  __device__ void ScaleRows(const float2* factors, Tiles& o) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float low = factors[i * 8 + 2 * t].x, high = factors[i * 8 + 2 * t + 1].x;
      o[i][0] *= low;
      o[i][1] *= high;
      o[i][2] *= low;
      o[i][3] *= high;
    }
  }

  __device__ void Decay(const float2* factors, int rows) {
    const auto* decay = reinterpret_cast<const float*>(factors);
    const float all = kVector ? 0.0f : factors[rows - 1].x;
#pragma unroll
    for (int i = 0; i < K / 8; ++i) {
      float2 d = {all, all};
      if constexpr (kVector) d = *reinterpret_cast<const float2*>(decay + i * 8 + 2 * t);
      float(&tile)[4] = state[i / 8][i % 8];
      tile[0] *= d.x;
      tile[1] *= d.y;
      tile[2] *= d.x;
      tile[3] *= d.y;
    }
  }

  // Begins o = S' q'. So many of the K key channels at once as leave registers for the rest.
  static constexpr int kAtOnce = K == 128 ? 128 : 64;
  __device__ void ReadState(uint32_t queries, Tiles& o) const {
    Tiles unused;
#pragma unroll
    for (int first = 0; first < kBlocks; first += kAtOnce / 64) {
      if (first > 0) delta_chunk::FinishProducts<0>(o);
      uint32_t a[kAtOnce / 16][4];
#pragma unroll
      for (int i = 0; i < kAtOnce / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = first * 8 + 2 * i + j / 2;
          const float(&tile)[4] = state[at / 8][at % 8];
          a[i][j] = PackBf16(tile[j % 2 * 2], tile[j % 2 * 2 + 1]);
        }
      }
      delta_chunk::MultiplyState<kAtOnce, /*kOutputs=*/false>(
          a, queries + first * delta_chunk::kBlockBytes, 0, lane, /*first=*/true, o, unused);
    }
  }

  // One chunk up to O', and, if kWrites, S' in the making until Finish. The stage is in shared
  // memory at `address`.
  template <bool kWrites>
  __device__ void Chunk(const std::byte* slab, const float2* factors, uint32_t address, int rows,
                        Tiles& o) {
    uint32_t read[4][4], written[4][4];
    if constexpr (kOutputs) ReadState(address + S::kQueries, o);
    // While the queries are multiplied, if there are registers for both.
    if constexpr (kOutputs && K > 128) delta_chunk::FinishProducts<0>(o);
    ReadValues(slab, factors, read, written);
    if constexpr (kWrites) Decay(factors, rows);
    if constexpr (kOutputs) {
      delta_chunk::FinishProducts<0>(o);
      if constexpr (!kVector) ScaleRows(factors, o);
      delta_chunk::MultiplyScores(read, address + S::kScores, lane, o);
    }
    if constexpr (kWrites) delta_chunk::MultiplyWrites<K>(written, address + S::kKeys, lane, state);
    if constexpr (kOutputs) delta_chunk::FinishProducts<kWrites ? 1 : 0>(o);
  }

  __device__ void Finish() {
#pragma unroll
    for (Tiles& block : state) delta_chunk::FinishProducts<0>(block);
    if (lost < kChunk) lost = 0;
  }

  // Writes O' of a chunk, NaN from row `lost` on; `to` at the warp's first column. They pass by the
  // slab, whose values have been read, so that rows are written in runs.
  __device__ void StoreOutputs(const Tiles& o, std::byte* slab, int rows, int columns,
                               int64_t stride, float* to) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      *reinterpret_cast<float*>(slab + i / 4 * 512 + value[i % 2][i / 2 % 2]) = o[i / 4][i % 4];
    }
    __syncwarp();
    const int piece = lane % 4;
    to += lane / 4 * stride + piece * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i, to += 8 * stride) {
      const int row = i * 8 + lane / 4;
      float4 run = *reinterpret_cast<const float4*>(slab + SlabOffset(row, piece));
      if (row >= lost) run = {NAN, NAN, NAN, NAN};
      if (row < rows && piece * 4 < columns) *reinterpret_cast<float4*>(to) = run;
    }
  }

  // Calls visit(element, address) for what there is of the state at `memory` [keys, stride], of
  // which the warp's first column is the first of `columns`.
  template <typename Visit>
  __device__ void ForEach(float* memory, int keys, int columns, int stride, Visit visit) {
    float* row = memory + 2 * t * stride + g;
#pragma unroll
    for (int i = 0; i < K / 4; ++i) {
      const bool there = i / 2 * 8 + 2 * t + i % 2 < keys;
      float(&tile)[4] = state[i / 16][i / 2 % 8];
      if (there && g < columns) visit(tile[i % 2], row);
      if (there && g + 8 < columns) visit(tile[i % 2 + 2], row + 8);
      row += i % 2 == 0 ? stride : 7 * stride;
    }
  }
};

}  // namespace eddy::decay_chunk
