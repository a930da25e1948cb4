#include "kernels/layer_types.h"

#include "kernels/layers/delta/delta.h"
#include "kernels/layers/mlp/mlp.h"

namespace eddy {

std::span<const LayerType* const> LayerTypes() {
  static const LayerType* const kTypes[] = {&DeltaType(), &MlpType("swiglu"), &MlpType("gelu")};
  return kTypes;
}

const LayerType* FindLayerType(std::string_view name) {
  for (const LayerType* type : LayerTypes()) {
    if (type->name == name) return type;
  }
  return nullptr;
}

}  // namespace eddy
