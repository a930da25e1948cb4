// Layers "mamba" and "longhorn": one block around two recurrences of the selective scan
// (kernels/rules/selective_scan/selective_scan.h). With n = RMSNorm(x) and I channels:
//   [u (I) | z (I)] = W_in n                       (+ bias)
//   s = silu(conv(u))                              (+ bias of the convolution)
//   [r (R) | k (N) | q (N)] = W_select s           the papers' B and C for Mamba
//   d = W_up r + step_up.bias
//   mamba:     delta = softplus(d);  S[n] <- e^{delta A[n]} S[n] + k[n] delta s,
//              A = -e^{decay_rate_log}
//   longhorn:  b = sigmoid(d), e = b / (1 + b |k|^2);
//              S[n] <- (1 - e k[n]^2) S[n] + k[n] e s
//   o = sum_n q[n] S[n] + skip s
//   x <- x + W_out (o silu(z))                     (+ bias)
// All but k and q is per channel. Longhorn's step e solves its online regression in closed form;
// its decay keeps of I - e k k' the diagonal only. Sources: Mamba: Gu and Dao 2023, arXiv
// 2312.00752, algorithm 2, and the authors' layer. Longhorn: Liu et al. 2024, arXiv 2407.14207, and
// the authors' layer, a Mamba block without A.
//
// parameter    values      meaning
// channels     int         I
// state_dim    1 .. 1024   N
// step_rank    int         R
// conv_width   2 .. 8      W
// conv_bias    flag
// bias         flag        of W_in and W_out
//
// weight           shape             where
// norm.weight      [D]
// in.weight        [2 I, D]          u first, then z
// in.bias          [2 I]             bias
// conv.weight      [I, W]            last tap: the current token
// conv.bias        [I]               conv_bias
// select.weight    [R + 2 N, I]      r first, then k, then q
// step_up.weight   [I, R]
// step_up.bias     [I]
// decay_rate_log   [I, N]            mamba
// skip             [I]
// out.weight       [D, I]
// out.bias         [D]               bias
//
// state field   shape        meaning
// state         [N, I]       S
// conv          [W - 1, I]   last inputs of the convolution, oldest first
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/layer.h"

namespace eddy {

// The parameters, as the devices read them.
struct MambaOptions {
  explicit MambaOptions(const LayerSpec& spec);

  int64_t d_model = 0;
  float norm_eps = 0;
  bool longhorn = false;  // else mamba
  int64_t channels = 0, state_dim = 0, step_rank = 0;
  int64_t conv_width = 0;
  bool conv_bias = false, bias = false;

  int64_t select_width() const { return step_rank + 2 * state_dim; }  // R + 2 N
};

// name: "mamba" or "longhorn".
const LayerType& MambaType(std::string_view name);
LayerNeeds MambaNeeds(const LayerSpec& spec, const DeviceTraits& traits);
std::unique_ptr<Layer> MakeMambaCpu(const LayerSpec& spec, const LayerParts& parts);
// Floats of scratch that the CPU layer takes for each row, and once.
int64_t MambaCpuFloatsPerRow(const MambaOptions& options);
int64_t MambaCpuFloats(const MambaOptions& options);

}  // namespace eddy
