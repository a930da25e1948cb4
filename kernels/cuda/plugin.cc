// The one symbol that libeddy_cuda.so exports.
#include <string>

#include "kernels/cuda/device_cuda.h"

extern "C" __attribute__((visibility("default"))) eddy::Device* EddyOpenDevice(
    const char* build_id, const eddy::DeviceOptions& options, std::string* why_not) {
  // Before anything else is touched: the options of another build may lie elsewhere.
  if (std::string(build_id) != EDDY_BUILD_ID) {
    *why_not = std::string("libeddy_cuda.so is of the build ") + EDDY_BUILD_ID +
               ", the server of " + build_id + ": install both from one build";
    return nullptr;
  }
  return eddy::MakeCudaDevice(options, why_not).release();
}
