// The parameters of the layer type "delta", written down once for all adapters that make one. What
// they mean is said in kernels/layers/delta/delta.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/key_reader.h"
#include "kernels/layer.h"

namespace eddy {

// The learned scale of the write key. What changes its function has no default.
struct DeltaScale {
  std::string gradient;  // beta_aware, beta_unaware
  double eta = 1;
  bool normalise = false;
  std::optional<std::array<double, 2>> clip = {};  // least and greatest
  std::string retention;                           // none, constant, learned, data
  std::optional<double> gamma = {};                // with constant
};

struct DeltaMixer {
  int64_t heads = 1;
  int64_t value_heads = 1;
  int64_t key_dim = 1;
  int64_t value_dim = 1;
  std::string decay = "none";
  std::optional<int64_t> decay_rank = {};
  std::optional<double> decay_bound = {};
  std::string query_norm = "l2";
  std::string key_norm = "l2";
  std::string qk_activation = "silu";
  int64_t conv_width = 4;
  std::string step = "sigmoid";
  int64_t step_max = 1;
  bool step_bias = false;
  std::optional<double> step_eps = {};
  std::string gate = "none";
  int64_t gate_rank = 0;
  std::string initial_state = "zero";
  std::optional<DeltaScale> scale = {};
};

// The bounds of a scale's numbers, whatever the config calls them.
inline constexpr RealRule kScaleEta = {.min = 1e-9, .max = 1000};
inline constexpr RealRule kScaleClip = {.min = -1e30, .max = 1e30};
inline constexpr RealRule kScaleGamma = {.min = 1e-9, .max = 1};

// The key `scale` of a native mixer.
std::optional<DeltaScale> ReadNativeScale(KeyReader& keys);

LayerSpec DeltaSpec(const DeltaMixer& mixer, int64_t d_model, double norm_eps);

// type: "swiglu" or "gelu".
LayerSpec MlpSpec(const std::string& type, int64_t size, int64_t d_model, double norm_eps);

}  // namespace eddy
