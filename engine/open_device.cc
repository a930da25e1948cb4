#include "engine/open_device.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/checked_device.h"

namespace eddy {
namespace {

// Never closed: the device's code lives in it, and CUDA does not like to be unloaded.
std::unique_ptr<Device> OpenPlugin(const DeviceOptions& options, std::string* why_not) {
  void* const library = dlopen("libeddy_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why_not = absl::StrCat("the CUDA back end does not load: ", dlerror());
    return nullptr;
  }
  const auto open = reinterpret_cast<OpenDeviceFn>(dlsym(library, "EddyOpenDevice"));
  if (open == nullptr) {
    *why_not = "libeddy_cuda.so has no EddyOpenDevice";
    return nullptr;
  }
  return std::unique_ptr<Device>(open(EDDY_BUILD_ID, options, why_not));
}

}  // namespace

absl::StatusOr<OpenedDevice> OpenDevice(const std::string& kind, const DeviceOptions& options) {
  OpenedDevice opened;
  if (kind != "cpu") opened.device = OpenPlugin(options, &opened.no_gpu);
  if (opened.device != nullptr) return opened;
  if (kind == "cuda") return absl::UnavailableError(absl::StrCat("--device=cuda: ", opened.no_gpu));
  opened.device = OpenCpuDevice(options);
  return opened;
}

void CheckLayers(OpenedDevice* opened) {
  opened->device = MakeCheckedDevice(std::move(opened->device));
}

}  // namespace eddy
