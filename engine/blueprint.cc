#include "engine/blueprint.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/layer_types.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

WeightGroup EndsWeights(const ModelConfig& config, DType matrices) {
  const std::array<int64_t, 4> table = {config.vocab_size, config.hidden_size, 1, 1};
  WeightGroup group;
  group.names = config.end_names;
  group.fields = {{.name = "embedding.weight", .dtype = matrices, .shape = table},
                  {.name = "final_norm.weight", .shape = {config.hidden_size, 1, 1, 1}}};
  if (!config.tie_embeddings) {
    group.fields.push_back({.name = "head.weight", .dtype = matrices, .shape = table});
  }
  return group;
}

// Mixers only; equal neighbours are counted together.
std::vector<std::pair<std::string, int>> MixersOf(const ModelConfig& config) {
  std::vector<std::pair<std::string, int>> mixers;
  for (const Block& block : config.blocks) {
    if (block.mlp) continue;
    if (mixers.empty() || mixers.back().first != block.spec.type) {
      mixers.emplace_back(block.spec.type, 0);
    }
    ++mixers.back().second;
  }
  return mixers;
}

// bfloat16 if a layer holds a state of that type.
DType StateTypeOf(const Blueprint& blueprint) {
  for (const LayerNeeds& needs : blueprint.needs) {
    for (const Field& field : needs.state) {
      if (field.dtype == DType::kBF16) return DType::kBF16;
    }
  }
  return DType::kF32;
}

const char* NameOf(DType type) { return type == DType::kBF16 ? "bfloat16" : "float32"; }

}  // namespace

Blueprint MakeBlueprint(ModelConfig config, const DeviceTraits& traits) {
  Blueprint blueprint;
  for (const Block& block : config.blocks) {
    LayerNeeds needs = FindLayerType(block.spec.type)->needs(block.spec, traits);
    blueprint.weights.push_back({.fields = needs.weights, .names = block.names});
    blueprint.needs.push_back(std::move(needs));
  }
  blueprint.weights.push_back(EndsWeights(config, traits.matrices));
  blueprint.ends = {.d_model = config.hidden_size,
                    .vocab = config.vocab_size,
                    .norm_eps = config.norm_eps,
                    .logit_softcap = config.logit_softcap};
  blueprint.config = std::move(config);
  return blueprint;
}

void FitToDevice(const Device& device, Blueprint* blueprint) {
  for (size_t i = 0; i < blueprint->needs.size(); ++i) {
    const LayerSpec& spec = blueprint->config.blocks[i].spec;
    device.Amend(*FindLayerType(spec.type), spec, &blueprint->needs[i]);
  }
}

absl::Status CheckStateType(const Blueprint& blueprint, const DeviceTraits& traits) {
  if (StateTypeOf(blueprint) == traits.states) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--state_type=", NameOf(traits.states), ": model type ", blueprint.config.model_type,
      " has no layer with a delta rule, whose state alone can be held so; take ",
      NameOf(DType::kF32)));
}

ModelInfo InfoOf(const std::string& model_dir, const Blueprint& blueprint, int64_t parameters,
                 const KvLayout& kv, const DeviceTraits& traits) {
  const ModelConfig& config = blueprint.config;
  ModelInfo info;
  info.model_type = config.model_type;
  info.parameters = parameters;
  info.vocab_size = config.vocab_size;
  info.hidden_size = config.hidden_size;
  info.layers = MixersOf(config);
  info.bos_token = config.tokens.bos;
  info.eos_tokens = config.tokens.eos;
  info.weight_type = NameOf(traits.matrices);
  info.state_type = NameOf(StateTypeOf(blueprint));
  info.record_bytes = StateLayout(blueprint.needs).record_bytes();
  info.kv_bytes_per_token = kv.bytes_per_token();
  for (const LayerNeeds& needs : blueprint.needs) {
    for (const Readout readout : needs.readouts) {
      if (readout == Readout::kPrecision) info.kalman_readouts = true;
    }
  }
  info.max_positions = config.max_positions;
  info.layout_fingerprint = LayoutFingerprint(blueprint.needs);
  info.tokenizer_kind = config.tokenizer_kind;
  if (!config.tokenizer_file.empty()) {
    info.tokenizer_file = std::filesystem::path(model_dir) / config.tokenizer_file;
  }
  return info;
}

}  // namespace eddy
