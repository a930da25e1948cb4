#include <cuda_runtime.h>

#include "kernels/cuda/compiled_for.h"
#include "kernels/cuda/wgmma.cuh"

namespace eddy {
namespace {

#ifdef EDDY_WGMMA
constexpr bool kWarpgroups = true;
#else
constexpr bool kWarpgroups = false;
#endif
constexpr int kWithWarpgroups = 128, kWithout = 64;

// Never launched. All kernels are compiled for the same architectures, so the driver picks for this
// one what it picks for them. Its attributes tell which that was, but not whether the architecture
// is a plain one or one with warpgroups; so the most threads that it could be launched with do.
__global__ void __launch_bounds__(kWarpgroups ? kWithWarpgroups : kWithout) Witness() {}

CompiledFor Ask() {
  cudaFuncAttributes witness = {};
  if (cudaFuncGetAttributes(&witness, Witness) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return {.arch = 10 * witness.ptxVersion,
          .warpgroups = witness.maxThreadsPerBlock == kWithWarpgroups,
          .by_driver = witness.binaryVersion != witness.ptxVersion};
}

}  // namespace

const CompiledFor& KernelsCompiledFor() {
  static const CompiledFor compiled = Ask();
  return compiled;
}

}  // namespace eddy
