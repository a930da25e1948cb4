// The row of layer "kalman" (kalman.h) in the table of CUDA layers.
#pragma once

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

const CudaLayerType& KalmanCudaType();

}  // namespace eddy
