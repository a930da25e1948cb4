// Everything about a model that is known before its weights are read.
#pragma once

#include <vector>

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

}  // namespace eddy
