// Layer "kalman": Kalman Linear Attention, a bank of scalar Kalman filters in the place of the
// attention (kernels/rules/kalman/kalman.h). With n = RMSNorm(x):
//   [z | u] = W_in n                              halves of M rows each; no u without a gate
//   c = act(conv(z) + conv_bias)                  conv_width 0: c = z, without the activation too
//   [v' | l' | k | q] = W_sensor c                widths w_v, w_n, Sn, Sn
//   v = v' (full) | c (conv; w_v = 0) | W_value_up v' (low)
//   l = l' (full) | W_noise_up l' (low)
//   k, q = k / max(|k|, 1e-12), q / max(|q|, 1e-12) if qk_norm;  then clamped to [-clip, clip]
//   L = 1 / min(softplus(l) + noise_min, noise_max)             precision of the observation, [M]
//   y = Kalman rule(v, L, k, q)
//   x <- x + W_out ( (y + skip * c) * act_gate(u) )
// Sources: arXiv 2602.10743; the authors' package kla 0.1.0 (kalman-linear-attention).
//
// parameter        values                  meaning
// channels         int                     M
// state_dim        int                     Sn, states per channel
// conv_width       0 .. 8                  taps of the convolution, 0: none
// conv_activation  silu | gelu | relu      gelu is the exact one
// value            full | conv | low       where v comes from, above
// value_rank       int; null unless low    w_v
// noise            full | low
// noise_rank       int; null unless low    w_n
// noise_min        > 0                     least variance of an observation
// noise_max        null or >= noise_min    greatest
// discretization   ou | zoh                Ornstein-Uhlenbeck or zero-order hold, see the rule
// process_noise    floor | zero            max(p, 1e-7), at most clip; or p + 1e-12
// qk_norm          flag
// clip             null or > 0
// readout          posterior | prior       what is known now, or what is expected next
// gate             none | silu | gelu | relu
// skip             none | scalar | channel
// bias             flag                    of all five projections
// prior            unit | learned          what the filters start from: precision 1 and information
//                                          0, or the two prior_* weights
// The config file writes value and value_rank as one entry ("full", "conv" or a number), and so
// noise and noise_rank, noise_min and noise_max.
//
// weight                shape                  where
// norm.weight           [D]
// in.weight             [2M, D], [M, D]        with a gate, without
// conv.weight           [M, W]                 conv_width > 0; last tap: the current token
// conv.bias             [M]                    conv_width > 0
// sensor.weight         [w_v + w_n + 2Sn, M]
// value_up.weight       [M, value_rank]        value low
// noise_up.weight       [M, noise_rank]        noise low
// out.weight            [D, M]
// in.bias ... out.bias  [rows of the weight]   bias
// step_raw              [M, Sn]                all in float: step_raw, rate_log, process_noise are
// rate_log              [M, Sn]                the fixed dynamics, see the rule
// process_noise         [M, Sn]
// skip                  [] or [M]              skip scalar, channel
// prior_log_precision   [M, Sn]                prior learned: ln of the precision at the start
// prior_information     [M, Sn]                prior learned
//
// state field           shape                  meaning
// precision             [M, Sn]                lambda; float whatever the device
// information           [M, Sn]                eta
// conv                  [W - 1, M]             last z, oldest first; conv_width > 1
//
// Read-outs: those of Kalman layers in kernels/readout.h, of the filters' y before the skip; the
// gates weigh the channels of `spread`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/layer.h"
#include "kernels/rules/kalman/kalman.h"

namespace eddy {

// The parameters, as the devices read them.
struct KalmanOptions {
  enum class Activation { kNone, kSilu, kGelu, kRelu };
  enum class Value { kFull, kConv, kLow };
  enum class Noise { kFull, kLow };
  enum class Skip { kNone, kScalar, kChannel };

  explicit KalmanOptions(const LayerSpec& spec);

  int64_t d_model = 0;
  float norm_eps = 0;
  int64_t channels = 0;
  int64_t state_dim = 0;
  int64_t conv_width = 0;
  Activation conv_activation = Activation::kSilu;
  Value value = Value::kFull;
  int64_t value_rank = 0;  // 0 unless low
  Noise noise = Noise::kFull;
  int64_t noise_rank = 0;  // 0 unless low
  float noise_min = 0;
  std::optional<float> noise_max;
  Discretization discretization = Discretization::kOrnsteinUhlenbeck;
  bool floored_process_noise = true;
  bool qk_norm = true;
  std::optional<float> clip;
  bool prior_readout = false;
  Activation gate = Activation::kSilu;
  Skip skip = Skip::kScalar;
  bool bias = false;
  bool learned_prior = false;

  int64_t states() const { return channels * state_dim; }
  bool gated() const { return gate != Activation::kNone; }
  // w_v and w_n.
  int64_t value_width() const;
  int64_t noise_width() const { return noise == Noise::kFull ? channels : noise_rank; }
};

const LayerType& KalmanType();
LayerNeeds KalmanNeeds(const LayerSpec& spec, const DeviceTraits& traits);
// The weights hold their values already: the dynamics are computed here.
std::unique_ptr<Layer> MakeKalmanCpu(const LayerSpec& spec, const LayerParts& parts);
// Floats of scratch that the CPU layer takes for each row.
int64_t KalmanCpuFloatsPerRow(const KalmanOptions& options);

}  // namespace eddy
