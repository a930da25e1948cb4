#include "kernels/layer_types.h"

#include "kernels/layers/attention/attention.h"
#include "kernels/layers/delta/delta.h"
#include "kernels/layers/gla/gla.h"
#include "kernels/layers/kalman/kalman.h"
#include "kernels/layers/mamba/mamba.h"
#include "kernels/layers/mamba2/mamba2.h"
#include "kernels/layers/mlp/mlp.h"
#include "kernels/layers/mlstm/mlstm.h"

namespace eddy {

std::span<const LayerType* const> LayerTypes() {
  static const LayerType* const kTypes[] = {
      &AttentionType(),    &DeltaType(),           &GlaType(),    &KalmanType(),
      &MambaType("mamba"), &MambaType("longhorn"), &Mamba2Type(), &MlpType("swiglu"),
      &MlpType("gelu"),    &MlstmType(),
  };
  return kTypes;
}

const LayerType* FindLayerType(std::string_view name) {
  for (const LayerType* type : LayerTypes()) {
    if (type->name == name) return type;
  }
  return nullptr;
}

}  // namespace eddy
