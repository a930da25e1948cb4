// Layer "mlstm": the matrix memory of xLSTM around the decay scan with a scalar decay
// (kernels/rules/decay_scan/decay_scan.h). With n = RMSNorm(x), per head:
//   q, k, v = W_q n, W_k n, W_v n                        (+ biases);  k = k K^-1/2
//   i = cap(w_i n + b_i),  f = cap(w_f n + b_f)          one number each
//   l = logsigmoid(f), or f itself where the forget gate is exponential
//   m' = max(l + m, i)                                   the stabiliser
//   C <- e^{l + m - m'} C + e^{i - m'} k v'              the memory
//   u <- e^{l + m - m'} u + e^{i - m'} k                 the normaliser
//   h = C'q / (max(|u.q|, e^{-m'}) + 1e-6);  m <- m'
//   x <- x + W_out concat( LayerNorm_V(h) * out_norm * sigmoid(W_z n) )    (+ biases)
// m cancels in exact arithmetic (but for the 1e-6): without it e^i would overflow. cap(a) is
// gate_softcap tanh(a / gate_softcap). LayerNorm takes the mean off and has no bias.
// Sources: Beck et al. 2024, arXiv 2405.04517, equations 19 to 27 and appendix; norm, cap and the
// 1e-6 as in the authors' layers (Beck et al. 2025, arXiv 2503.13427).
//
// parameter      values                 meaning
// heads          int                    H
// key_dim        1 .. 1024              K
// value_dim      1 .. 2048              V
// forget_gate    sigmoid | exponential
// gate_softcap   null or > 0            null: cap(a) = a
// bias           flag                   of W_q, W_k, W_v, W_z and W_out; the gates i, f always have
//                                       theirs
//
// weight                shape       where
// norm.weight           [D]
// q.weight, k.weight    [H K, D]
// v.weight              [H V, D]
// input_gate.weight     [H, D]
// input_gate.bias       [H]
// forget_gate.weight    [H, D]
// forget_gate.bias      [H]
// gate.weight           [H V, D]    W_z
// out_norm.weight       [H V]
// out.weight            [D, H V]
// q.bias, k.bias        [H K]       bias
// v.bias, gate.bias     [H V]       bias
// out.bias              [D]         bias
//
// state field   shape        meaning
// state         [H, K, V]    C
// normaliser    [H, K]       u
// stabiliser    [H]          m, 0 at first
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/layer.h"

namespace eddy {

// The parameters, as the devices read them.
struct MlstmOptions {
  explicit MlstmOptions(const LayerSpec& spec);

  int64_t d_model = 0;
  float norm_eps = 0;
  int64_t heads = 0, key_dim = 0, value_dim = 0;
  bool exponential_forget = false;  // else sigmoid
  std::optional<float> gate_softcap;
  bool bias = false;

  int64_t key_width() const { return heads * key_dim; }      // H K
  int64_t value_width() const { return heads * value_dim; }  // H V
};

const LayerType& MlstmType();
LayerNeeds MlstmNeeds(const LayerSpec& spec, const DeviceTraits& traits);
std::unique_ptr<Layer> MakeMlstmCpu(const LayerSpec& spec, const LayerParts& parts);
// Floats of scratch that the CPU layer takes for each row.
int64_t MlstmCpuFloatsPerRow(const MlstmOptions& options);

}  // namespace eddy
