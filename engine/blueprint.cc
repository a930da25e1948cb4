#include "engine/blueprint.h"

#include <utility>

#include "base/check.h"
#include "kernels/layer_types.h"

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

}  // namespace eddy
