// From what a layer hands over in float to what the tensor cores take.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/decay_scan/decay_scan_chunk_cuda.cuh"

namespace eddy::decay_chunk {

// log2 of a decay's factor. What is forgotten by a factor of 2^-192 is zero in fp32 all the same,
// and finite sums have differences. NaN passes.
__device__ inline float Log2OfFactor(float factor) {
  const float log2 = log2f(factor);
  return log2 < -192.0f ? -192.0f : log2;
}

// Rows of a chunk as they lie in device memory: [rows, columns], columns a multiple of 8.
struct FloatRows {
  const float* from;
  int64_t stride;
  int rows, columns;
  float scale = 1;
};

__device__ inline uint4 PackEight(const float (&x)[8]) {
  return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7])};
}

// Rounded to a matrix [64, K] in shared memory, zeros behind what there is; and to [rows, K] of
// device memory, if `out` is not null. kThreads threads call.
template <int K, int kThreads>
__device__ inline void RoundRows(const FloatRows& x, std::byte* shared, Bf16* out,
                                 int64_t out_stride) {
  constexpr int kPieces = K / 8, kStep = kThreads / kPieces;
  const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;
#pragma unroll 4
  for (int row = first; row < kChunk; row += kStep) {
    uint4 rounded = {};
    if (row < x.rows && piece * 8 < x.columns) {
      const float* from = x.from + row * x.stride + piece * 8;
      const Floats<4> low = LoadFloats<4>(from, 0), high = LoadFloats<4>(from, 4);
      float all[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        all[i] = low.v[i] * x.scale;
        all[4 + i] = high.v[i] * x.scale;
      }
      rounded = PackEight(all);
    }
    *reinterpret_cast<uint4*>(shared + delta_chunk::PieceOffset(row, piece)) = rounded;
    if (out != nullptr && row < x.rows) {
      *reinterpret_cast<uint4*>(out + row * out_stride + piece * 8) = rounded;
    }
  }
}

}  // namespace eddy::decay_chunk
