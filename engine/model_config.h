// What a model is, as plain data: what every config.json is turned into before anything is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tensor_files.h"
#include "kernels/layer.h"

namespace eddy {

// How the file calls a tensor. `ours` and `theirs` are names or beginnings of names: the rule with
// the longest `ours` that fits wins, the last of equals, and what follows it is kept.
struct NameRule {
  std::string ours;
  std::string theirs;
  // > 0: ours is the part [first_row, first_row + rows) of a tensor that holds several of ours one
  // below the other.
  int64_t first_row = 0;
  int64_t rows = 0;
  // `repeats` > 1: the tensor holds as many rows for each of `heads` heads, and in ours those of
  // each head stand so many times, one after the other, before those of the next.
  int64_t heads = 1;
  int64_t repeats = 1;
  // The files have no such tensor: ours is all zero.
  bool zeros = false;
};

// One residual block. Its rules are for the names in LayerNeeds::weights ("q.weight").
struct Block {
  LayerSpec spec;
  std::vector<NameRule> names = {};
  int layer = 0;     // of the model, from 0; a mixer and the MLP after it share one
  bool mlp = false;  // else a mixer
};

struct TokenIds {
  std::optional<int32_t> bos = {};
  std::vector<int32_t> eos = {};
  std::optional<int32_t> pad = {};
};

struct ModelConfig {
  std::string model_type = {};  // as in the file
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  double norm_eps = 0;
  bool tie_embeddings = false;
  double logit_softcap = 0;   // 0: none
  int64_t max_positions = 0;  // 0: unbounded
  TokenIds tokens = {};
  std::string tokenizer_kind = {};  // "tokenizer.json", "sentencepiece", "bytes"; empty: none
  std::string tokenizer_file = {};  // a name in the model's folder
  std::vector<Block> blocks = {};
  std::vector<NameRule> end_names = {};  // of embedding.weight, final_norm.weight, head.weight
  // Tensors that files of this type may hold although the function does not use them.
  std::vector<std::string> unused_tensors = {};
};

// The most layers that a config may ask for, and the bounds of its sizes: they keep all later
// arithmetic far from overflow.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHiddenSize = 1 << 20;
inline constexpr int64_t kMaxVocabSize = 1 << 24;

// Checks every block against the rules of its layer type. InvalidArgument, naming `file`, the
// parameter, its value and what is allowed.
absl::Status CheckModelConfig(const ModelConfig& config, const std::string& file);

// Reads and checks DIR/config.json, whatever its model_type, and looks for the tokenizer's files.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir);
// The same, but appends all faults. Nothing if the config cannot be used; a missing tokenizer does
// not prevent that.
std::optional<ModelConfig> ReadModelConfig(const std::string& model_dir,
                                           std::vector<absl::Status>* faults);

// The same for the text of a config.json; `file` is what errors call it. Files beside it are not
// looked at.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file);

// What config.json leaves open is read off the tensors beside it, such as their layout in files of
// older versions: completes names and parameters, before anything is made of them. Whether all the
// tensors are there and fit is not asked here.
void FitToFiles(const TensorFiles& files, ModelConfig* config);

}  // namespace eddy
