#include "engine/adapters/attention_mixer.h"

namespace eddy {
namespace {

LayerSpec::Value OrNull(const std::optional<int64_t>& value) {
  return value ? LayerSpec::Value(*value) : LayerSpec::Value();
}

}  // namespace

LayerSpec AttentionSpec(const AttentionMixer& mixer, int64_t d_model, double norm_eps) {
  return {.type = "attention",
          .d_model = d_model,
          .norm_eps = norm_eps,
          .params = {{"heads", mixer.heads},
                     {"head_dim", mixer.head_dim},
                     {"kv_heads", mixer.kv_heads},
                     {"rope_theta", mixer.rope_theta},
                     {"window", OrNull(mixer.window)},
                     {"bias", mixer.bias}}};
}

LayerSpec ReadNativeAttention(KeyReader& keys, int64_t d_model, double norm_eps) {
  AttentionMixer mixer;
  mixer.heads = keys.Int("heads", {.min = 1, .max = 1024});
  mixer.head_dim = keys.Int("head_dim", {.min = 2, .max = 1024});
  mixer.kv_heads = keys.Int("kv_heads", {.min = 1, .max = 1024, .absent = mixer.heads});
  mixer.rope_theta = keys.Real("rope_theta", kRopeThetaRule);
  mixer.window = keys.IntOrNull("window", kWindowRule);
  mixer.bias = keys.Flag("bias", false);
  return AttentionSpec(mixer, d_model, norm_eps);
}

bool AttendsWithoutWindow(const LayerSpec& spec) {
  return spec.type == "attention" && spec.IsNull("window");
}

}  // namespace eddy
