// The parameters of the layer types around the two scans: "gla", "mamba2", "mamba", "longhorn" and
// "mlstm". What they mean is said in the headers of their layers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

// Of "mamba" and of "longhorn": one block around two recurrences.
struct MambaMixer {
  int64_t channels = 1;
  int64_t state_dim = 16;
  int64_t step_rank = 1;
  int64_t conv_width = 4;
  bool conv_bias = true;
  bool bias = false;
};

struct MlstmMixer {
  int64_t heads = 1;
  int64_t key_dim = 1;
  int64_t value_dim = 1;
  std::string forget_gate = "sigmoid";
  std::optional<double> gate_softcap = {};
  bool bias = false;
};

LayerSpec GlaSpec(const GlaMixer& mixer, int64_t d_model, double norm_eps);
LayerSpec Mamba2Spec(const Mamba2Mixer& mixer, int64_t d_model, double norm_eps);
LayerSpec MambaSpec(const char* type, const MambaMixer& mixer, int64_t d_model, double norm_eps);
LayerSpec MlstmSpec(const MlstmMixer& mixer, int64_t d_model, double norm_eps);

// Mixers of eddy's own config.json, all keys but "type".
LayerSpec ReadNativeGla(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeMamba2(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeMamba(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeLonghorn(KeyReader& keys, int64_t d_model, double norm_eps);
LayerSpec ReadNativeMlstm(KeyReader& keys, int64_t d_model, double norm_eps);

}  // namespace eddy
