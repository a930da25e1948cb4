// eddy's own config.json, format 1. Every option of every layer type has its key here; so the
// defaults below are part of the format.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/adapters/adapter.h"
#include "engine/adapters/attention_mixer.h"
#include "engine/adapters/delta_mixer.h"
#include "engine/adapters/kalman_mixer.h"
#include "engine/adapters/scan_mixers.h"

namespace eddy {
namespace {

constexpr int64_t kMaxHeads = 65536;

std::optional<int32_t> TokenId(KeyReader& keys, const char* key, int64_t vocab_size) {
  const auto id = keys.IntOrNull(key, {.min = 0, .max = vocab_size - 1});
  return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
}

TokenIds ReadTokens(KeyReader keys, int64_t vocab_size) {
  TokenIds tokens;
  tokens.bos = TokenId(keys, "bos", vocab_size);
  tokens.pad = TokenId(keys, "pad", vocab_size);
  for (int64_t id : keys.Ints("eos", {.min = 0, .max = vocab_size - 1})) {
    tokens.eos.push_back(static_cast<int32_t>(id));
  }
  keys.End();
  return tokens;
}

void ReadTokenizer(KeyReader keys, ModelConfig* config) {
  config->tokenizer_kind = keys.Word("kind", {"tokenizer.json", "sentencepiece", "bytes"});
  if (config->tokenizer_kind == "bytes") {
    keys.MustBe("file", nullptr, "bytes need no file");
  } else {
    config->tokenizer_file = keys.Text("file");
    if (config->tokenizer_file.find('/') != std::string::npos || config->tokenizer_file[0] == '.') {
      keys.Refuse("file", "must be a name in the folder of the config");
    }
  }
  keys.End();
}

LayerSpec ReadDelta(KeyReader& keys, int64_t d_model, double norm_eps) {
  DeltaMixer mixer;
  mixer.heads = keys.Int("heads", {.min = 1, .max = kMaxHeads});
  mixer.value_heads = keys.Int("value_heads", {.min = 1, .max = kMaxHeads, .absent = mixer.heads});
  mixer.key_dim = keys.Int("key_dim", {.min = 1, .max = 256});
  mixer.value_dim = keys.Int("value_dim", {.min = 1, .max = 512});
  mixer.decay = keys.Word("decay", {"none", "head", "channel", "tied"});
  if (mixer.decay == "channel") {
    mixer.decay_rank =
        keys.Int("decay_rank", {.min = 1, .max = kMaxHiddenSize, .absent = mixer.value_dim});
    mixer.decay_bound = keys.RealOrNull("decay_bound", {.min = -5, .max = -1e-6});
  }
  mixer.query_norm = keys.Word("query_norm", {"l2", "sum", "none"}, "l2");
  mixer.key_norm = keys.Word("key_norm", {"l2", "sum", "none"}, "l2");
  mixer.qk_activation = keys.Word("qk_activation", {"silu", "relu", "elu", "identity"}, "silu");
  mixer.conv_width = keys.Int("conv_width", {.min = 0, .max = 8, .absent = 4});
  mixer.step = keys.Word(
      "step", {"sigmoid", "kaczmarz", "kaczmarz_full", "kaczmarz_learned", "longhorn", "one"});
  mixer.step_max = keys.Int("step_max", {.min = 1, .max = 2, .absent = 1});
  mixer.step_bias = keys.Flag("step_bias", false);
  mixer.step_eps = keys.RealOrNull("step_eps", {.min = 1e-12, .max = 1});
  mixer.gate = keys.Word("gate", {"none", "silu", "sigmoid"});
  mixer.gate_rank = keys.Int("gate_rank", {.min = 0, .max = kMaxHiddenSize, .absent = 0});
  mixer.initial_state = keys.Word("initial_state", {"zero", "learned"}, "zero");
  mixer.scale = ReadNativeScale(keys);
  return DeltaSpec(mixer, d_model, norm_eps);
}

// The only list of the mixers of the format.
struct NativeMixer {
  const char* type;
  LayerSpec (*read)(KeyReader& keys, int64_t d_model, double norm_eps);  // all keys but "type"
};
constexpr NativeMixer kMixers[] = {
    {"delta", ReadDelta},         {"attention", ReadNativeAttention}, {"gla", ReadNativeGla},
    {"kalman", ReadNativeKalman}, {"longhorn", ReadNativeLonghorn},   {"mamba", ReadNativeMamba},
    {"mamba2", ReadNativeMamba2}, {"mlstm", ReadNativeMlstm},
};

LayerSpec ReadMixer(KeyReader keys, int64_t d_model, double norm_eps) {
  const std::string type = keys.Text("type");
  std::string supported;
  for (const NativeMixer& mixer : kMixers) {
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", mixer.type);
    if (type != mixer.type) continue;
    LayerSpec spec = mixer.read(keys, d_model, norm_eps);
    keys.End();
    return spec;
  }
  keys.Refuse("type", absl::StrCat("supported: ", supported));
  return {};
}

LayerSpec ReadMlp(KeyReader keys, int64_t d_model, double norm_eps) {
  const std::string type = keys.Word("type", {"swiglu", "gelu"});
  const int64_t size = keys.Int("size", {.min = 1, .max = 64 * kMaxHiddenSize});
  keys.End();
  return MlpSpec(type, size, d_model, norm_eps);
}

// Appends one entry of `layers` as often as it says.
void ReadLayer(KeyReader keys, ModelConfig* config) {
  const LayerSpec mixer = ReadMixer(keys.Object("mixer"), config->hidden_size, config->norm_eps);
  std::optional<LayerSpec> mlp;
  if (keys.Has("mlp")) {
    mlp = ReadMlp(keys.Object("mlp"), config->hidden_size, config->norm_eps);
  } else {
    keys.RequireNull("mlp");
  }
  const int64_t repeat = keys.Int("repeat", {.min = 1, .max = kMaxLayers, .absent = 1});
  keys.End();
  const auto names = [](int layer, const std::string& part) {
    const std::string prefix = absl::StrCat("layers.", layer, ".", part);
    return std::vector<NameRule>{{"norm.", prefix + "_norm."}, {"", prefix + "."}};
  };
  for (int64_t i = 0; i < repeat; ++i) {
    const int layer = config->blocks.empty() ? 0 : config->blocks.back().layer + 1;
    if (layer == kMaxLayers) {
      return keys.Refuse("repeat", absl::StrCat("the model has more than ", kMaxLayers, " layers"));
    }
    config->blocks.push_back({.spec = mixer, .names = names(layer, "mixer"), .layer = layer});
    if (!mlp) continue;
    config->blocks.push_back(
        {.spec = *mlp, .names = names(layer, "mlp"), .layer = layer, .mlp = true});
  }
}

}  // namespace

ModelConfig ReadNative(KeyReader& keys) {
  ModelConfig config;
  keys.Int("format", {.min = 1, .max = 1});
  config.vocab_size = keys.Int("vocab_size", {.min = 2, .max = kMaxVocabSize});
  config.hidden_size = keys.Int("hidden_size", {.min = 1, .max = kMaxHiddenSize});
  config.norm_eps = keys.Real("norm_eps", {.min = 1e-12, .max = 1});
  config.tie_embeddings = keys.Flag("tie_embeddings", false);
  config.logit_softcap = keys.RealOrNull("logit_softcap", {.min = 1e-3, .max = 1e6}).value_or(0.0);
  config.max_positions = keys.IntOrNull("max_positions", {.min = 1, .max = INT32_MAX}).value_or(0);
  config.tokens = ReadTokens(keys.Object("tokens"), config.vocab_size);
  if (keys.Has("tokenizer")) {
    ReadTokenizer(keys.Object("tokenizer"), &config);
  } else {
    keys.RequireNull("tokenizer");
  }
  keys.MustBe("readout_stats", nullptr, "read-outs are served as they are");
  config.end_names = {{"", ""}};
  for (KeyReader& layer : keys.Objects("layers", kMaxLayers)) ReadLayer(std::move(layer), &config);
  for (const Block& block : config.blocks) {
    if (config.max_positions > 0 || !AttendsWithoutWindow(block.spec)) continue;
    keys.Refuse("max_positions", absl::StrCat("must be given: layer ", block.layer,
                                              " has attention without a window"));
  }
  return config;
}

}  // namespace eddy
