// What the models of flash-linear-attention have in common: the keys and the tensor names of the
// causal language model around the mixer.
#pragma once

#include <cstdint>

#include "engine/adapters/adapter.h"
#include "engine/adapters/delta_mixer.h"

namespace eddy {

struct FlaModel {
  ModelConfig config = {};  // all but the blocks
  int64_t layers = 1;
  int64_t mlp_size = 1;
};

// Reads the keys that every model of the family has. `layers`: num_hidden_layers where the key is
// absent.
FlaModel ReadFlaModel(KeyReader& keys, int64_t layers);

// Gives the model its layers, all alike, with the tensor names of the family.
ModelConfig WithDeltaLayers(FlaModel model, const DeltaMixer& mixer);

// What DeltaNet, Gated DeltaNet and their relatives read alike: convolution and range of the step.
void ReadFlaDelta(KeyReader& keys, DeltaMixer* mixer);

// Number and size of the heads, and what they are where the keys are absent.
struct FlaHeads {
  int64_t heads = 0;
  int64_t head_dim = 0;
  double expand_v = 0;
};
void ReadFlaHeads(KeyReader& keys, const FlaHeads& absent, DeltaMixer* mixer);

// Gated DeltaNet's own keys, for it and for the models that differ from it in the step only.
DeltaMixer ReadGatedDeltaMixer(KeyReader& keys);

}  // namespace eddy
