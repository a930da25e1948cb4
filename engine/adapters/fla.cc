#include "engine/adapters/fla.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/weights.h"

namespace eddy {
namespace {

// The family's rule for an MLP whose size is not given: two thirds of hidden_size * hidden_ratio,
// rounded up to a multiple of 256.
int64_t MlpSize(int64_t hidden_size, double hidden_ratio) {
  const double two_thirds = static_cast<double>(hidden_size) * hidden_ratio * 2 / 3;
  return (static_cast<int64_t>(two_thirds) + 255) / 256 * 256;
}

// The family's whole number for a product of sizes and factors. Factors such as 0.7 leave it a last
// bit beside the number that is meant: today's code rounds that away, older code did not load such
// a model at all. Of what is no whole number older code kept the floor.
int64_t FlaWidth(double product) {
  const double nearest = std::round(product);
  const bool meant = std::abs(product - nearest) <= 1e-9 * nearest;
  return static_cast<int64_t>(meant ? nearest : product);
}

// Older files say rms_norm_eps, which today's code does not read: where the two differ, nobody
// knows which one the weights were trained with.
void CheckOldNormEps(KeyReader& keys, double norm_eps) {
  const auto old = keys.RealOrNull("rms_norm_eps", {.min = 1e-12, .max = 1});
  if (!old || *old == norm_eps) return;
  keys.Refuse("rms_norm_eps", absl::StrCat("norm_eps is ", norm_eps, ": they must be equal"));
}

std::vector<NameRule> DeltaNames(const std::string& layer) {
  const std::string attn = layer + "attn.";
  return {{"norm.", layer + "attn_norm."},
          {"q.", attn + "q_proj."},
          {"k.", attn + "k_proj."},
          {"v.", attn + "v_proj."},
          {"q_conv.", attn + "q_conv1d."},
          {"k_conv.", attn + "k_conv1d."},
          {"v_conv.", attn + "v_conv1d."},
          {"step.", attn + "b_proj."},
          {"step_scale_raw", attn + "step_scale_raw"},  // no name is published
          {"decay.", attn + "a_proj."},
          {"decay_down.", attn + "f_proj.0."},
          {"decay_up.", attn + "f_proj.1."},
          {"decay_rate_log", attn + "A_log"},
          {"decay_bias", attn + "dt_bias"},
          {"gate.", attn + "g_proj."},
          {"gate_down.", attn + "g_proj.0."},
          {"gate_up.", attn + "g_proj.1."},
          {"out_norm.", attn + "o_norm."},
          {"out.", attn + "o_proj."},
          {"scale_init", attn + "initial_scale"},
          {"retention.", attn + "osgm_a_proj."},
          {"retention_logit", attn + "osgm_gamma_log"}};
}

std::vector<NameRule> MlpNames(const std::string& layer) {
  return {{"norm.", layer + "mlp_norm."},
          {"gate.", layer + "mlp.gate_proj."},
          {"up.", layer + "mlp.up_proj."},
          {"down.", layer + "mlp.down_proj."}};
}

}  // namespace

TokenIds ReadFlaTokens(KeyReader& keys, int64_t vocab_size, std::optional<int64_t> absent_pad) {
  const auto rule = [&](std::optional<int64_t> absent) {
    return IntRule{.min = 0, .max = vocab_size - 1, .absent = absent};
  };
  const auto narrow = [](std::optional<int64_t> id) {
    return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
  };
  TokenIds tokens;
  tokens.bos = narrow(keys.IntOrNull("bos_token_id", rule(1)));
  for (int64_t id : keys.Ints("eos_token_id", rule(2))) {
    tokens.eos.push_back(static_cast<int32_t>(id));
  }
  tokens.pad = narrow(keys.IntOrNull("pad_token_id", rule(absent_pad)));
  return tokens;
}

// Bookkeeping of the training program, and choices among kernels that compute the same.
void IgnoreFlaKeys(KeyReader& keys) {
  keys.Ignore({"_name_or_path", "architectures", "attn_mode", "auto_map", "dtype",
               "initializer_range", "norm_first", "share_conv_kernel", "torch_dtype",
               "transformers_version", "use_cache", "use_l2warp", "_attn_implementation_autoset"});
  keys.IgnorePrefix("fuse_");
}

int64_t ReadFlaHeadDim(KeyReader& keys, FlaExpand expand, int64_t hidden_size, int64_t heads) {
  const double factor = keys.Real(expand.key, {.min = 1e-3, .max = 1024, .absent = expand.absent});
  const int64_t width = FlaWidth(static_cast<double>(hidden_size) * factor);
  if (width % heads == 0 && width > 0) return width / heads;
  // What follows from a size that is at fault itself says nothing.
  if (!keys.Status().ok()) return 1;
  keys.Refuse(expand.key, "hidden_size times it must be a multiple of num_heads");
  return 1;
}

std::string FlaMixerPrefix(const Block& block) {
  return absl::StrCat("model.layers.", block.layer, ".attn.");
}

FlaModel ReadFlaModel(KeyReader& keys, int64_t layers) {
  FlaModel model;
  ModelConfig& config = model.config;
  config.vocab_size = keys.Int("vocab_size", {.min = 2, .max = kMaxVocabSize, .absent = 32000});
  config.hidden_size = keys.Int("hidden_size", {.min = 1, .max = kMaxHiddenSize, .absent = 2048});
  config.norm_eps = keys.Real("norm_eps", {.min = 1e-12, .max = 1, .absent = 1e-6});
  CheckOldNormEps(keys, config.norm_eps);
  config.tie_embeddings = keys.Flag("tie_word_embeddings", false);
  config.tokens = ReadFlaTokens(keys, config.vocab_size, /*absent_pad=*/{});
  config.end_names = {
      {"embedding.", "model.embeddings."}, {"final_norm.", "model.norm."}, {"head.", "lm_head."}};
  if (config.tie_embeddings) config.unused_tensors = {"lm_head.weight"};

  model.layers = keys.Int("num_hidden_layers", {.min = 1, .max = kMaxLayers, .absent = layers});
  const double hidden_ratio = keys.RealOrNull("hidden_ratio", {.min = 0.01, .max = 64}).value_or(4);
  model.mlp_size = keys.IntOrNull("intermediate_size", {.min = 1, .max = 64 * kMaxHiddenSize})
                       .value_or(MlpSize(config.hidden_size, hidden_ratio));
  keys.Word("hidden_act", {"swish", "silu"}, "swish");
  ReadFlaAttention(keys, &model);
  keys.MustBe("attnres_block_size", nullptr, "this kind of residual is not served");
  IgnoreFlaKeys(keys);
  return model;
}

ModelConfig WithLayers(FlaModel model, const LayerSpec& mixer,
                       std::vector<NameRule> (*names)(const std::string& layer)) {
  ModelConfig config = std::move(model.config);
  const LayerSpec mlp = MlpSpec("swiglu", model.mlp_size, config.hidden_size, config.norm_eps);
  for (int i = 0; i < model.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    const auto attention = model.attention.find(i);
    if (attention == model.attention.end()) {
      config.blocks.push_back({.spec = mixer, .names = names(layer), .layer = i});
    } else {
      config.blocks.push_back(
          {.spec = attention->second, .names = FlaAttentionNames(layer), .layer = i});
    }
    config.blocks.push_back({.spec = mlp, .names = MlpNames(layer), .layer = i, .mlp = true});
  }
  return config;
}

ModelConfig WithDeltaLayers(FlaModel model, const DeltaMixer& mixer) {
  const LayerSpec spec = DeltaSpec(mixer, model.config.hidden_size, model.config.norm_eps);
  return WithLayers(std::move(model), spec, DeltaNames);
}

void ReadFlaDelta(KeyReader& keys, DeltaMixer* mixer) {
  if (keys.Flag("use_short_conv", true)) {
    mixer->conv_width = keys.Int("conv_size", {.min = 2, .max = 8, .absent = 4});
  } else {
    mixer->conv_width = 0;
    keys.Ignore({"conv_size"});  // of the convolution that there is not
  }
  mixer->step_max = keys.Flag("allow_neg_eigval", false) ? 2 : 1;
}

void ReadFlaHeads(KeyReader& keys, const FlaHeads& absent, DeltaMixer* mixer) {
  mixer->heads = keys.Int("num_heads", {.min = 1, .max = 65536, .absent = absent.heads});
  mixer->value_heads =
      keys.IntOrNull("num_v_heads", {.min = 1, .max = 65536}).value_or(mixer->heads);
  mixer->key_dim = keys.Int("head_dim", {.min = 1, .max = 65536, .absent = absent.head_dim});
  const double expand_v =
      keys.Real("expand_v", {.min = 1e-3, .max = 1024, .absent = absent.expand_v});
  mixer->value_dim = static_cast<int64_t>(static_cast<double>(mixer->key_dim) * expand_v);
}

DeltaMixer ReadGatedDeltaMixer(KeyReader& keys) {
  DeltaMixer mixer;
  ReadFlaHeads(keys, {.heads = 6, .head_dim = 256, .expand_v = 2}, &mixer);
  ReadFlaDelta(keys, &mixer);
  mixer.decay = "head";
  const std::string activation =
      keys.Word("output_gate_activation", {"swish", "silu", "sigmoid"}, "swish");
  mixer.gate = activation == "sigmoid" ? "sigmoid" : "silu";
  if (!keys.Flag("use_gate", true)) mixer.gate = "none";
  return mixer;
}

void FitFla(const TensorFiles& files, ModelConfig* config) {
  for (Block& block : config->blocks) {
    if (!block.mlp) continue;
    const std::string both = TheirName(block.names, "gate.");
    if (files.Find(both + "weight") == nullptr ||
        files.Find(TheirName(block.names, "up.weight")) != nullptr) {
      continue;
    }
    const int64_t size = block.spec.Int("size");
    block.names.push_back({"gate.", both, 0, size});
    block.names.push_back({"up.", both, size, size});
  }
}

}  // namespace eddy
