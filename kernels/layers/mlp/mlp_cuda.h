// The CUDA version of the layers "swiglu" and "gelu"; see mlp.h.
#pragma once

#include <string_view>

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

// The table row; `name` is "swiglu" or "gelu".
const CudaLayerType& MlpCudaType(std::string_view name);

}  // namespace eddy
