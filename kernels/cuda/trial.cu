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
__global__ void FillKernel(__nv_bfloat16* halves, int64_t count, uint32_t seed) {
  const int64_t step = static_cast<int64_t>(kBlocks) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const uint32_t bits = Mix(static_cast<uint32_t>(i) ^ seed);
    const uint32_t sum = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24 & 255);
    halves[i] = __float2bfloat16_rn((static_cast<float>(sum) - 510.0f) / 147.8f);
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

void FillTrial(Stream stream, void* halves, int64_t count, uint32_t seed) {
  FillKernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<__nv_bfloat16*>(halves), count, seed);
}

void CountDifferences(Stream stream, const void* a, const void* b, int64_t words, int32_t* count) {
  CompareKernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), words, count);
}

}  // namespace eddy
