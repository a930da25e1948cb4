// Gated linear attention as in flash-linear-attention.
#include <string>
#include <utility>
#include <vector>

#include "engine/adapters/fla.h"
#include "engine/adapters/scan_mixers.h"

namespace eddy {
namespace {

// `norm`: of the heads' outputs.
std::vector<NameRule> Names(const std::string& layer, const char* norm) {
  const std::string attn = layer + "attn.";
  return {{"norm.", layer + "attn_norm."},
          {"q.", attn + "q_proj."},
          {"k.", attn + "k_proj."},
          {"v.", attn + "v_proj."},
          {"decay_down.", attn + "gk_proj.0."},
          {"decay_up.", attn + "gk_proj.1."},
          {"gate.", attn + "g_proj."},
          {"out_norm.", attn + norm},
          {"out.", attn + "o_proj."}};
}

std::vector<NameRule> FusedNames(const std::string& layer) {
  return Names(layer, "g_norm_swish_gate.");
}
std::vector<NameRule> UnfusedNames(const std::string& layer) { return Names(layer, "g_norm."); }

}  // namespace

ModelConfig ReadGla(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/24);
  const int64_t hidden_size = model.config.hidden_size;
  GlaMixer mixer;
  mixer.heads = keys.Int("num_heads", {.min = 1, .max = 65536, .absent = 4});
  mixer.kv_heads = keys.IntOrNull("num_kv_heads", {.min = 1, .max = 65536}).value_or(mixer.heads);
  mixer.key_dim = ReadFlaHeadDim(keys, {"expand_k", 0.5}, hidden_size, mixer.heads);
  mixer.value_dim = ReadFlaHeadDim(keys, {"expand_v", 1}, hidden_size, mixer.heads);
  mixer.decay_min = keys.RealOrNull("clamp_min", kGlaDecayMin);
  keys.MustBe("feature_map", nullptr, "the function with one is not served");
  keys.MustBe("use_short_conv", false, "the function with one is not served");
  keys.MustBe("use_gk", true, "the function without it is not served");
  keys.MustBe("use_gv", false, "the function with it is not served");
  keys.MustBe("use_output_gate", true, "the function without it is not served");
  keys.MustBe("elementwise_affine", true, "the function without it is not served");
  keys.Ignore({"conv_size"});  // of the convolution that there is not
  const bool fused = keys.Flag("fuse_norm", true);
  const LayerSpec spec = GlaSpec(mixer, hidden_size, model.config.norm_eps);
  return WithLayers(std::move(model), spec, fused ? FusedNames : UnfusedNames);
}

}  // namespace eddy
