// T = (I + X)^-1 of a chunk, in fp32.
#pragma once

#include "kernels/rules/delta_rule/delta_rule_chunk_grams.cuh"

namespace eddy::delta_chunk {

// A warp's tile [16, 8] of to = sign * left right at (row, column), summed over k in
// [8 begin, 8 end), for blocks of a matrix of kXPitch. Three products of tf32 halves each: as good
// as fp32.
__device__ inline void MultiplyBlocks(const float* left, const float* right, float sign, int row,
                                      int column, int begin, int end, float* to) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float sums[3][4] = {};
#pragma unroll 2
  for (int k = begin; k < end; ++k) {
    uint32_t a_high[4], a_low[4], b_high[2], b_low[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      SplitTf32(left[(row + g + i % 2 * 8) * kXPitch + 8 * k + t + i / 2 * 4], a_high[i], a_low[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      SplitTf32(right[(8 * k + t + 4 * i) * kXPitch + column + g], b_high[i], b_low[i]);
    }
    MmaTf32(sums[0], a_high, b_high);
    MmaTf32(sums[1], a_high, b_low);
    MmaTf32(sums[2], a_low, b_high);
  }
  float* at = to + (row + g) * kXPitch + column + 2 * t;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<float2*>(at + i * 8 * kXPitch) = {
        sign * (sums[0][2 * i] + (sums[1][2 * i] + sums[2][2 * i])),
        sign * (sums[0][2 * i + 1] + (sums[1][2 * i + 1] + sums[2][2 * i + 1]))};
  }
}

// In place of the inverse of [16, 16] blocks of the diagonal, by substitution, a column per lane.
__device__ inline void InvertDiagonal(float* block, int lane) {
  constexpr int kSize = 16;
  float column[kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    float sum[2] = {};
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 row = *reinterpret_cast<const float4*>(block + i * kXPitch + m);
      sum[0] = __fmaf_rn(row.x, column[m], sum[0]);
      if (m + 1 < i) sum[1] = __fmaf_rn(row.y, column[m + 1], sum[1]);
      if (m + 2 < i) sum[0] = __fmaf_rn(row.z, column[m + 2], sum[0]);
      if (m + 3 < i) sum[1] = __fmaf_rn(row.w, column[m + 3], sum[1]);
    }
    column[i] = (lane == i ? 1.0f : 0.0f) - (sum[0] + sum[1]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (lane < kSize) block[i * kXPitch + lane] = column[i];
  }
}

// T in place of X [64, kXPitch], whose strict lower triangle is given and whose diagonal blocks of
// 16 rows are written. Blocks of 16 rows are inverted, and then joined to 32 and 64 rows: with
// X = [X1 0; X21 X2] the block below is -T2 X21 T1. X21 T1 takes the place above, so that only the
// block lower triangle of the result means anything. All threads; ends with a barrier.
__device__ inline void Invert(float* x) {
  const int warp = threadIdx.x / 32;
  if (warp < 4) InvertDiagonal(x + warp * 16 * (kXPitch + 1), threadIdx.x % 32);
  __syncthreads();
  float* pair = x + warp / 2 * 32 * (kXPitch + 1);
  float *pair_above = pair + 16, *pair_below = pair + 16 * kXPitch;
  const int pair_column = warp % 2 * 8;
  if (warp < 4) MultiplyBlocks(pair_below, pair, 1.0f, 0, pair_column, 0, 2, pair_above);
  __syncthreads();
  if (warp < 4)
    MultiplyBlocks(pair_below + 16, pair_above, -1.0f, 0, pair_column, 0, 2, pair_below);
  __syncthreads();
  float *above = x + 32, *below = x + 32 * kXPitch;
  const int row = warp / 4 * 16, column = warp % 4 * 8;
  MultiplyBlocks(below, x, 1.0f, row, column, column / 16 * 2, 4, above);
  __syncthreads();
  MultiplyBlocks(below + 32, above, -1.0f, row, column, 0, row / 8 + 2, below);
  __syncthreads();
}

}  // namespace eddy::delta_chunk
