// The sticky first error of a device. Internal to the CUDA back end.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

namespace eddy {

// After the first failure everything the device is asked for does nothing, until somebody takes the
// error in Finish; a CUDA context that failed does not heal, so the same error comes back then.
class CudaErrors {
 public:
  bool ok() const { return !first_.has_value(); }
  // Keeps what went wrong, if something did.
  bool Check(cudaError_t code, const char* what) {
    if (code == cudaSuccess) return ok();
    Fail(std::string(what) + ": " + cudaGetErrorName(code) + ", " + cudaGetErrorString(code));
    return false;
  }
  void Fail(std::string what) {
    if (ok()) first_ = std::move(what);
  }
  const std::optional<std::string>& first() const { return first_; }

 private:
  std::optional<std::string> first_;
};

}  // namespace eddy
