#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/trial.h"

namespace eddy {
namespace {

constexpr int kThreads = 256, kBlocks = 1024;

// A mixing of bits by multiplication and shift ("lowbias32", C. Wellons 2018).
__device__ uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

// The sum of four uniform numbers.
__device__ float Normal(int64_t index, uint32_t seed) {
  const uint32_t bits = Mix(static_cast<uint32_t>(index) ^ seed);
  const uint32_t sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255);
  return (static_cast<float>(sum) - 510.0f) / 147.8f;
}

// Rows of `width`, `stride` apart, of which each `period`th has a second half like the first one,
// times `sign`.
__global__ void FillKernel(__nv_bfloat16* halves, int64_t rows, int64_t width, int64_t stride,
                           int period, float sign, uint32_t seed) {
  const int64_t step = static_cast<int64_t>(kBlocks) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * stride;
       i += step) {
    const int64_t row = i / stride, at = i % stride;
    const bool second = row % period == 0 && at >= width / 2 && at < width;
    const float value = Normal(second ? i - width / 2 : i, seed);
    halves[i] = __float2bfloat16_rn(second ? sign * value : value);
  }
}

__global__ void CompareKernel(const uint32_t* a, const uint32_t* b, int64_t words, int32_t* count) {
  const int64_t step = static_cast<int64_t>(kBlocks) * kThreads;
  int different = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words;
       i += step) {
    different += a[i] != b[i];
  }
  if (different > 0) atomicAdd(count, different);
}

}  // namespace

void FillTrialW(Stream stream, void* w, int64_t rows, int64_t width) {
  FillKernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<__nv_bfloat16*>(w), rows, width, width, /*period=*/1, -1.0f, /*seed=*/1);
}

void FillTrialX(Stream stream, void* x, int64_t rows, int64_t width, int64_t stride) {
  FillKernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<__nv_bfloat16*>(x), rows, width, stride, /*period=*/2, 1.0f, /*seed=*/2);
}

void CountDifferences(Stream stream, const void* a, const void* b, int64_t words, int32_t* count) {
  CompareKernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), words, count);
}

}  // namespace eddy
