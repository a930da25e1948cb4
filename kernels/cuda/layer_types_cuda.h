// The table of layer types that have a CUDA version.
#pragma once

#include <string_view>

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

// Null if there is none of that name.
const CudaLayerType* FindCudaLayerType(std::string_view name);

}  // namespace eddy
