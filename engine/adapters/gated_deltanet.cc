// Gated DeltaNet as in flash-linear-attention.
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/adapters/fla.h"

namespace eddy {

ModelConfig ReadGatedDeltaNet(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/21);
  const DeltaMixer mixer = ReadGatedDeltaMixer(keys);
  // Very early files hold one more parameter per layer, which the function never used.
  for (int i = 0; i < model.layers; ++i) {
    if (model.attention.count(i) > 0) continue;
    model.config.unused_tensors.push_back(absl::StrCat("model.layers.", i, ".attn.D"));
  }
  return WithDeltaLayers(std::move(model), mixer);
}

}  // namespace eddy
