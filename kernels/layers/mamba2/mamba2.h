// Layer "mamba2": the state space layer of Mamba2 around the decay scan with a scalar decay
// (kernels/rules/decay_scan/decay_scan.h). With n = RMSNorm(x) and I = heads * head_dim:
//   [z (I) | u (I + 2 G N) | d (H)] = W_in n                       (+ bias)
//   [s (H, P) | B (G, N) | C (G, N)] = silu(conv(u))               (+ bias of the convolution)
//   delta = clamp(softplus(d + step_bias), step_min, step_max);  A = -e^{decay_rate_log}
//   h <- e^{delta A} h + B (delta s)';  y = h'C + skip s           per head; B and C per group
//   x <- x + W_out ( RMSNorm(y * silu(z)) * out_norm )             (+ bias)
// The gate comes before the norm, which is taken over the I / G channels of each group.
// Source: Dao and Gu 2024, arXiv 2405.21060; layer as in flash-linear-attention 0.5.2.
//
// parameter    values                 meaning
// heads        int                    H
// head_dim     1 .. 1024              P
// state_dim    1 .. 1024              N
// groups       int that divides H     G; head j belongs to group j / (H / G)
// conv_width   2 .. 8                 W
// conv_bias    flag
// bias         flag                   of W_in and W_out
// step_min     >= 0
// step_max     null or >= step_min    null: delta has no upper bound
//
// weight            shape                   where
// norm.weight       [D]
// in.weight         [2 I + 2 G N + H, D]    z first, then s, B, C, then d
// in.bias           [2 I + 2 G N + H]       bias
// conv.weight       [I + 2 G N, W]          last tap: the current token
// conv.bias         [I + 2 G N]             conv_bias
// step_bias         [H]
// decay_rate_log    [H]
// skip              [H]
// out_norm.weight   [I]
// out.weight        [D, I]
// out.bias          [D]                     bias
//
// state field   shape                 meaning
// state         [H, N, P]             h
// conv          [W - 1, I + 2 G N]    last inputs of the convolution, oldest first
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/layer.h"

namespace eddy {

// The parameters, as the devices read them.
struct Mamba2Options {
  explicit Mamba2Options(const LayerSpec& spec);

  int64_t d_model = 0;
  float norm_eps = 0;
  int64_t heads = 0, head_dim = 0, state_dim = 0, groups = 0;
  int64_t conv_width = 0;
  bool conv_bias = false, bias = false;
  float step_min = 0;
  std::optional<float> step_max;

  int64_t inner() const { return heads * head_dim; }                          // I
  int64_t conv_channels() const { return inner() + 2 * groups * state_dim; }  // I + 2 G N
  int64_t in_width() const { return inner() + conv_channels() + heads; }
};

const LayerType& Mamba2Type();
LayerNeeds Mamba2Needs(const LayerSpec& spec, const DeviceTraits& traits);
std::unique_ptr<Layer> MakeMamba2Cpu(const LayerSpec& spec, const LayerParts& parts);
// Floats of scratch that the CPU layer takes for each row.
int64_t Mamba2CpuFloatsPerRow(const Mamba2Options& options);

}  // namespace eddy
