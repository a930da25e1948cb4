// What the models of Mamba and of Mamba2 have in common: blocks of one mixer each, without MLPs,
// between the ends that are called `backbone`. Their keys are those of flash-linear-attention; its
// older versions and transformers call some of them otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/adapters/adapter.h"

namespace eddy {

struct MambaBackbone {
  ModelConfig config = {};  // all but the blocks
  int64_t layers = 1;
  int64_t inner = 1;  // hidden_size * expand
};

// `tied`: whether the head is the embedding where tie_word_embeddings is absent. Passes over the
// start values and switches of the training program, too.
MambaBackbone ReadMambaBackbone(KeyReader& keys, bool tied);

// Gives the model its layers; `names` says what they call the tensors of `mixer`.
ModelConfig WithMambaLayers(MambaBackbone backbone, const LayerSpec& mixer,
                            std::vector<NameRule> (*names)(const std::string& layer));

}  // namespace eddy
