// What a model's folder holds, whether it could be served, and all that speaks against it: from
// config.json and the headers of its tensors, without loading the model. Offline and on the CPU's
// terms; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/load.h"
#include "kernels/tensor.h"

namespace eddy {

struct InspectOptions {
  LoadOptions load = {};               // of the server that would serve it; names the folder
  DType states = DType::kF32;          // likewise, see DeviceTraits
  std::optional<int64_t> memory = {};  // free bytes; else those that this machine has now
  bool weights = false;                // also reads every number, and looks for NaN and infinity
};

struct Inspection {
  // A line each, with file, key or tensor, and what was expected. A faulty size in config.json may
  // have others in its train. Empty: a server would start, but for the numbers themselves, unless
  // they were read, and for the contents of the tokenizer.
  std::vector<std::string> problems = {};

  // Nothing if config.json cannot be used: then nothing else can be known. All but the fingerprint
  // of the numbers. Parameters and bytes are those that the config asks for, whether or not the
  // tensors are there.
  std::optional<ModelInfo> model = {};
  std::vector<std::string> mlps = {};  // types of the feed-forward blocks, each once
  int64_t tensors = 0;                 // in the files that could be read
  int64_t weight_bytes = 0;            // as held
  int64_t page_bytes = 0;              // of one page; 0: no attention layers

  int64_t free_bytes = 0;                 // what `capacity` was reckoned from
  std::optional<Capacity> capacity = {};  // nothing: it does not fit, and a problem says so
};

Inspection Inspect(const InspectOptions& options);

}  // namespace eddy
