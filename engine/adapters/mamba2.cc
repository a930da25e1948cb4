// Mamba2 as in flash-linear-attention: blocks of one mixer each, without MLPs.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/adapters/fla.h"
#include "engine/adapters/scan_mixers.h"

namespace eddy {
namespace {

std::vector<NameRule> Names(const std::string& layer) {
  const std::string mixer = layer + "mixer.";
  return {{"norm.", layer + "norm."},          {"in.", mixer + "in_proj."},
          {"conv.", mixer + "conv1d."},        {"step_bias", mixer + "dt_bias"},
          {"decay_rate_log", mixer + "A_log"}, {"skip", mixer + "D"},
          {"out_norm.", mixer + "norm."},      {"out.", mixer + "out_proj."}};
}

// Start values and switches of the training program, and choices among kernels that compute the
// same.
void IgnoreKeysWithoutFunction(KeyReader& keys) {
  IgnoreFlaKeys(keys);
  keys.Ignore({"A_init_range", "chunk_size", "conv_init", "dt_init_floor", "dt_max", "dt_min",
               "max_position_embeddings", "rescale_prenorm_residual", "residual_in_fp32",
               "time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min",
               "time_step_rank"});
}

// Today's class reads norm_eps and dt_limit; older ones and that of transformers call them
// layer_norm_epsilon and time_step_limit. A class writes all of its keys, so where the new one is
// absent the old one is what the weights were trained with. Where both are there they must agree.
double ReadNormEps(KeyReader& keys) {
  constexpr RealRule kRule = {.min = 1e-12, .max = 1, .absent = 1e-5};
  const double eps = keys.Real("norm_eps", kRule);
  const double old = keys.Real("layer_norm_epsilon", kRule);
  if (!keys.Has("layer_norm_epsilon")) return eps;
  if (!keys.Has("norm_eps")) return old;
  if (old != eps) keys.Refuse("layer_norm_epsilon", "it must say the same as norm_eps");
  return eps;
}

Interval ReadStepRange(KeyReader& keys) {
  const Interval range = keys.Range("dt_limit", kMamba2Step, {});
  const Interval old = keys.Range("time_step_limit", kMamba2Step, {});
  if (!keys.Has("time_step_limit")) return range;
  if (!keys.Has("dt_limit")) return old;
  if (old.min != range.min || old.max != range.max) {
    keys.Refuse("time_step_limit", "it must say the same as dt_limit");
  }
  return range;
}

Mamba2Mixer ReadMixer(KeyReader& keys, int64_t hidden_size) {
  Mamba2Mixer mixer;
  const double expand = keys.Real("expand", {.min = 1e-3, .max = 1024, .absent = 2});
  const auto inner = static_cast<int64_t>(expand * static_cast<double>(hidden_size));
  mixer.head_dim = keys.Int("head_dim", {.min = 1, .max = 65536, .absent = 64});
  mixer.heads = inner / mixer.head_dim;
  if (mixer.heads < 1 || inner % mixer.head_dim != 0) {
    keys.Refuse("head_dim", absl::StrCat("must divide expand times hidden_size, ", inner));
    mixer.heads = 1;
  }
  const auto given = keys.IntOrNull("num_heads", {.min = 1, .max = 65536});
  if (given && *given != mixer.heads) {
    keys.Refuse("num_heads", absl::StrCat("expand times hidden_size over head_dim is ", mixer.heads,
                                          ": they must be equal"));
  }
  mixer.state_dim = keys.Int("state_size", {.min = 1, .max = 65536, .absent = 128});
  mixer.groups = keys.Int("n_groups", {.min = 1, .max = 65536, .absent = 1});
  mixer.conv_width = keys.Int("conv_kernel", {.min = 2, .max = 8, .absent = 4});
  mixer.conv_bias = keys.Flag("use_conv_bias", true);
  mixer.bias = keys.Flag("use_bias", false);
  mixer.step_range = ReadStepRange(keys);
  return mixer;
}

}  // namespace

ModelConfig ReadMamba2(KeyReader& keys) {
  ModelConfig config;
  config.vocab_size = keys.Int("vocab_size", {.min = 2, .max = kMaxVocabSize, .absent = 32000});
  config.hidden_size = keys.Int("hidden_size", {.min = 1, .max = kMaxHiddenSize, .absent = 2048});
  config.norm_eps = ReadNormEps(keys);
  config.tie_embeddings = keys.Flag("tie_word_embeddings", false);
  config.tokens = ReadFlaTokens(keys, config.vocab_size, /*absent_pad=*/0);
  config.end_names = {{"embedding.", "backbone.embeddings."},
                      {"final_norm.", "backbone.norm_f."},
                      {"head.", "lm_head."}};
  if (config.tie_embeddings) config.unused_tensors = {"lm_head.weight"};
  const int64_t layers = keys.Int("num_hidden_layers", {.min = 1, .max = kMaxLayers, .absent = 48});
  const LayerSpec spec =
      Mamba2Spec(ReadMixer(keys, config.hidden_size), config.hidden_size, config.norm_eps);
  keys.Word("hidden_act", {"swish", "silu"}, "silu");
  keys.MustBe("norm_before_gate", false, "the norm behind the gate is the one that is served");
  // Training recipes write the key with an underscore.
  keys.MustBe("rmsnorm", true, "the function without the norm is not served");
  keys.MustBe("rms_norm", true, "the function without the norm is not served");
  keys.MustBe("D_has_hdim", false, "a skip for each channel is not served");
  IgnoreKeysWithoutFunction(keys);
  for (int i = 0; i < layers; ++i) {
    const std::string layer = absl::StrCat("backbone.layers.", i, ".");
    config.blocks.push_back({.spec = spec, .names = Names(layer), .layer = i});
  }
  return config;
}

}  // namespace eddy
