// Layer "gla": gated linear attention around the decay scan with a vector decay
// (kernels/rules/decay_scan/decay_scan.h). With n = RMSNorm(x), per head:
//   q, k, v = W_q n, W_k n, W_v n                       no convolution, norm or activation
//   g = max(logsigmoid(W_up W_down n + b) / decay_divisor, decay_min)
//   S <- diag(e^g) S + k v';  o = K^-1/2 S'q
//   x <- x + W_out concat( RMSNorm_V(o) * out_norm * silu(W_gate n) )
// With kv_heads < heads, k, v and g are those of head j / (heads / kv_heads): the heads of a group
// share one state, which each of them reads with its own query.
// Source: Yang et al. 2023, arXiv 2312.06635; layer as in flash-linear-attention 0.5.2.
//
// parameter      values                 meaning
// heads          int                    H, of q, gate and output
// kv_heads       int that divides H     HKV, of k, v, g and the state
// key_dim        1 .. 1024              K
// value_dim      1 .. 2048              V
// decay_rank     int                    r
// decay_divisor  > 0
// decay_min      null or <= 0           null: g has no lower bound
//
// weight              shape
// norm.weight         [D]
// q.weight            [H K, D]
// k.weight            [HKV K, D]
// v.weight            [HKV V, D]
// decay_down.weight   [r, D]
// decay_up.weight     [HKV K, r]
// decay_up.bias       [HKV K]
// gate.weight         [H V, D]
// out_norm.weight     [V]               shared by all heads
// out.weight          [D, H V]
//
// state field   shape          meaning
// state         [HKV, K, V]    S
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/layer.h"

namespace eddy {

// The parameters, as the devices read them.
struct GlaOptions {
  explicit GlaOptions(const LayerSpec& spec);

  int64_t d_model = 0;
  float norm_eps = 0;
  int64_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  int64_t decay_rank = 0;
  float decay_divisor = 1;
  std::optional<float> decay_min;
};

const LayerType& GlaType();
LayerNeeds GlaNeeds(const LayerSpec& spec, const DeviceTraits& traits);
std::unique_ptr<Layer> MakeGlaCpu(const LayerSpec& spec, const LayerParts& parts);
// Floats of scratch that the CPU layer takes for each row.
int64_t GlaCpuFloatsPerRow(const GlaOptions& options);

}  // namespace eddy
