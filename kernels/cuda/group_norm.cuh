// Device code: norms over groups of neighbouring elements of a row, with a gate, as they stand
// between a rule and the last product of a layer.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/step.h"

namespace eddy {

struct GroupNormShape {
  int64_t rows = 0, groups = 0, width = 0;  // of a group
  float eps = 0;
  bool centred = false;   // takes the mean off first: a layer norm
  float* room = nullptr;  // [rows, groups * width]: may hold the inputs, and is overwritten
  void* out = nullptr;    // the same shape
  DType out_type = DType::kF32;
};

// out = parts.Finish(row, i, norm(x)), x = parts.Begin(row, i), where i counts the elements of a
// row and norm(x) = x / sqrt(mean(x^2) + eps), of x less its mean if centred. kThreads threads
// share a group, and kGroups groups a block.
template <int kThreads, int kGroups, typename Parts>
__global__ void __launch_bounds__(kThreads* kGroups)
    GroupNormKernel(const GroupNormShape shape, const Parts parts) {
  static_assert(kThreads == 32 || kGroups == 1);
  __shared__ float shared[2][kThreads * kGroups / 32];
  const auto sum_over_group = [&](float x, int which) {
    if constexpr (kThreads == 32) return ReduceGroup<32>(x);
    return ReduceBlock<kThreads>(x, shared[which]);
  };
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kGroups + threadIdx.x / kThreads;
  // All threads take part in the sums.
  const int64_t width = index < shape.rows * shape.groups ? shape.width : 0;
  const int64_t row = index / shape.groups, begin = index % shape.groups * shape.width;
  const int64_t lane = threadIdx.x % kThreads;
  float* const room = shape.room + index * shape.width;
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = lane; i < width; i += kThreads) {
    const float x = parts.Begin(row, begin + i);
    room[i] = x;
    sum += x;
    squares = fmaf(x, x, squares);
  }
  float mean = 0.0f;
  if (shape.centred) {
    // Squares of differences, because those of the elements may be far greater.
    mean = sum_over_group(sum, 0) / static_cast<float>(shape.width);
    squares = 0.0f;
    for (int64_t i = lane; i < width; i += kThreads) {
      const float x = room[i] - mean;
      squares = fmaf(x, x, squares);
    }
  }
  squares = sum_over_group(squares, 1);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(shape.width) + shape.eps);
  for (int64_t i = lane; i < width; i += kThreads) {
    const float y = parts.Finish(row, begin + i, (room[i] - mean) * scale);
    StoreTyped(shape.out, shape.out_type, index * shape.width + i, Floats<1>{y});
  }
}

template <typename Parts>
void RunGroupNorm(Stream stream, const GroupNormShape& shape, const Parts& parts) {
  const int64_t groups = shape.rows * shape.groups;
  if (groups == 0) return;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  // What a warp can have in a few turns.
  if (shape.width <= 256) {
    GroupNormKernel<32, 4>
        <<<static_cast<unsigned>((groups + 3) / 4), 128, 0, cuda_stream>>>(shape, parts);
  } else {
    GroupNormKernel<256, 1><<<static_cast<unsigned>(groups), 256, 0, cuda_stream>>>(shape, parts);
  }
}

}  // namespace eddy
