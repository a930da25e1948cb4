// The parameters of the layer type "attention", written down once for all adapters that make one.
// What they mean is said in kernels/layers/attention/attention.h.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/key_reader.h"
#include "kernels/layer.h"

namespace eddy {

struct AttentionMixer {
  int64_t heads = 1;
  int64_t head_dim = 2;
  int64_t kv_heads = 1;
  double rope_theta = 10000;
  std::optional<int64_t> window = {};
  bool bias = false;
};

// The bounds of the theta of a config, in whatever words.
inline constexpr RealRule kRopeThetaRule = {.min = 1e-6, .max = 1e12, .absent = 10000};
// The same for the window; null and absent are none.
inline constexpr IntRule kWindowRule = {.min = 1, .max = INT32_MAX};

LayerSpec AttentionSpec(const AttentionMixer& mixer, int64_t d_model, double norm_eps);

// A mixer of eddy's own config.json, without "type".
LayerSpec ReadNativeAttention(KeyReader& keys, int64_t d_model, double norm_eps);

// Whether a block attends to all of the past, so that the model needs a bound on positions.
bool AttendsWithoutWindow(const LayerSpec& spec);

}  // namespace eddy
