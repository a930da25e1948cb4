// Other names for what stands in launch.cuh.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace eddy {

__device__ inline void WaitForEarlierKernels() { WaitForPrevious(); }
__device__ inline void AllowNextKernel() { AllowNext(); }

}  // namespace eddy
