// The row of layer "mamba2" (mamba2.h) in the table of CUDA layers.
#pragma once

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

const CudaLayerType& Mamba2CudaType();

}  // namespace eddy
