// The device that tests of layers and models run on.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace eddy::testing {

// By the environment variable EDDY_TEST_DEVICE: cpu, with one thread, which is the default; or
// cuda, on which all tests of a program are skipped where there is no usable GPU. Unless asked for
// bfloat16, which the CPU does not have, weights are float on both, so that both obey the same
// tolerances.
std::unique_ptr<Device> OpenTestDevice(DType matrices = DType::kF32, DType states = DType::kF32);

}  // namespace eddy::testing
