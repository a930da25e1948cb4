// A back end for --device=cuda that breaks: the real one, if EDDY_TEST_REAL_PLUGIN says where it
// is, else the CPU, after EDDY_TEST_HEALTHY_FORWARDS calls of layers; with EDDY_TEST_HANGS it hangs
// instead. For tests of whole programs.
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "tests/engine/faulty_device.h"

extern "C" __attribute__((visibility("default"))) eddy::Device* EddyOpenDevice(
    const char* build_id, const eddy::DeviceOptions& options, std::string* why_not) {
  std::unique_ptr<eddy::Device> real;
  if (const char* const path = std::getenv("EDDY_TEST_REAL_PLUGIN"); path != nullptr) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      *why_not = dlerror();
      return nullptr;
    }
    const auto open = reinterpret_cast<eddy::OpenDeviceFn>(dlsym(library, "EddyOpenDevice"));
    real.reset(open(build_id, options, why_not));
    if (real == nullptr) return nullptr;
  } else {
    real = eddy::OpenCpuDevice(options);
  }
  const char* const healthy = std::getenv("EDDY_TEST_HEALTHY_FORWARDS");
  return new eddy::FaultyDevice(std::move(real), healthy == nullptr ? 0 : std::atoi(healthy),
                                std::getenv("EDDY_TEST_HANGS") != nullptr);
}
