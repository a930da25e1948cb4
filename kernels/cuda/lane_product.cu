// One warp computes a few rows of x times a few rows of w, its lanes sharing the sum. w is read
// once for each group of rows, x mostly from the first-level cache. Bound by memory for few rows
// and by reading x for many; models that serve at speed have bfloat16 weights and go elsewhere.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/lane_product.h"

namespace eddy {
namespace {

constexpr int kWarps = 4;
constexpr int kOuts = 2;      // rows of w of a warp
constexpr int kManyRows = 8;  // rows of x of a warp, if there are so many
constexpr int kGroup = 4;

// Elements i .. i + 3 of a row, zeros beyond its end.
template <bool kAligned>
__device__ void LoadGroup(const float* row, int64_t i, int64_t in, float (&to)[kGroup]) {
  if constexpr (kAligned) {
    const float4 v = *reinterpret_cast<const float4*>(row + i);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) to[j] = i + j < in ? row[i + j] : 0.0f;
  }
}
template <bool kAligned>
__device__ void LoadGroup(const __nv_bfloat16* row, int64_t i, int64_t in, float (&to)[kGroup]) {
  static_assert(!kAligned);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) to[j] = i + j < in ? __bfloat162float(row[i + j]) : 0.0f;
}

template <typename T, bool kAligned, int kRows>
__global__ void __launch_bounds__(kWarps * 32) LaneKernel(CudaProduct p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t out = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * kOuts;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kRows;
  if (out >= p.out) return;
  // Rows beyond the end are read as the last one and not written.
  const T* w[kOuts];
  const T* x[kRows];
#pragma unroll
  for (int o = 0; o < kOuts; ++o) {
    w[o] = static_cast<const T*>(p.w) + min(out + o, p.out - 1) * p.in;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const T*>(p.x) + min(row + r, p.rows - 1) * p.x_stride;
  }
  float sums[kRows][kOuts] = {};
#pragma unroll 2
  for (int64_t i = lane * kGroup; i < p.in; i += 32 * kGroup) {
    float wv[kOuts][kGroup];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) LoadGroup<kAligned>(w[o], i, p.in, wv[o]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float xv[kGroup];
      LoadGroup<kAligned>(x[r], i, p.in, xv);
#pragma unroll
      for (int o = 0; o < kOuts; ++o) {
#pragma unroll
        for (int j = 0; j < kGroup; ++j) sums[r][o] = fmaf(xv[j], wv[o][j], sums[r][o]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOuts; ++o) {
      float sum = sums[r][o];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane != (r * kOuts + o) % 32 || row + r >= p.rows || out + o >= p.out) continue;
      if (p.bias != nullptr) sum += p.bias[out + o];
      const int64_t at = (row + r) * p.y_stride + out + o;
      if (p.y_type == DType::kBF16) {
        static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(sum);
      } else {
        float* const y = static_cast<float*>(p.y) + at;
        *y = p.accumulate ? *y + sum : sum;
      }
    }
  }
}

// A grid has at most 65,535 groups of rows.
constexpr int64_t kMostGroups = 65535;

template <typename T, bool kAligned, int kRows>
void Launch(cudaStream_t stream, CudaProduct product) {
  const int64_t rows = product.rows, y_bytes = SizeOf(product.y_type);
  const auto blocks = static_cast<unsigned>((product.out + kWarps * kOuts - 1) / (kWarps * kOuts));
  for (int64_t first = 0; first < rows; first += kMostGroups * kRows) {
    CudaProduct piece = product;
    piece.rows = min(rows - first, kMostGroups * kRows);
    piece.x = static_cast<const T*>(product.x) + first * product.x_stride;
    piece.y = static_cast<char*>(product.y) + first * product.y_stride * y_bytes;
    const auto groups = static_cast<unsigned>((piece.rows + kRows - 1) / kRows);
    LaneKernel<T, kAligned, kRows><<<dim3(blocks, groups, 1), kWarps * 32, 0, stream>>>(piece);
  }
}

template <typename T, bool kAligned>
void LaunchOfRows(cudaStream_t stream, const CudaProduct& product) {
  if (product.rows == 1) return Launch<T, kAligned, 1>(stream, product);
  Launch<T, kAligned, kManyRows>(stream, product);
}

}  // namespace

void RunLaneProduct(Stream stream, const CudaProduct& product) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (product.type == DType::kBF16) return LaunchOfRows<__nv_bfloat16, false>(cuda_stream, product);
  const bool aligned = product.in % kGroup == 0 && product.x_stride % kGroup == 0 &&
                       reinterpret_cast<uintptr_t>(product.x) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(product.w) % 16 == 0;
  if (aligned) return LaunchOfRows<float, true>(cuda_stream, product);
  LaunchOfRows<float, false>(cuda_stream, product);
}

}  // namespace eddy
