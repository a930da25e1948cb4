// Proves that the host knows which of the compiled kernels the card runs: what it asks the driver
// is what a kernel, compiled for the same architectures as all of them, says of itself.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/compiled_for.h"
#include "kernels/cuda/wgmma.cuh"
#include "tests/kernels/cuda/gpu.h"

namespace eddy {
namespace {

struct Report {
  int arch = 0, warpgroups = -1;
};

__global__ void ReportKernel(Report* report) {
#ifdef __CUDA_ARCH__
  report->arch = __CUDA_ARCH__;
#endif
#ifdef EDDY_WGMMA
  report->warpgroups = 1;
#else
  report->warpgroups = 0;
#endif
}

TEST(KernelsCompiledFor, IsWhatKernelsSay) {
  EDDY_SKIP_WITHOUT_GPU();
  Report report, *device_report = nullptr;
  ASSERT_EQ(cudaMalloc(&device_report, sizeof(Report)), cudaSuccess);
  ReportKernel<<<1, 1>>>(device_report);
  ASSERT_EQ(cudaMemcpy(&report, device_report, sizeof(Report), cudaMemcpyDeviceToHost),
            cudaSuccess);
  ASSERT_EQ(cudaFree(device_report), cudaSuccess);
  ASSERT_GE(report.arch, 800);

  const CompiledFor& compiled = KernelsCompiledFor();
  RecordProperty("architecture", compiled.arch);
  EXPECT_EQ(compiled.arch, report.arch);
  EXPECT_EQ(compiled.warpgroups, report.warpgroups == 1);
  EXPECT_EQ(compiled.launches_dependent(), report.arch >= 900);
  EXPECT_EQ(compiled.clusters(), report.arch >= 900);
}

}  // namespace
}  // namespace eddy
