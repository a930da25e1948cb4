#include "kernels/cuda/layer_types_cuda.h"

#include "kernels/layers/attention/attention_cuda.h"
#include "kernels/layers/delta/delta_cuda.h"
#include "kernels/layers/gla/gla_cuda.h"
#include "kernels/layers/kalman/kalman_cuda.h"
#include "kernels/layers/mamba/mamba_cuda.h"
#include "kernels/layers/mamba2/mamba2_cuda.h"
#include "kernels/layers/mlp/mlp_cuda.h"
#include "kernels/layers/mlstm/mlstm_cuda.h"

namespace eddy {

const CudaLayerType* FindCudaLayerType(std::string_view name) {
  static const CudaLayerType* const kTypes[] = {
      &AttentionCudaType(), &DeltaCudaType(),        &GlaCudaType(),
      &KalmanCudaType(),    &MambaCudaType("mamba"), &MambaCudaType("longhorn"),
      &Mamba2CudaType(),    &MlpCudaType("swiglu"),  &MlpCudaType("gelu"),
      &MlstmCudaType(),
  };
  for (const CudaLayerType* type : kTypes) {
    if (type->name == name) return type;
  }
  return nullptr;
}

}  // namespace eddy
