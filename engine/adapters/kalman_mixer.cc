#include "engine/adapters/kalman_mixer.h"

#include "engine/model_config.h"

namespace eddy {
namespace {

// A rank in the words of the layer type: a kind, and a number if it is "low".
std::string KindOf(const KalmanRank& rank) {
  const auto* const word = std::get_if<std::string>(&rank);
  return word != nullptr ? *word : "low";
}

LayerSpec::Value NumberOf(const KalmanRank& rank) {
  const auto* const number = std::get_if<int64_t>(&rank);
  return number != nullptr ? LayerSpec::Value(*number) : LayerSpec::Value();
}

LayerSpec::Value OrNull(const std::optional<double>& value) {
  return value ? LayerSpec::Value(*value) : LayerSpec::Value();
}

}  // namespace

LayerSpec KalmanSpec(const KalmanMixer& mixer, int64_t d_model, double norm_eps) {
  return {.type = "kalman",
          .d_model = d_model,
          .norm_eps = norm_eps,
          .params = {{"channels", mixer.channels},
                     {"state_dim", mixer.state_dim},
                     {"conv_width", mixer.conv_width},
                     {"conv_activation", mixer.conv_activation},
                     {"value", KindOf(mixer.value_rank)},
                     {"value_rank", NumberOf(mixer.value_rank)},
                     {"noise", KindOf(mixer.noise_rank)},
                     {"noise_rank", NumberOf(mixer.noise_rank)},
                     {"noise_min", mixer.noise_range.min},
                     {"noise_max", OrNull(mixer.noise_range.max)},
                     {"discretization", mixer.discretization},
                     {"process_noise", mixer.process_noise},
                     {"qk_norm", mixer.qk_norm},
                     {"clip", OrNull(mixer.clip)},
                     {"readout", mixer.readout},
                     {"gate", mixer.gate},
                     {"skip", mixer.skip},
                     {"bias", mixer.bias},
                     {"prior", mixer.prior}}};
}

LayerSpec ReadNativeKalman(KeyReader& keys, int64_t d_model, double norm_eps) {
  KalmanMixer mixer;
  mixer.channels = keys.Int("channels", {.min = 1, .max = kMaxHiddenSize});
  mixer.state_dim = keys.Int("state_dim", {.min = 1, .max = 4096});
  mixer.conv_width = keys.Int("conv_width", {.min = 0, .max = 8, .absent = 4});
  mixer.conv_activation = keys.Word("conv_activation", {"silu", "gelu", "relu"}, "silu");
  mixer.value_rank = keys.IntOrWord("value_rank", kKalmanRank, {"full", "conv"}, "full");
  mixer.noise_rank = keys.IntOrWord("noise_rank", kKalmanRank, {"full"}, "full");
  mixer.noise_range = keys.Range("noise_range", kKalmanNoise, mixer.noise_range);
  mixer.discretization = keys.Word("discretization", {"ou", "zoh"}, "ou");
  mixer.process_noise = keys.Word("process_noise", {"floor", "zero"}, "floor");
  mixer.qk_norm = keys.Flag("qk_norm", true);
  mixer.clip = keys.RealOrNull("clip", kKalmanClip);
  mixer.readout = keys.Word("readout", {"posterior", "prior"}, "posterior");
  mixer.gate = keys.Word("gate", {"none", "silu", "gelu", "relu"}, "silu");
  mixer.skip = keys.Word("skip", {"none", "scalar", "channel"}, "scalar");
  mixer.bias = keys.Flag("bias", false);
  mixer.prior = keys.Word("prior", {"unit", "learned"}, "unit");
  return KalmanSpec(mixer, d_model, norm_eps);
}

}  // namespace eddy
