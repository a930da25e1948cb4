// The root-mean-square norm of one row by one warp, shared by the norm kernel and the products that
// normalise their input on the fly, so that both give the same bits.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace eddy {

// The elements of a row go round the lanes in groups of so many: lane l has l * 4 .. l * 4 + 3,
// then 128 further on, and so forth, whether it can load the four at once or not.
inline constexpr int kNormGroup = 4;

// Elements i .. i + 3 of a row of `width`; zeros beyond its end. `aligned`: x is aligned to 16
// bytes and `width` a multiple of 4.
__device__ inline float4 LoadGroup(const float* x, int64_t i, int64_t width, bool aligned) {
  if (aligned) return i < width ? *reinterpret_cast<const float4*>(x + i) : float4{0, 0, 0, 0};
  return {i < width ? x[i] : 0.0f, i + 1 < width ? x[i + 1] : 0.0f, i + 2 < width ? x[i + 2] : 0.0f,
          i + 3 < width ? x[i + 3] : 0.0f};
}

__device__ inline void AddSquares(float4 v, float4& sums) {
  sums.x = fmaf(v.x, v.x, sums.x);
  sums.y = fmaf(v.y, v.y, sums.y);
  sums.z = fmaf(v.z, v.z, sums.z);
  sums.w = fmaf(v.w, v.w, sums.w);
}

// 1 / sqrt(mean(x^2) + eps) from the lanes' sums, the same in all lanes.
__device__ inline float ScaleOfSquares(float4 sums, int64_t width, float eps) {
  float sum = (sums.x + sums.y) + (sums.z + sums.w);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
}

// The scale of a row. The order of the sum depends on `width` alone: each lane sums each component
// of its groups in turn, then the four of them, then the lanes.
__device__ inline float RmsScale(const float* x, int64_t width, float eps, bool aligned) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float4 sums = {0, 0, 0, 0};
#pragma unroll 8
  for (int64_t i = lane * kNormGroup; i < width; i += 32 * kNormGroup) {
    AddSquares(LoadGroup(x, i, width, aligned), sums);
  }
  return ScaleOfSquares(sums, width, eps);
}

// The same of a row whose groups the lane holds; zeros beyond the end change no bit.
template <int kGroups>
__device__ inline float RmsScale(const float4 (&groups)[kGroups], int64_t width, float eps) {
  float4 sums = {0, 0, 0, 0};
#pragma unroll
  for (int j = 0; j < kGroups; ++j) AddSquares(groups[j], sums);
  return ScaleOfSquares(sums, width, eps);
}

// The normalised element; one rounding order for all users.
__device__ inline float Normalised(float x, float scale, float weight) {
  return x * scale * weight;
}

}  // namespace eddy
