// Picks where a model runs.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace eddy {

struct OpenedDevice {
  std::unique_ptr<Device> device = nullptr;
  std::string no_gpu = {};  // with "auto" on the CPU: why no GPU was taken
};

// `kind`: cpu, cuda or auto, which takes the CPU where there is no usable GPU. Unavailable, with
// what was found and what is needed, if "cuda" cannot be had. The CUDA back end is
// libeddy_cuda.so, looked for beside the program where it was built, in ../lib/eddy where it was
// installed, and where the system looks.
absl::StatusOr<OpenedDevice> OpenDevice(const std::string& kind, const DeviceOptions& options);

// From now on the CPU runs every layer too and compares; see kernels/checked_device.h.
void CheckLayers(OpenedDevice* opened);

}  // namespace eddy
