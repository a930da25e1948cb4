// The parameters of the layer type "kalman", written down once for all adapters that make one. What
// they mean is said in kernels/layers/kalman/kalman.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "engine/key_reader.h"
#include "kernels/layer.h"

namespace eddy {

// A rank is "full", "conv" (of the value only) or a number, as config files have it.
using KalmanRank = std::variant<int64_t, std::string>;

struct KalmanMixer {
  int64_t channels = 1;
  int64_t state_dim = 1;
  int64_t conv_width = 4;
  std::string conv_activation = "silu";
  KalmanRank value_rank = "full";
  KalmanRank noise_rank = "full";
  Interval noise_range = {.min = 1e-4};
  std::string discretization = "ou";
  std::string process_noise = "floor";
  bool qk_norm = true;
  std::optional<double> clip = {};
  std::string readout = "posterior";
  std::string gate = "silu";
  std::string skip = "scalar";
  bool bias = false;
  std::string prior = "unit";
};

LayerSpec KalmanSpec(const KalmanMixer& mixer, int64_t d_model, double norm_eps);

// The mixer "kalman" of eddy's own config, all keys but "type".
LayerSpec ReadNativeKalman(KeyReader& keys, int64_t d_model, double norm_eps);

// Bounds that both kinds of config share.
inline constexpr RealRule kKalmanNoise = {.min = 1e-12, .max = 1e12};
inline constexpr RealRule kKalmanClip = {.min = 1e-12, .max = 1e12};
inline constexpr IntRule kKalmanRank = {.min = 1, .max = 1 << 20};

}  // namespace eddy
