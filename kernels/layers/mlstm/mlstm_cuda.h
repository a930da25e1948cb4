// The row of layer "mlstm" (mlstm.h) in the table of CUDA layers.
#pragma once

#include "kernels/cuda/cuda_layer.h"

namespace eddy {

const CudaLayerType& MlstmCudaType();

}  // namespace eddy
