// DeltaNet as in flash-linear-attention.
#include <utility>

#include "engine/adapters/fla.h"

namespace eddy {
namespace {

// floor(hidden_size * expand) split over the heads; at least 1, so that later arithmetic holds.
int64_t HeadDim(KeyReader& keys, const char* expand_key, int64_t hidden_size, int64_t heads) {
  const double expand = keys.Real(expand_key, {.min = 1e-3, .max = 1024, .absent = 1});
  const auto width = static_cast<int64_t>(static_cast<double>(hidden_size) * expand);
  if (width % heads == 0 && width > 0) return width / heads;
  keys.Refuse(expand_key, "hidden_size times it must be a multiple of num_heads");
  return 1;
}

}  // namespace

ModelConfig ReadDeltaNet(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/24);
  DeltaMixer mixer;
  mixer.heads = keys.Int("num_heads", {.min = 1, .max = 65536, .absent = 16});
  mixer.value_heads = mixer.heads;
  mixer.key_dim = HeadDim(keys, "expand_k", model.config.hidden_size, mixer.heads);
  mixer.value_dim = HeadDim(keys, "expand_v", model.config.hidden_size, mixer.heads);
  mixer.query_norm = mixer.key_norm = keys.Word("qk_norm", {"l2", "sum"}, "l2");
  mixer.qk_activation = keys.Word("qk_activation", {"silu", "relu", "elu", "identity"}, "silu");
  mixer.step = keys.Flag("use_beta", true) ? "sigmoid" : "one";
  mixer.gate = keys.Flag("use_gate", false) ? "silu" : "none";
  keys.MustBe("use_output_norm", true, "the function without it is not served");
  ReadFlaDelta(keys, &mixer);
  return WithDeltaLayers(std::move(model), mixer);
}

}  // namespace eddy
