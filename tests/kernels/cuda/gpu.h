// Whether tests of CUDA kernels can run here.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace eddy::cuda_test {

inline bool NoGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) != cudaSuccess || count == 0;
}

}  // namespace eddy::cuda_test

#define EDDY_SKIP_WITHOUT_GPU() \
  if (::eddy::cuda_test::NoGpu()) GTEST_SKIP() << "there is no GPU here"
