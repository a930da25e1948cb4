// Kimi Delta Attention as in flash-linear-attention, in the three ways in which files hold it: that
// of today; that of early versions, whose gates and step have one row per query head; and with
// Kimi's own names for the low-rank parts, whose output gate has no bias.
#include <string>
#include <utility>

#include "engine/adapters/fla.h"
#include "engine/weights.h"

namespace eddy {
namespace {

// The first dimension that is not one: files hold A_log as [H] and as [1, 1, H, 1].
int64_t Rows(const StoredTensor* tensor) {
  if (tensor == nullptr) return 0;
  for (int64_t dim : tensor->info->shape) {
    if (dim != 1) return dim;
  }
  return 1;
}

// Calls the low-rank parts as Kimi does, if the files do.
void UseKimiNames(const TensorFiles& files, const std::string& attn, Block* block) {
  if (files.Find(attn + "f_a_proj.weight") == nullptr) return;
  block->names.push_back({"decay_down.", attn + "f_a_proj."});
  block->names.push_back({"decay_up.", attn + "f_b_proj."});
  block->names.push_back({"gate_down.", attn + "g_a_proj."});
  block->names.push_back({"gate_up.", attn + "g_b_proj."});
  if (files.Find(attn + "g_b_proj.bias") == nullptr) {
    block->names.push_back(
        {.ours = "gate_up.bias", .theirs = attn + "g_b_proj.bias", .zeros = true});
  }
}

}  // namespace

void RepeatPerHead(const TensorFiles& files, const std::string& ours, int64_t rows_per_head,
                   Block* block) {
  const int64_t heads = block->spec.Int("heads"), value_heads = block->spec.Int("value_heads");
  const std::string theirs = TheirName(block->names, ours);
  if (value_heads == heads || Rows(files.Find(theirs)) != heads * rows_per_head) return;
  block->names.push_back(
      {.ours = ours, .theirs = theirs, .heads = heads, .repeats = value_heads / heads});
}

DeltaMixer ReadKdaMixer(KeyReader& keys) {
  DeltaMixer mixer;
  ReadFlaHeads(keys, {.heads = 16, .head_dim = 128, .expand_v = 1}, &mixer);
  ReadFlaDelta(keys, &mixer);
  mixer.decay = "channel";
  mixer.decay_rank = mixer.value_dim;
  mixer.decay_bound = keys.RealOrNull("lower_bound", {.min = -5, .max = -1e-6});
  mixer.gate = "sigmoid";
  mixer.gate_rank = mixer.value_dim;
  keys.Ignore({"safe_gate"});  // how A_log starts in training, and which kernel runs
  return mixer;
}

ModelConfig ReadKda(KeyReader& keys) {
  FlaModel model = ReadFlaModel(keys, /*layers=*/24);
  const DeltaMixer mixer = ReadKdaMixer(keys);
  return WithDeltaLayers(std::move(model), mixer);
}

void FitKda(const TensorFiles& files, ModelConfig* config) {
  for (Block& block : config->blocks) {
    if (block.spec.type != "delta") continue;
    UseKimiNames(files, FlaMixerPrefix(block), &block);
    const int64_t key_dim = block.spec.Int("key_dim");
    RepeatPerHead(files, "decay_rate_log", 1, &block);
    RepeatPerHead(files, "decay_bias", key_dim, &block);
    RepeatPerHead(files, "decay_up.weight", key_dim, &block);
    RepeatPerHead(files, "step.weight", 1, &block);
  }
}

}  // namespace eddy
