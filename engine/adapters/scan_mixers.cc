#include "engine/adapters/scan_mixers.h"

#include <string>

#include "engine/model_config.h"

namespace eddy {
namespace {

LayerSpec::Value OrNull(const std::optional<double>& value) {
  return value ? LayerSpec::Value(*value) : LayerSpec::Value();
}

LayerSpec ReadMambaBlock(KeyReader& keys, const char* type, int64_t d_model, double norm_eps) {
  MambaMixer mixer;
  mixer.channels = keys.Int("channels", {.min = 1, .max = kMaxHiddenSize});
  mixer.state_dim = keys.Int("state_dim", {.min = 1, .max = 1024, .absent = 16});
  mixer.step_rank = keys.Int("step_rank", {.min = 1, .max = 65536, .absent = (d_model + 15) / 16});
  mixer.conv_width = keys.Int("conv_width", {.min = 2, .max = 8, .absent = 4});
  mixer.conv_bias = keys.Flag("conv_bias", true);
  mixer.bias = keys.Flag("bias", false);
  return MambaSpec(type, mixer, d_model, norm_eps);
}

}  // namespace

LayerSpec GlaSpec(const GlaMixer& mixer, int64_t d_model, double norm_eps) {
  return {.type = "gla",
          .d_model = d_model,
          .norm_eps = norm_eps,
          .params = {{"heads", mixer.heads},
                     {"kv_heads", mixer.kv_heads},
                     {"key_dim", mixer.key_dim},
                     {"value_dim", mixer.value_dim},
                     {"decay_rank", mixer.decay_rank},
                     {"decay_divisor", mixer.decay_divisor},
                     {"decay_min", OrNull(mixer.decay_min)}}};
}

LayerSpec Mamba2Spec(const Mamba2Mixer& mixer, int64_t d_model, double norm_eps) {
  return {.type = "mamba2",
          .d_model = d_model,
          .norm_eps = norm_eps,
          .params = {{"heads", mixer.heads},
                     {"head_dim", mixer.head_dim},
                     {"state_dim", mixer.state_dim},
                     {"groups", mixer.groups},
                     {"conv_width", mixer.conv_width},
                     {"conv_bias", mixer.conv_bias},
                     {"bias", mixer.bias},
                     {"step_min", mixer.step_range.min},
                     {"step_max", OrNull(mixer.step_range.max)}}};
}

LayerSpec MambaSpec(const char* type, const MambaMixer& mixer, int64_t d_model, double norm_eps) {
  return {.type = type,
          .d_model = d_model,
          .norm_eps = norm_eps,
          .params = {{"channels", mixer.channels},
                     {"state_dim", mixer.state_dim},
                     {"step_rank", mixer.step_rank},
                     {"conv_width", mixer.conv_width},
                     {"conv_bias", mixer.conv_bias},
                     {"bias", mixer.bias}}};
}

LayerSpec MlstmSpec(const MlstmMixer& mixer, int64_t d_model, double norm_eps) {
  return {.type = "mlstm",
          .d_model = d_model,
          .norm_eps = norm_eps,
          .params = {{"heads", mixer.heads},
                     {"key_dim", mixer.key_dim},
                     {"value_dim", mixer.value_dim},
                     {"forget_gate", mixer.forget_gate},
                     {"gate_softcap", OrNull(mixer.gate_softcap)},
                     {"bias", mixer.bias}}};
}

LayerSpec ReadNativeGla(KeyReader& keys, int64_t d_model, double norm_eps) {
  GlaMixer mixer;
  mixer.heads = keys.Int("heads", {.min = 1, .max = 1024});
  mixer.kv_heads = keys.Int("kv_heads", {.min = 1, .max = 1024, .absent = mixer.heads});
  mixer.key_dim = keys.Int("key_dim", {.min = 1, .max = 1024});
  mixer.value_dim = keys.Int("value_dim", {.min = 1, .max = 2048});
  mixer.decay_rank = keys.Int("decay_rank", {.min = 1, .max = 65536, .absent = 16});
  mixer.decay_divisor = keys.Real("decay_divisor", {.min = 1e-3, .max = 1e6, .absent = 16});
  mixer.decay_min = keys.RealOrNull("decay_min", kGlaDecayMin);
  return GlaSpec(mixer, d_model, norm_eps);
}

LayerSpec ReadNativeMamba2(KeyReader& keys, int64_t d_model, double norm_eps) {
  Mamba2Mixer mixer;
  mixer.heads = keys.Int("heads", {.min = 1, .max = 4096});
  mixer.head_dim = keys.Int("head_dim", {.min = 1, .max = 1024});
  mixer.state_dim = keys.Int("state_dim", {.min = 1, .max = 1024});
  mixer.groups = keys.Int("groups", {.min = 1, .max = 4096, .absent = 1});
  mixer.conv_width = keys.Int("conv_width", {.min = 2, .max = 8, .absent = 4});
  mixer.conv_bias = keys.Flag("conv_bias", true);
  mixer.bias = keys.Flag("bias", false);
  mixer.step_range = keys.Range("step_range", kMamba2Step, {});
  return Mamba2Spec(mixer, d_model, norm_eps);
}

LayerSpec ReadNativeMamba(KeyReader& keys, int64_t d_model, double norm_eps) {
  return ReadMambaBlock(keys, "mamba", d_model, norm_eps);
}

LayerSpec ReadNativeLonghorn(KeyReader& keys, int64_t d_model, double norm_eps) {
  return ReadMambaBlock(keys, "longhorn", d_model, norm_eps);
}

LayerSpec ReadNativeMlstm(KeyReader& keys, int64_t d_model, double norm_eps) {
  MlstmMixer mixer;
  mixer.heads = keys.Int("heads", {.min = 1, .max = 1024});
  mixer.key_dim = keys.Int("key_dim", {.min = 1, .max = 1024});
  mixer.value_dim = keys.Int("value_dim", {.min = 1, .max = 2048});
  mixer.forget_gate = keys.Word("forget_gate", {"sigmoid", "exponential"}, "sigmoid");
  mixer.gate_softcap = keys.RealOrNull("gate_softcap", {.min = 1e-3, .max = 1e6});
  mixer.bias = keys.Flag("bias", false);
  return MlstmSpec(mixer, d_model, norm_eps);
}

}  // namespace eddy
