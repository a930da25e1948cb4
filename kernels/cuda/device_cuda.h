// The CUDA back end behind the contract of kernels/device.h.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace eddy {

// Null, with one line on what was found and what is needed, if there is no usable GPU.
std::unique_ptr<Device> MakeCudaDevice(const DeviceOptions& options, std::string* why_not);

}  // namespace eddy
