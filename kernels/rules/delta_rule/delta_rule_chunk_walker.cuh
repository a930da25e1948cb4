// One warp's walk along the chunks of a segment.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_products.cuh"

namespace eddy::delta_chunk {

// A warp owns 16 columns of S and keeps them, transposed, as accumulators [16, K]: the products of
// a chunk then need nothing from other warps. With the chunk's matrices in shared memory as they
// lie in device memory, and all columns 16 wide,
//   N' = U' - S' W'     O' = S' [q]' + N' P'     S' <- S' + N' [w]
// where an accumulator, rounded to bf16, is the next product's left operand.

constexpr int kSlab = kChunk * kColumns * 2;  // bytes of a warp's columns of U, later of O

// Byte offsets of one chunk's matrices in a stage of shared memory; multiples of 1024, as wgmma
// wants them.
template <int K, bool kOutputs>
struct Stage {
  static constexpr int kKeys = 0;                            // -W [64, K]
  static constexpr int kWrites = kKeys + kChunk * K * 2;     // w [64, K]
  static constexpr int kFactors = kWrites + kChunk * K * 2;  // [64] float2 or [K] float
  static constexpr int kQueries = kFactors + 1024;           // q [64, K]
  static constexpr int kScores = kQueries + (kOutputs ? kChunk * K * 2 : 0);  // P [64, 64]
  static constexpr int kSlabs = kScores + (kOutputs ? kChunk * kChunk * 2 : 0);
  __host__ __device__ static constexpr int Bytes(int warps) { return kSlabs + warps * kSlab; }
};

__device__ inline uint32_t SlabOffset(int row, int piece) {
  return static_cast<uint32_t>(row * 32 + ((piece ^ ((row >> 2) & 1)) << 4));
}

__device__ inline void Round(const Tiles& from, uint32_t (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a[i / 2][i % 2 * 2] = PackBf16(from[i][0], from[i][1]);
    a[i / 2][i % 2 * 2 + 1] = PackBf16(from[i][2], from[i][3]);
  }
}

// A walk's state and one chunk's step of it.
template <int K, bool kVector, bool kOutputs>
struct Walker {
  using S = Stage<K, kOutputs>;
  static constexpr int kBlocks = K / 64;
  Tiles state[kBlocks] = {};  // S' [16, K]
  int lane, g, t;

  __device__ explicit Walker(int lane_index)
      : lane(lane_index), g(lane_index / 4), t(lane_index % 4) {}

  // n = U', one C tile of eight rows of the chunk after the other.
  __device__ void ReadValues(uint32_t slab, Tiles& n) const {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t r[4];
      const int row = pair * 16 + (lane & 7) + ((lane >> 4) << 3);
      LoadTilesTransposed(r, slab + SlabOffset(row, (lane >> 3) & 1));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        n[2 * pair + i][0] = LowBf16(r[2 * i]);
        n[2 * pair + i][1] = HighBf16(r[2 * i]);
        n[2 * pair + i][2] = LowBf16(r[2 * i + 1]);
        n[2 * pair + i][3] = HighBf16(r[2 * i + 1]);
      }
    }
  }

  // Columns times a part (e^G or e^{G_c - G}) of the rows' factors.
  __device__ void ScaleRows(const float2* factors, float float2::*part, Tiles& to) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float low = factors[i * 8 + 2 * t].*part, high = factors[i * 8 + 2 * t + 1].*part;
      to[i][0] *= low;
      to[i][1] *= high;
      to[i][2] *= low;
      to[i][3] *= high;
    }
  }

  __device__ void Decay(const float2* factors, int rows) {
    if constexpr (kVector) {
      const auto* decay = reinterpret_cast<const float*>(factors);
#pragma unroll
      for (int i = 0; i < K / 8; ++i) {
        const float2 d = *reinterpret_cast<const float2*>(decay + i * 8 + 2 * t);
        float(&tile)[4] = state[i / 8][i % 8];
        tile[0] *= d.x;
        tile[1] *= d.y;
        tile[2] *= d.x;
        tile[3] *= d.y;
      }
    } else {
      const float decay = factors[rows - 1].x;
#pragma unroll
      for (int i = 0; i < K / 8; ++i) {
#pragma unroll
        for (float& x : state[i / 8][i % 8]) x *= decay;
      }
    }
  }

  // n += S' (-W)' and o = S' q', n finished. So many of the K key channels at once as leave
  // registers for the rest.
  static constexpr int kAtOnce = K == 128 ? 128 : 64;
  __device__ void ReadState(uint32_t stage, Tiles& n, Tiles& o) const {
#pragma unroll
    for (int first = 0; first < kBlocks; first += kAtOnce / 64) {
      if (first > 0) FinishProducts<0>(n);
      if (first > 0 && kOutputs) FinishProducts<0>(o);
      uint32_t a[kAtOnce / 16][4];
#pragma unroll
      for (int i = 0; i < kAtOnce / 64; ++i) {
        Round(state[first + i], *reinterpret_cast<uint32_t(*)[4][4]>(&a[4 * i]));
      }
      const uint32_t skip = first * kBlockBytes;
      MultiplyState<kAtOnce, kOutputs>(a, stage + S::kKeys + skip, stage + S::kQueries + skip, lane,
                                       first == 0, n, o);
    }
    FinishProducts<kOutputs ? 1 : 0>(n);
  }

  __device__ void StoreSquares(const Tiles& n, int rows, float* to, int64_t stride) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float low = n[i][0] * n[i][0] + n[i][2] * n[i][2];
      float high = n[i][1] * n[i][1] + n[i][3] * n[i][3];
#pragma unroll
      for (int other = 4; other < 32; other *= 2) {
        low += __shfl_xor_sync(~0u, low, other);
        high += __shfl_xor_sync(~0u, high, other);
      }
      const int row = i * 8 + 2 * t;
      if (g == 0 && row < rows) to[row * stride] = low;
      if (g == 0 && row + 1 < rows) to[(row + 1) * stride] = high;
    }
  }

  // One chunk up to O', and S' in the making until Finish. The stage is in shared memory at
  // `address`, the warp's columns of U at `slab`. `squares` gets |N|^2 of the warp's columns, a row
  // every `squares_stride`; null: not wanted.
  __device__ void Chunk(const std::byte* stage, uint32_t address, uint32_t slab, int rows, Tiles& o,
                        float* squares, int64_t squares_stride) {
    Tiles n;
    ReadValues(slab, n);
    ReadState(address, n, o);
    if (kOutputs && squares != nullptr) StoreSquares(n, rows, squares, squares_stride);
    const auto* factors = reinterpret_cast<const float2*>(stage + S::kFactors);
    uint32_t scored[4][4], written[4][4];
    Round(n, scored);
    if constexpr (!kVector) ScaleRows(factors, &float2::y, n);
    Round(n, written);
    // Decays while the queries are multiplied, if there are registers for both.
    if constexpr (kOutputs && K > 128) FinishProducts<0>(o);
    Decay(factors, rows);
    if constexpr (kOutputs) {
      FinishProducts<0>(o);
      if constexpr (!kVector) ScaleRows(factors, &float2::x, o);
      MultiplyScores(scored, address + S::kScores, lane, o);
    }
    MultiplyWrites<K>(written, address + S::kWrites, lane, state);
    if constexpr (kOutputs) FinishProducts<1>(o);
  }

  __device__ void Finish() {
#pragma unroll
    for (Tiles& block : state) FinishProducts<0>(block);
  }

  // S' of the record: [K, V], `from` at the warp's first column.
  template <typename T>
  __device__ void LoadRecord(const T* from, int value_dim) {
#pragma unroll
    for (int i = 0; i < K / 4; ++i) {
      const T* row = from + static_cast<int64_t>(i / 2 * 8 + 2 * t + i % 2) * value_dim + g;
      state[i / 16][i / 2 % 8][i % 2] = ToFloat(row[0]);
      state[i / 16][i / 2 % 8][i % 2 + 2] = ToFloat(row[8]);
    }
  }
  template <typename T>
  __device__ void StoreRecord(T* to, int value_dim) const {
#pragma unroll
    for (int i = 0; i < K / 4; ++i) {
      T* row = to + static_cast<int64_t>(i / 2 * 8 + 2 * t + i % 2) * value_dim + g;
      Write(state[i / 16][i / 2 % 8][i % 2], row);
      Write(state[i / 16][i / 2 % 8][i % 2 + 2], row + 8);
    }
  }

  // S' as segments keep it: rows [16, K].
  __device__ void LoadRows(const float* from) {
#pragma unroll
    for (int i = 0; i < K / 8; ++i) {
      const float2 low = *reinterpret_cast<const float2*>(from + g * K + i * 8 + 2 * t);
      const float2 high = *reinterpret_cast<const float2*>(from + (g + 8) * K + i * 8 + 2 * t);
      float(&tile)[4] = state[i / 8][i % 8];
      tile[0] = low.x;
      tile[1] = low.y;
      tile[2] = high.x;
      tile[3] = high.y;
    }
  }
  __device__ void StoreRows(float* to) const {
#pragma unroll
    for (int i = 0; i < K / 8; ++i) {
      const float(&tile)[4] = state[i / 8][i % 8];
      *reinterpret_cast<float2*>(to + g * K + i * 8 + 2 * t) = {tile[0], tile[1]};
      *reinterpret_cast<float2*>(to + (g + 8) * K + i * 8 + 2 * t) = {tile[2], tile[3]};
    }
  }
  // Rows [first, first + 16) of the identity.
  __device__ void SetIdentity(int first) {
#pragma unroll
    for (int i = 0; i < K / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        state[i / 8][i % 8][j] = i * 8 + 2 * t + j % 2 == first + g + j / 2 * 8 ? 1.0f : 0.0f;
      }
    }
  }
};

// Writes O' of a chunk, `to` at the warp's first column; the slab is free for it.
__device__ inline void StoreOutputs(const Tiles& o, std::byte* slab, int lane, int rows,
                                    int64_t stride, __nv_bfloat16* to) {
  const int g = lane / 4, t = lane % 4;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t tile = TransposeTile(PackBf16(o[i][2 * half], o[i][2 * half + 1]));
      *reinterpret_cast<uint32_t*>(slab + SlabOffset(i * 8 + g, half) + t * 4) = tile;
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 16 + lane / 2, piece = lane % 2;
    if (row >= rows) continue;
    *reinterpret_cast<uint4*>(to + row * stride + piece * 8) =
        *reinterpret_cast<const uint4*>(slab + SlabOffset(row, piece));
  }
}

__device__ inline void StoreOutputs(const Tiles& o, int lane, int rows, int64_t stride, float* to) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (row >= rows) continue;
    to[row * stride + lane / 4] = o[i / 2][i % 2];
    to[row * stride + lane / 4 + 8] = o[i / 2][i % 2 + 2];
  }
}

}  // namespace eddy::delta_chunk
