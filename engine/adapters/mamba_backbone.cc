#include "engine/adapters/mamba_backbone.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/adapters/fla.h"

namespace eddy {
namespace {

// Today's class reads norm_eps; older ones and those of transformers call it layer_norm_epsilon. A
// class writes all of its keys, so where the new one is absent the old one is what the weights were
// trained with. Where both are there they must agree.
double ReadNormEps(KeyReader& keys) {
  constexpr RealRule kRule = {.min = 1e-12, .max = 1, .absent = 1e-5};
  const double eps = keys.Real("norm_eps", kRule);
  const double old = keys.Real("layer_norm_epsilon", kRule);
  if (!keys.Has("layer_norm_epsilon")) return eps;
  if (!keys.Has("norm_eps")) return old;
  if (old != eps) keys.Refuse("layer_norm_epsilon", "it must say the same as norm_eps");
  return eps;
}

}  // namespace

MambaBackbone ReadMambaBackbone(KeyReader& keys, bool tied) {
  MambaBackbone backbone;
  ModelConfig& config = backbone.config;
  config.vocab_size = keys.Int("vocab_size", {.min = 2, .max = kMaxVocabSize, .absent = 32000});
  config.hidden_size = keys.Int("hidden_size", {.min = 1, .max = kMaxHiddenSize, .absent = 2048});
  config.norm_eps = ReadNormEps(keys);
  config.tie_embeddings = keys.Flag("tie_word_embeddings", tied);
  // Some writers store a head that is the embedding all the same. Where the config does not say
  // that it is, a head in the files is another one.
  if (config.tie_embeddings && keys.Has("tie_word_embeddings")) {
    config.unused_tensors = {"lm_head.weight"};
  }
  config.tokens = ReadFlaTokens(keys, config.vocab_size, /*absent_pad=*/0);
  config.end_names = {{"embedding.", "backbone.embeddings."},
                      {"final_norm.", "backbone.norm_f."},
                      {"head.", "lm_head."}};
  backbone.layers = keys.Int("num_hidden_layers", {.min = 1, .max = kMaxLayers, .absent = 48});
  const double expand = keys.Real("expand", {.min = 1e-3, .max = 1024, .absent = 2});
  backbone.inner = static_cast<int64_t>(expand * static_cast<double>(config.hidden_size));
  keys.Word("hidden_act", {"swish", "silu"}, "silu");
  IgnoreFlaKeys(keys);
  keys.Ignore({"dt_init_floor", "dt_max", "dt_min", "max_position_embeddings",
               "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor",
               "time_step_init_scheme", "time_step_max", "time_step_min"});
  return backbone;
}

ModelConfig WithMambaLayers(MambaBackbone backbone, const LayerSpec& mixer,
                            std::vector<NameRule> (*names)(const std::string& layer)) {
  ModelConfig config = std::move(backbone.config);
  for (int i = 0; i < backbone.layers; ++i) {
    const std::string layer = absl::StrCat("backbone.layers.", i, ".");
    config.blocks.push_back({.spec = mixer, .names = names(layer), .layer = i});
  }
  return config;
}

}  // namespace eddy
