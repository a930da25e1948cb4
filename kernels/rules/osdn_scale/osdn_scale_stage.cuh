// A block of tokens of the learned scale of the write key in shared memory, and what is made of its
// keys before d is known. Internal to osdn_scale_cuda.cu.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rules/osdn_scale/osdn_scale.h"

namespace eddy {

// kWidth: K rounded up; the keys behind K are zeros.
template <typename T, int kWidth>
struct Stage {
  static constexpr bool kClosed = std::is_same_v<T, __nv_bfloat16>;
  static constexpr int kTokens = kClosed ? 16 : 8;
  // Rows are apart by such a distance that pieces of 64 bytes of two rows lie in different banks.
  static constexpr int kPitch = kWidth + 64 / static_cast<int>(sizeof(T));
  struct Numbers {
    float p, q, retention, beta;
  };

  alignas(16) T k[kTokens][kPitch];
  alignas(16) float row[kTokens][kWidth];  // s; then the d that the token finds
  alignas(16) Numbers token[kTokens];
  // Of tokens t and j: p_t <s_t, s_j> and q_t <s_t, s_j>.
  alignas(16) float2 gram[kClosed ? kTokens : 1][kTokens];
};

// Squares of two bfloat16 numbers as sums of two each, which holds all their 16 bits.
struct SplitSquares {
  __device__ explicit SplitSquares(uint32_t pair) {
    const float low_square = LowBf16(pair) * LowBf16(pair);
    const float high_square = HighBf16(pair) * HighBf16(pair);
    sum = low_square + high_square;
    large = PackBf16(low_square, high_square);
    small = PackBf16(low_square - LowBf16(large), high_square - HighBf16(large));
  }
  uint32_t large, small;
  float sum;
};

// The Gram matrix of a stage, and p and q of its tokens, by one warp. As the rows of s are both
// operands, and the order of the sum is free, each lane reads whole pieces of its two rows.
template <int kWidth>
__device__ void MakeGram(const OsdnScaleOptions& o, const float (&beta)[2],
                         const float (&retention)[2], Stage<__nv_bfloat16, kWidth>& stage) {
  constexpr float kNormaliseEps = 1e-5f;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
  float sums[2][4] = {}, squares[2] = {};
#pragma unroll
  for (int piece = 0; piece < kWidth / 32; ++piece) {
    uint32_t large[2][4], small[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 x = *reinterpret_cast<const uint4*>(&stage.k[g + half * 8][(piece * 4 + t) * 8]);
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const SplitSquares s(pairs[i]);
        large[half][i] = s.large;
        small[half][i] = s.small;
        squares[half] += s.sum;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t a[4] = {large[0][i], large[1][i], large[0][i + 1], large[1][i + 1]};
      const uint32_t b[4] = {small[0][i], small[1][i], small[0][i + 1], small[1][i + 1]};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        Mma(sums[n], a, large[n][i], large[n][i + 1]);
        Mma(sums[n], a, small[n][i], small[n][i + 1]);
        Mma(sums[n], b, large[n][i], large[n][i + 1]);
        Mma(sums[n], b, small[n][i], small[n][i + 1]);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = g + half * 8;
    squares[half] += __shfl_xor_sync(kWholeWarp, squares[half], 1);
    squares[half] += __shfl_xor_sync(kWholeWarp, squares[half], 2);
    float p = o.eta * (o.beta_aware ? beta[half] : 1.0f);
    if (o.normalise) p /= squares[half] + kNormaliseEps;
    const float q = o.beta_aware ? p * beta[half] : p;
    if (t == 0) stage.token[row] = {p, q, retention[half], beta[half]};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float x = sums[n][2 * half], y = sums[n][2 * half + 1];
      *reinterpret_cast<float4*>(&stage.gram[row][n * 8 + 2 * t]) = {p * x, q * x, p * y, q * y};
    }
  }
}

}  // namespace eddy
