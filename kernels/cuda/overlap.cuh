// Kernels that may be started while the one before them on the stream still ends (programmatic
// dependent launch, sm_90 and later; on older devices they start after it as always).
#pragma once

#include <cuda_runtime.h>

#include "kernels/step.h"

namespace eddy {

// Waits until the kernels before on the stream have ended and all they wrote can be read. Every
// thread calls it before it touches what they wrote or read.
__device__ inline void WaitForEarlierKernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Says that a next kernel that waits as above may be started once all blocks have come here.
__device__ inline void AllowNextKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct Gpu {
  bool is_hopper = false;  // or later
  int multiprocessors = 0;
};

// The current device. Cheap enough for every launch.
inline Gpu DescribeGpu() {
  constexpr int kHopper = 9;
  int device = 0, major = 0;
  Gpu gpu;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&gpu.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  gpu.is_hopper = major >= kHopper;
  return gpu;
}

struct Grid {
  dim3 blocks = {};
  int threads = 0;
  int shared_bytes = 0;
  Stream stream = nullptr;
  bool overlaps = false;  // only for kernels that begin with WaitForEarlierKernels
};

template <typename... Parameters>
void LaunchKernel(const Grid& grid, void (*kernel)(Parameters...), const Parameters&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = static_cast<cudaStream_t>(grid.stream);
  config.attrs = &attribute;
  config.numAttrs = grid.overlaps ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace eddy
