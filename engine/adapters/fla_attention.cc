// The softmax layers of hybrid models of flash-linear-attention: the key `attn`.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/adapters/attention_mixer.h"
#include "engine/adapters/fla.h"

namespace eddy {
namespace {

// One object of `attn`, but for its layers.
LayerSpec ReadAttention(KeyReader& keys, const ModelConfig& config) {
  AttentionMixer mixer;
  mixer.heads = keys.Int("num_heads", {.min = 1, .max = 1024});
  mixer.kv_heads = keys.IntOrNull("num_kv_heads", {.min = 1, .max = 1024}).value_or(mixer.heads);
  mixer.bias = keys.Flag("qkv_bias", false);
  mixer.window = keys.IntOrNull("window_size", kWindowRule);
  mixer.rope_theta = keys.Real("rope_theta", kRopeThetaRule);
  const int64_t d_model = config.hidden_size;
  mixer.head_dim = d_model / mixer.heads;
  if (d_model % mixer.heads != 0) {
    keys.Refuse("num_heads", absl::StrCat("must divide hidden_size, ", d_model));
  } else if (mixer.head_dim % 2 != 0) {
    keys.Refuse("num_heads",
                absl::StrCat("must divide hidden_size, ", d_model, ", into heads of an even size"));
  }
  if (mixer.heads % mixer.kv_heads != 0) {
    keys.Refuse("num_kv_heads", absl::StrCat("must divide num_heads, ", mixer.heads));
  }
  return AttentionSpec(mixer, d_model, config.norm_eps);
}

void ReadObject(KeyReader& keys, FlaModel* model) {
  const LayerSpec spec = ReadAttention(keys, model->config);
  const IntRule rule = {.min = 0, .max = model->layers - 1};
  for (int64_t layer : keys.IntList("layers", rule, kMaxLayers)) {
    if (!model->attention.emplace(layer, spec).second) {
      keys.Refuse("layers", absl::StrCat("layer ", layer, " is listed twice"));
    }
  }
  keys.End();
}

}  // namespace

void ReadFlaAttention(KeyReader& keys, FlaModel* model) {
  if (keys.IsList("attn")) {
    for (KeyReader& one : keys.Objects("attn", kMaxLayers)) ReadObject(one, model);
  } else if (keys.Has("attn")) {
    KeyReader one = keys.Object("attn");
    ReadObject(one, model);
  } else {
    keys.Ignore({"attn"});
  }
  keys.Ignore({"max_position_embeddings"});
  for (const auto& [layer, spec] : model->attention) {
    if (!AttendsWithoutWindow(spec)) continue;
    // Nothing but softmax over all of the past needs it: without, it has no part in the function.
    model->config.max_positions =
        keys.Int("max_position_embeddings", {.min = 1, .max = INT32_MAX, .absent = 2048});
    break;
  }
}

std::vector<NameRule> FlaAttentionNames(const std::string& layer) {
  const std::string attn = layer + "attn.";
  return {{"norm.", layer + "attn_norm."},
          {"q.", attn + "q_proj."},
          {"k.", attn + "k_proj."},
          {"v.", attn + "v_proj."},
          {"out.", attn + "o_proj."}};
}

}  // namespace eddy
