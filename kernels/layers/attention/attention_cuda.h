// Layer "attention" on the GPU.
#pragma once

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

// The table row.
const CudaLayerType& AttentionCudaType();

}  // namespace eddy
