// Kimi Delta Attention as in flash-linear-attention. Files of its early versions, whose gates have
// one row per query head, fit only where there are as many value heads.
#include <utility>

#include "engine/adapters/fla.h"

namespace eddy {

ModelConfig ReadKda(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/24);
  DeltaMixer mixer;
  ReadFlaHeads(keys, {.heads = 16, .head_dim = 128, .expand_v = 1}, &mixer);
  ReadFlaDelta(keys, &mixer);
  mixer.decay = "channel";
  mixer.decay_rank = mixer.value_dim;
  mixer.decay_bound = keys.RealOrNull("lower_bound", {.min = -5, .max = -1e-6});
  mixer.gate = "sigmoid";
  mixer.gate_rank = mixer.value_dim;
  keys.Ignore({"safe_gate"});  // how A_log starts in training, and which kernel runs
  return WithDeltaLayers(std::move(model), mixer);
}

}  // namespace eddy
