// DeltaNet as in flash-linear-attention.
#include <utility>

#include "engine/adapters/fla.h"

namespace eddy {
DeltaMixer ReadDeltaNetMixer(KeyReader& keys, int64_t hidden_size) {
  DeltaMixer mixer;
  mixer.heads = keys.Int("num_heads", {.min = 1, .max = 65536, .absent = 16});
  mixer.value_heads = mixer.heads;
  mixer.key_dim = ReadFlaHeadDim(keys, {"expand_k"}, hidden_size, mixer.heads);
  mixer.value_dim = ReadFlaHeadDim(keys, {"expand_v"}, hidden_size, mixer.heads);
  mixer.query_norm = mixer.key_norm = keys.Word("qk_norm", {"l2", "sum"}, "l2");
  mixer.qk_activation = keys.Word("qk_activation", {"silu", "relu", "elu", "identity"}, "silu");
  mixer.step = keys.Flag("use_beta", true) ? "sigmoid" : "one";
  mixer.gate = keys.Flag("use_gate", false) ? "silu" : "none";
  keys.MustBe("use_output_norm", true, "the function without it is not served");
  ReadFlaDelta(keys, &mixer);
  if (mixer.step == "one" && mixer.step_max != 1) {
    keys.Refuse("use_beta", "a step of 2 at every token, by allow_neg_eigval, is not served");
  }
  keys.MustBe("use_rope", false, "the function with it is not served");  // of very early files
  return mixer;
}

ModelConfig ReadDeltaNet(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/24);
  const DeltaMixer mixer = ReadDeltaNetMixer(keys, model.config.hidden_size);
  return WithDeltaLayers(std::move(model), mixer);
}

}  // namespace eddy
