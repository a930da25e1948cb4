// Everything about a model that is known before its weights are read.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/kv_pages.h"
#include "engine/load.h"
#include "engine/model_config.h"
#include "engine/weights.h"
#include "kernels/device.h"

namespace eddy {

struct Blueprint {
  ModelConfig config = {};
  std::vector<LayerNeeds> needs = {};     // of each block
  std::vector<WeightGroup> weights = {};  // of each block, then of the ends
  EndsSpec ends = {};
};

// The last group is embedding.weight, final_norm.weight and, unless tied, head.weight.
// REQUIRES: CheckModelConfig(config), and FitToFiles if there are files.
Blueprint MakeBlueprint(ModelConfig config, const DeviceTraits& traits);

// Puts in what the device's own versions of the layers want.
void FitToDevice(const Device& device, Blueprint* blueprint);

// InvalidArgument, naming flag, value and model type, if states are to be bfloat16 and no layer has
// one that can be.
absl::Status CheckStateType(const Blueprint& blueprint, const DeviceTraits& traits);

// All but the fingerprint, which is of the numbers too. `parameters`: those of the files.
ModelInfo InfoOf(const std::string& model_dir, const Blueprint& blueprint, int64_t parameters,
                 const KvLayout& kv, const DeviceTraits& traits);

}  // namespace eddy
