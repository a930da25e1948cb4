// From a model directory and a device to an executor: capacity first, then weights.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/page_pool.h"
#include "kernels/device.h"

namespace eddy {

struct LoadOptions {
  std::string model_dir = {};
  int max_sequences = 0;         // 0: what memory gives, at most 1024 (CPU: 16)
  double memory_fraction = 0.9;  // of the device's free memory
  int max_rows_per_step = 0;     // 0: 2048 on CUDA, 256 on the CPU
  // Models with attention layers: the share of what weights and workspace leave that is for pages,
  // and how many positions a page holds.
  double kv_fraction = 0.5;
  int kv_page_tokens = 64;
  // Decoding steps are recorded while loading and run again, on devices for which that is cheaper.
  bool record_steps = true;
};

// What the model is; plain data, constant after loading.
struct ModelInfo {
  std::string model_type;  // as in config.json
  int64_t parameters = 0;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  std::vector<std::pair<std::string, int>>
      layers;  // mixer types, equal neighbours counted together
  std::optional<int32_t> bos_token;
  std::vector<int32_t> eos_tokens;
  std::string weight_type;                   // type held: "float32", "bfloat16"
  std::string state_type;                    // of delta rules; "float32" where there are none
  int64_t record_bytes = 0;                  // of one sequence
  int64_t kv_bytes_per_token = 0;            // 0: no attention layers
  bool kalman_readouts = false;              // layers that set TokenReport::kalman
  int64_t max_positions = 0;                 // 0: unbounded
  std::array<uint8_t, 32> fingerprint = {};  // SHA-256 of configuration and weights
  std::array<uint8_t, 32> layout_fingerprint = {};  // SHA-256 of the state layout
  // Which tokenizer the config names: kind "tokenizer.json", "sentencepiece", "bytes", or empty.
  std::string tokenizer_kind;
  std::string tokenizer_file;  // full path; empty for "bytes"
};

// How memory was divided. Logged by LoadModel.
struct Capacity {
  int slots = 0;  // without the null slot
  int pages = 0;  // without the null page
  int rows_per_page = 0;
  int pages_per_sequence = 0;  // these three as in PageSizes; all 0 without attention layers
  int max_rows_per_step = 0;
  int64_t weight_bytes = 0, state_bytes = 0, kv_bytes = 0, workspace_bytes = 0;
  bool lowered = false;  // fewer slots than max_sequences asked for
  PageSizes page_sizes() const {
    return {
        .pages = pages, .rows_per_page = rows_per_page, .pages_per_sequence = pages_per_sequence};
  }
};

struct LoadedModel {
  ModelInfo info = {};
  Capacity capacity = {};
  std::unique_ptr<Executor> executor = nullptr;  // uses *device
};

// bfloat16 if most of the bytes of the weights are; float32 for all other files.
absl::StatusOr<DType> StoredWeightType(const std::string& model_dir);

// InvalidArgument, NotFound or FailedPrecondition with one line that names file, key and what was
// expected; ResourceExhausted when memory is short. `device` outlives the executor.
absl::StatusOr<LoadedModel> LoadModel(const LoadOptions& options, Device* device);

}  // namespace eddy
