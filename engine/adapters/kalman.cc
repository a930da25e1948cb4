// Kalman Linear Attention (arXiv 2602.10743) as in the authors' package kla 0.1.0. The package has
// no config.json; ours is the union of the fields of its KLAConfig and ModelConfig, with their
// defaults, beside the package's own tensor names.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/adapters/adapter.h"
#include "engine/adapters/delta_mixer.h"
#include "engine/adapters/kalman_mixer.h"

namespace eddy {
namespace {

// What int(factor * size) is in the package.
int64_t Scaled(int64_t size, double factor) {
  return static_cast<int64_t>(factor * static_cast<double>(size));
}

TokenIds ReadTokens(KeyReader& keys, int64_t vocab_size) {
  const IntRule rule = {.min = 0, .max = vocab_size - 1};
  const auto narrow = [](std::optional<int64_t> id) {
    return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
  };
  TokenIds tokens;
  tokens.bos = narrow(keys.IntOrNull("bos_token_id", rule));
  tokens.pad = narrow(keys.IntOrNull("pad_token_id", rule));
  // The package knows no tokens with a part to play, so a config may name none.
  if (!keys.Has("eos_token_id")) {
    keys.Ignore({"eos_token_id"});
    return tokens;
  }
  for (int64_t id : keys.Ints("eos_token_id", rule)) {
    tokens.eos.push_back(static_cast<int32_t>(id));
  }
  return tokens;
}

// Start values and switches of the training program, and choices among kernels that compute the
// same.
void IgnoreKeysWithoutFunction(KeyReader& keys) {
  keys.Ignore({"_name_or_path", "architectures", "auto_map", "backend", "checkpoint_ssm",
               "dt_init_floor", "dt_max", "dt_min", "dtype", "initializer_range",
               "lambda_skip_init", "learnable_process_noise", "mobius_impl", "process_noise_scale",
               "return_variance", "scan_impl", "torch_dtype", "transformers_version", "use_cache"});
}

std::string ReadActivation(KeyReader& keys, const char* key) {
  return keys.Word(key, {"silu", "gelu", "relu"}, "silu");
}

KalmanMixer ReadMixer(KeyReader& keys, int64_t d_model) {
  KalmanMixer mixer;
  const double expand = keys.Real("expand", {.min = 1e-3, .max = 1024, .absent = 2});
  mixer.channels = Scaled(d_model, expand);
  if (mixer.channels < 1) keys.Refuse("expand", "times d_model it must be at least 1");
  mixer.state_dim = keys.Int("d_state", {.min = 1, .max = 4096, .absent = 16});
  const int64_t conv_size = keys.Int("conv_kernel_size", {.min = 1, .max = 8, .absent = 4});
  mixer.conv_width = keys.Flag("use_conv", true) ? conv_size : 0;
  mixer.conv_activation = ReadActivation(keys, "conv_activation");

  const int64_t dt_rank = keys.IntOrNull("dt_rank", kKalmanRank).value_or((d_model + 7) / 8);
  const auto resolved = [&](KalmanRank rank) {
    return rank == KalmanRank("dt") ? KalmanRank(dt_rank) : rank;
  };
  mixer.value_rank =
      resolved(keys.IntOrWord("value_rank", kKalmanRank, {"full", "conv", "dt"}, "full"));
  mixer.noise_rank = resolved(keys.IntOrWord("var_rank", kKalmanRank, {"full", "dt"}, "full"));
  mixer.noise_range.min =
      keys.Real("obs_var_min", {.min = kKalmanNoise.min, .max = kKalmanNoise.max, .absent = 1e-4});
  mixer.noise_range.max = keys.RealOrNull("obs_var_max", kKalmanNoise);
  if (mixer.noise_range.max && *mixer.noise_range.max < mixer.noise_range.min) {
    keys.Refuse("obs_var_max", "must be at least obs_var_min");
  }
  mixer.discretization = keys.Word("discretization", {"ou", "zoh"}, "ou");
  mixer.process_noise = keys.Flag("zero_process_noise", false) ? "zero" : "floor";
  mixer.qk_norm = keys.Flag("qk_norm", true);
  mixer.clip = keys.RealOrNull("clip_value", kKalmanClip);
  mixer.readout = keys.Flag("decode_from_prior", false) ? "prior" : "posterior";

  const std::string gate = ReadActivation(keys, "gating_activation");
  mixer.gate = keys.Flag("use_gating", true) ? gate : "none";
  const std::string skip = keys.Word("lambda_skip_mode", {"scalar", "vector"}, "scalar");
  mixer.skip = skip == "vector" ? "channel" : "scalar";
  if (!keys.Flag("use_lambda_skip", true)) mixer.skip = "none";
  mixer.bias = keys.Flag("bias", false);
  return mixer;
}

std::optional<LayerSpec> ReadMlp(KeyReader& keys, int64_t d_model, double norm_eps) {
  const std::string type = keys.Word("mlp", {"swiglu", "gelu", "none"}, "swiglu");
  const double ratio = keys.Real("mlp_ratio", {.min = 1e-3, .max = 1024, .absent = 4});
  if (type == "none") return std::nullopt;
  const int64_t hidden = Scaled(d_model, ratio);
  const int64_t size = type == "swiglu" ? 2 * hidden / 3 : hidden;
  if (size < 1) keys.Refuse("mlp_ratio", "it leaves the MLP no width");
  return MlpSpec(type, size, d_model, norm_eps);
}

std::vector<NameRule> MixerNames(const std::string& block) {
  const std::string mixer = block + "mixer.";
  return {{"norm.", block + "mixer_norm."},
          {"in.", mixer + "in_proj."},
          {"conv.", mixer + "conv."},
          {"sensor.", mixer + "sensor_proj."},
          {"value_up.", mixer + "value_expand."},
          {"noise_up.", mixer + "var_expand."},
          {"out.", mixer + "out_proj."},
          {"step_raw", mixer + "delta"},
          {"rate_log", mixer + "lambda_log"},
          {"process_noise", mixer + "process_noise"},
          {"skip", mixer + "lambda_skip"}};
}

// w12 holds the rows of the gate, then those of what it opens.
std::vector<NameRule> MlpNames(const std::string& block, const LayerSpec& mlp) {
  const std::string prefix = block + "mlp.";
  const NameRule norm = {"norm.", block + "mlp_norm."};
  const int64_t size = mlp.Int("size");
  if (mlp.type == "gelu") return {norm, {"up.", prefix + "w1."}, {"down.", prefix + "w2."}};
  return {norm,
          {"gate.", prefix + "w12.", 0, size},
          {"up.", prefix + "w12.", size, size},
          {"down.", prefix + "w3."}};
}

}  // namespace

ModelConfig ReadKalman(KeyReader& keys) {
  ModelConfig config;
  config.vocab_size = keys.Int("vocab_size", {.min = 2, .max = kMaxVocabSize, .absent = 50304});
  config.hidden_size = keys.Int("d_model", {.min = 1, .max = kMaxHiddenSize, .absent = 512});
  config.norm_eps = keys.Real("norm_eps", {.min = 1e-12, .max = 1, .absent = 1e-5});
  config.tie_embeddings = keys.Flag("tie_embeddings", false);
  config.logit_softcap = keys.RealOrNull("logit_softcap", {.min = 1e-3, .max = 1e6}).value_or(0.0);
  config.tokens = ReadTokens(keys, config.vocab_size);
  config.end_names = {
      {"embedding.", "embedding."}, {"final_norm.", "norm_f."}, {"head.", "lm_head."}};
  if (config.tie_embeddings) config.unused_tensors = {"lm_head.weight"};
  IgnoreKeysWithoutFunction(keys);

  const LayerSpec mixer =
      KalmanSpec(ReadMixer(keys, config.hidden_size), config.hidden_size, config.norm_eps);
  const std::optional<LayerSpec> mlp = ReadMlp(keys, config.hidden_size, config.norm_eps);
  const int64_t layers = keys.Int("n_layers", {.min = 1, .max = kMaxLayers, .absent = 6});
  for (int i = 0; i < layers; ++i) {
    const std::string block = absl::StrCat("blocks.", i, ".");
    config.blocks.push_back({.spec = mixer, .names = MixerNames(block), .layer = i});
    if (!mlp) continue;
    config.blocks.push_back(
        {.spec = *mlp, .names = MlpNames(block, *mlp), .layer = i, .mlp = true});
  }
  return config;
}

}  // namespace eddy
