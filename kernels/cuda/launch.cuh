// Programmatic dependent launch: a kernel that was launched with it may start before the one ahead
// of it on the stream has finished, and load weights while that one runs. Code for architectures
// before sm_90 starts after it as always, on newer cards too.
//
// A chain of such kernels is in order though each lets the next one start before it waits itself:
// waiting is for the end of the kernel ahead, which cannot end before its own wait has. But what
// one reads before it waits must not be written by any kernel of the chain.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/compiled_for.h"

namespace eddy {

// Waits until all that stands ahead on the stream is done and visible. What a kernel launched by
// LaunchDependent does before must not depend on that: it may read weights, and write nothing.
__device__ inline void WaitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Lets the next kernel, if launched by LaunchDependent, start as soon as every block of this one
// has called it or ended. Any kernel may call it, at its very start too.
__device__ inline void AllowNext() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

struct LaunchShape {
  dim3 grid = {1, 1, 1};
  unsigned threads = 1;
  size_t shared_bytes = 0;
};

// Launches a kernel that calls WaitForPrevious in every thread. Errors stay in cudaGetLastError.
template <typename... Parameters, typename... Arguments>
void LaunchDependent(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(Parameters...),
                     const Arguments&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads, 1, 1);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = KernelsCompiledFor().launches_dependent() ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace eddy
