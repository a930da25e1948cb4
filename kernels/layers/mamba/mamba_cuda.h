// The rows of layers "mamba" and "longhorn" (mamba.h) in the table of CUDA layers.
#pragma once

#include <string_view>

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

// name: "mamba" or "longhorn".
const CudaLayerType& MambaCudaType(std::string_view name);

}  // namespace eddy
