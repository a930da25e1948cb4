// xLSTM as its authors published it (Beck et al. 2025, arXiv 2503.13427) and as it is in
// transformers: blocks of an mLSTM and a gated MLP, with soft caps on gates and logits.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/adapters/adapter.h"
#include "engine/adapters/delta_mixer.h"
#include "engine/adapters/scan_mixers.h"

namespace eddy {
namespace {

// With `weight_mode` "fused" one tensor holds several of ours.
std::vector<NameRule> MixerNames(const std::string& block, const MlstmMixer& mixer, bool fused) {
  const std::string layer = block + "mlstm_layer.";
  std::vector<NameRule> names = {{"norm.", block + "norm_mlstm."},
                                 {"q.", layer + "q."},
                                 {"k.", layer + "k."},
                                 {"v.", layer + "v."},
                                 {"gate.", layer + "ogate_preact."},
                                 {"input_gate.", layer + "igate_preact."},
                                 {"forget_gate.", layer + "fgate_preact."},
                                 {"out_norm.", layer + "multihead_norm."},
                                 {"out.", layer + "out_proj."}};
  if (!fused) return names;
  const std::string four = layer + "qkv_opreact.", two = layer + "ifgate_preact.";
  const int64_t keys = mixer.heads * mixer.key_dim, values = mixer.heads * mixer.value_dim;
  names.push_back({"q.", four, 0, keys});
  names.push_back({"k.", four, keys, keys});
  names.push_back({"v.", four, 2 * keys, values});
  names.push_back({"gate.", four, 2 * keys + values, values});
  names.push_back({"input_gate.", two, 0, mixer.heads});
  names.push_back({"forget_gate.", two, mixer.heads, mixer.heads});
  return names;
}

std::vector<NameRule> MlpNames(const std::string& block, int64_t size, bool fused) {
  const std::string ffn = block + "ffn.";
  std::vector<NameRule> names = {{"norm.", block + "norm_ffn."},
                                 {"gate.", ffn + "proj_up_gate."},
                                 {"up.", ffn + "proj_up."},
                                 {"down.", ffn + "proj_down."}};
  if (!fused) return names;
  names.push_back({"gate.", ffn + "proj_up_gate_z.", 0, size});
  names.push_back({"up.", ffn + "proj_up_gate_z.", size, size});
  return names;
}

// A size under two names, of which transformers writes both.
int64_t ReadSize(KeyReader& keys, const char* key, const char* other, IntRule rule) {
  const auto first = keys.IntOrNull(key, {.min = rule.min, .max = rule.max});
  const auto second = keys.IntOrNull(other, {.min = rule.min, .max = rule.max});
  if (first && second && *first != *second) {
    keys.Refuse(other, absl::StrCat("it must say the same as ", key, ", ", *first));
  }
  return first ? *first : second.value_or(*rule.absent);
}

TokenIds ReadTokens(KeyReader& keys, int64_t vocab_size) {
  const auto rule = [&](int64_t absent) {
    return IntRule{.min = 0, .max = vocab_size - 1, .absent = absent};
  };
  const auto narrow = [](std::optional<int64_t> id) {
    return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
  };
  TokenIds tokens;
  tokens.bos = narrow(keys.IntOrNull("bos_token_id", rule(0)));
  for (int64_t id : keys.Ints("eos_token_id", rule(2))) {
    tokens.eos.push_back(static_cast<int32_t>(id));
  }
  tokens.pad = narrow(keys.IntOrNull("pad_token_id", rule(1)));
  return tokens;
}

// The width of all heads together, given as a factor of hidden_size, over the heads.
int64_t ReadHeadDim(KeyReader& keys, const char* key, double absent, int64_t d_model,
                    int64_t heads) {
  const double factor = keys.Real(key, {.min = 1e-3, .max = 64, .absent = absent});
  const auto width = static_cast<int64_t>(static_cast<double>(d_model) * factor);
  if (width % heads == 0 && width > 0) return width / heads;
  keys.Refuse(key, "hidden_size times it must be a multiple of num_heads");
  return 1;
}

MlstmMixer ReadMixer(KeyReader& keys, int64_t d_model) {
  MlstmMixer mixer;
  mixer.heads = keys.Int("num_heads", {.min = 1, .max = 1024, .absent = 8});
  mixer.key_dim = ReadHeadDim(keys, "qk_dim_factor", 0.5, d_model, mixer.heads);
  mixer.value_dim = ReadHeadDim(keys, "v_dim_factor", 1, d_model, mixer.heads);
  mixer.gate_softcap = keys.RealOrNull("gate_soft_cap", {.min = 1e-3, .max = 1e6, .absent = 15});
  keys.MustBe("use_bias", false, "the function with biases is not served");
  keys.MustBe("eps", 1e-6, "no other number is served");
  return mixer;
}

int64_t ReadMlpSize(KeyReader& keys, int64_t d_model) {
  const double factor = keys.Real("ffn_proj_factor", {.min = 1e-3, .max = 64, .absent = 2.667});
  const auto unit = static_cast<double>(
      keys.Int("ffn_round_up_to_multiple_of", {.min = 1, .max = 1 << 20, .absent = 64}));
  const double wanted = static_cast<double>(d_model) * factor;
  return static_cast<int64_t>(std::floor((wanted + unit - 1) / unit) * unit);
}

// Choices among kernels that compute the same, and their precision.
void IgnoreKeysWithoutFunction(KeyReader& keys) {
  keys.Ignore({"_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map",
               "autocast_kernel_dtype", "chunk_size", "chunkwise_kernel", "dtype",
               "inference_state_dtype", "initializer_range", "max_inference_chunksize", "mode",
               "norm_reduction_force_float32", "return_last_states", "sequence_kernel",
               "step_kernel", "torch_dtype", "transformers_version", "use_cache"});
}

}  // namespace

ModelConfig ReadXlstm(KeyReader& keys) {
  ModelConfig config;
  config.vocab_size = keys.Int("vocab_size", {.min = 2, .max = kMaxVocabSize, .absent = 50304});
  config.hidden_size = ReadSize(keys, "hidden_size", "embedding_dim",
                                {.min = 1, .max = kMaxHiddenSize, .absent = 4096});
  config.norm_eps = keys.Real("norm_eps", {.min = 1e-12, .max = 1, .absent = 1e-6});
  config.tie_embeddings = keys.Flag("tie_word_embeddings", false);
  config.logit_softcap =
      keys.RealOrNull("output_logit_soft_cap", {.min = 1e-3, .max = 1e6, .absent = 30})
          .value_or(0.0);
  config.tokens = ReadTokens(keys, config.vocab_size);
  config.end_names = {{"embedding.", "backbone.embeddings."},
                      {"final_norm.", "backbone.out_norm."},
                      {"head.", "lm_head."}};
  keys.MustBe("add_out_norm", true, "the function without the norm is not served");
  IgnoreKeysWithoutFunction(keys);

  const MlstmMixer mixer = ReadMixer(keys, config.hidden_size);
  const int64_t mlp_size = ReadMlpSize(keys, config.hidden_size);
  const bool fused = keys.Word("weight_mode", {"single", "fused"}, "single") == "fused";
  const LayerSpec mixer_spec = MlstmSpec(mixer, config.hidden_size, config.norm_eps);
  const LayerSpec mlp_spec = MlpSpec("swiglu", mlp_size, config.hidden_size, config.norm_eps);
  const int64_t layers = ReadSize(keys, "num_hidden_layers", "num_blocks",
                                  {.min = 1, .max = kMaxLayers, .absent = 32});
  for (int i = 0; i < layers; ++i) {
    const std::string block = absl::StrCat("backbone.blocks.", i, ".");
    config.blocks.push_back(
        {.spec = mixer_spec, .names = MixerNames(block, mixer, fused), .layer = i});
    config.blocks.push_back(
        {.spec = mlp_spec, .names = MlpNames(block, mlp_size, fused), .layer = i, .mlp = true});
  }
  return config;
}

}  // namespace eddy
