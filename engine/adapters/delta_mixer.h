// The parameters of the layer type "delta", written down once for all adapters that make one. What
// they mean is said in kernels/layers/delta/delta.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/layer.h"

namespace eddy {

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
};

LayerSpec DeltaSpec(const DeltaMixer& mixer, int64_t d_model, double norm_eps);

// type: "swiglu" or "gelu".
LayerSpec MlpSpec(const std::string& type, int64_t size, int64_t d_model, double norm_eps);

}  // namespace eddy
