// The parameters of the layer types around the two scans: "gla", "mamba2", "mamba", "longhorn" and
// "mlstm". What they mean is said in the headers of their layers; only the first two have adapters
// beside the native form.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/key_reader.h"
#include "kernels/layer.h"

namespace eddy {

struct GlaMixer {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t key_dim = 1;
  int64_t value_dim = 1;
  int64_t decay_rank = 16;
  double decay_divisor = 16;
  std::optional<double> decay_min = {};
};
// The bounds of decay_min in every kind of config.
inline constexpr RealRule kGlaDecayMin = {.min = -1e6, .max = 0};

struct Mamba2Mixer {
  int64_t heads = 1;
  int64_t head_dim = 1;
  int64_t state_dim = 1;
  int64_t groups = 1;
  int64_t conv_width = 4;
  bool conv_bias = true;
  bool bias = false;
  Interval step_range = {};
};
// The bounds of both ends of step_range in every kind of config.
inline constexpr RealRule kMamba2Step = {.min = 0, .max = 1e6};

LayerSpec GlaSpec(const GlaMixer& mixer, int64_t d_model, double norm_eps);
LayerSpec Mamba2Spec(const Mamba2Mixer& mixer, int64_t d_model, double norm_eps);

// Mixers of eddy's own config.json, all keys but "type".
LayerSpec ReadNativeGla(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeMamba2(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeMamba(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeLonghorn(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeMlstm(KeyReader& keys, int64_t d_model, double norm_eps);

}  // namespace eddy
