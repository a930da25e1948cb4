// What the models of flash-linear-attention have in common: the keys and the tensor names of the
// causal language model around the mixer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/adapters/adapter.h"
#include "engine/adapters/delta_mixer.h"

namespace eddy {

struct FlaModel {
  ModelConfig config = {};  // all but the blocks
  int64_t layers = 1;
  int64_t mlp_size = 1;
  std::map<int64_t, LayerSpec> attention = {};  // by layer: those that are softmax attention
};

// Reads the keys that every model of the family has. `layers`: num_hidden_layers where the key is
// absent.
FlaModel ReadFlaModel(KeyReader& keys, int64_t layers);

// Reads `attn` and what goes with it into `attention` and max_positions; part of ReadFlaModel.
void ReadFlaAttention(KeyReader& keys, FlaModel* model);
// What the family calls the tensors of a softmax layer; `layer` is "model.layers.3.".
std::vector<NameRule> FlaAttentionNames(const std::string& layer);

// The ids of the special tokens. `absent_pad`: pad_token_id where the key is absent.
TokenIds ReadFlaTokens(KeyReader& keys, int64_t vocab_size, std::optional<int64_t> absent_pad);
// Passes over the keys that have no part in the function of any model of the family.
void IgnoreFlaKeys(KeyReader& keys);

// A width of a head given as a factor of hidden_size: the whole number of hidden_size * factor over
// the heads; at least 1, so that later arithmetic holds.
struct FlaExpand {
  const char* key = nullptr;
  double absent = 1;
};
int64_t ReadFlaHeadDim(KeyReader& keys, FlaExpand expand, int64_t hidden_size, int64_t heads);

// Gives the model its layers, all alike but for those of `attention`, with the tensor names of the
// family; `names` says what it calls those of `mixer`.
ModelConfig WithLayers(FlaModel model, const LayerSpec& mixer,
                       std::vector<NameRule> (*names)(const std::string& layer));
ModelConfig WithDeltaLayers(FlaModel model, const DeltaMixer& mixer);

// What DeltaNet, Gated DeltaNet and their relatives read alike: convolution and range of the step.
void ReadFlaDelta(KeyReader& keys, DeltaMixer* mixer);

// What the names of a mixer's tensors begin with: "model.layers.3.attn.".
std::string FlaMixerPrefix(const Block& block);
// If the files hold `ours` for each query head alone, lets each stand for all its value heads.
void RepeatPerHead(const TensorFiles& files, const std::string& ours, int64_t rows_per_head,
                   Block* block);

// Number and size of the heads, and what they are where the keys are absent.
struct FlaHeads {
  int64_t heads = 0;
  int64_t head_dim = 0;
  double expand_v = 0;
};
void ReadFlaHeads(KeyReader& keys, const FlaHeads& absent, DeltaMixer* mixer);

// The keys of DeltaNet's and KDA's mixers, for them and for OSDN on top of them.
DeltaMixer ReadDeltaNetMixer(KeyReader& keys, int64_t hidden_size);
DeltaMixer ReadKdaMixer(KeyReader& keys);

// Gated DeltaNet's own keys, for it and for the models that differ from it in the step only.
DeltaMixer ReadGatedDeltaMixer(KeyReader& keys);

}  // namespace eddy
