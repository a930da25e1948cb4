// The row of layer "delta" (delta.h) in the table of CUDA layers.
#pragma once

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

const CudaLayerType& DeltaCudaType();

}  // namespace eddy
