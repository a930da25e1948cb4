// The row of layer "gla" (gla.h) in the table of CUDA layers.
#pragma once

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

const CudaLayerType& GlaCudaType();

}  // namespace eddy
