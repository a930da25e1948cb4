// Layer "delta": DeltaNet, Gated DeltaNet, KDA, Kaczmarz linear attention and OSDN are options of
// one layer around the delta rule (kernels/rules/delta_rule/delta_rule.h). With n = RMSNorm(x):
//   q, k, v = act(conv(W_q n)), act(conv(W_k n)), silu(conv(W_v n))
//   q = normalise(q) K^-1/2,  k = normalise(k)                    per head
//   beta = step size,  g = log decay                              per value head, below
//   w = k, or d * k with a scale d learned online (kernels/rules/osdn_scale/osdn_scale.h)
//   o = delta rule(q, k, w, v, beta, g)
//   x <- x + W_out concat( RMSNorm_V(o) * out_norm * act_gate(z) )
// Sources: DeltaNet arXiv 2406.06484; Gated DeltaNet 2412.06464; KDA 2510.26692; Kaczmarz
// 2605.08587; OSDN 2605.13473; layers as in flash-linear-attention 0.5.2 and the authors' code.
//
// parameter      values                       meaning
// heads          int                          H, of q and k
// value_heads    int, a multiple of H         HV, of v and of everything per state
// key_dim        1 .. 256                     K
// value_dim      1 .. 512                     V
// decay          none
//                head                         g = -e^{rate_log} softplus(W_decay n + decay_bias)
//                channel                      the same per key channel, through a low rank; with
//                                             decay_bound l: g = l sigmoid(e^{rate_log} (f + bias))
//                tied                         e^g = clamp(1 - sigmoid(b), 1e-6, 1), b of the step
// decay_rank     int; null unless channel
// decay_bound    null or [-5, 0); null unless channel
// query_norm     l2 | sum | none              l2: x rsqrt(|x|^2 + 1e-6); sum: x / (sum of x)
// key_norm       l2 | sum | none
// qk_activation  silu | relu | elu | identity elu: elu(x) + 1. v always has silu
// conv_width     0 (no convolution), 2 .. 8
// step           with s = step_max sigmoid(b), b = W_step n (+ step.bias), all in float:
//                sigmoid                      beta = s
//                one                          beta = 1
//                kaczmarz                     beta = s / (|k|^2 + step_eps)
//                kaczmarz_full                beta = 1 / (|k|^2 + step_eps)
//                kaczmarz_learned             beta = s / (softplus(step_scale_raw) |k|^2 +
//                step_eps) longhorn                     beta = s / (1 + s |k|^2)
// step_max       1 | 2                        1 where there is no b, and with decay tied
// step_bias      flag                         false where there is no b
// step_eps       null or > 0                  given with the three kaczmarz, else null
// gate           none | silu | sigmoid        act_gate; none leaves the factor out
// gate_rank      int                          0: z = W_gate n; r: z = W_up W_down n + bias
// initial_state  zero | learned               what S starts from
// scale.*        the write key's scale d. scale.gradient null: there is none (w = k), and all other
//                scale.* are null too. Else:
// scale.gradient    beta_aware | beta_unaware
// scale.eta         > 0                       step of d
// scale.normalise   flag                      divides the step by sum of k^2
// scale.clip_min,   both null, or
// scale.clip_max    clip_min < clip_max       bounds of d
// scale.retention   what r keeps of d, per value head:
//                   none                      r = 1
//                   constant                  r = scale.gamma, in (0, 1]; else gamma is null
//                   learned                   r = sigmoid(retention_logit)
//                   data                      r = sigmoid(W_retention n + bias), per token
// A scale needs step sigmoid and key_norm l2. All steps but `sigmoid` and `one` need
// key_norm none: |k| must be the raw one.
// relaxed_kaczmarz of the authors' code is kaczmarz with query_norm none; no_norm is sigmoid with
// key_norm none; gate_mode single is decay tied.
//
// weight                    shape              where
// norm.weight               [D]
// q.weight, k.weight        [H K, D]
// v.weight                  [HV V, D]
// q_conv.weight, k_conv.weight   [H K, W]      conv_width > 0; last tap: the current token
// v_conv.weight             [HV V, W]          conv_width > 0
// step.weight               [HV, D]            steps with b
// step.bias                 [HV]               step_bias
// step_scale_raw            [HV]               kaczmarz_learned
// decay.weight              [HV, D]            decay head
// decay_down.weight         [decay_rank, D]    decay channel
// decay_up.weight           [HV K, decay_rank] decay channel
// decay_rate_log            [HV]               decay head, channel
// decay_bias                [HV] or [HV K]     decay head or channel
// gate.weight               [HV V, D]          gate, gate_rank 0
// gate_down.weight          [gate_rank, D]     gate, gate_rank > 0; likewise
// gate_up.weight            [HV V, gate_rank]
// gate_up.bias              [HV V]
// out_norm.weight           [V]                shared by all heads
// out.weight                [D, HV V]
// state_init                [HV, K, V]         initial_state learned
// scale_init                [HV, K]            a scale; what d starts from
// retention_logit           [HV]               scale.retention learned
// retention.weight          [HV, D]            scale.retention data
// retention.bias            [HV]               likewise
//
// state field               shape              meaning
// state                     [HV, K, V]         S, of the type DeviceTraits::states
// conv_q, conv_k            [W - 1, H K]       last inputs of the convolutions, oldest first
// conv_v                    [W - 1, HV V]
// scale                     [HV, K]            d, with a scale
// ring_*                                       writes that a device has put off, see
//                                              kernels/rules/delta_rule/delta_ring.h
//
// Read-outs: those of delta layers in kernels/readout.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/layer.h"
#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/rules/delta_rule/delta_rule.h"
#include "kernels/rules/osdn_scale/osdn_scale.h"

namespace eddy {

// The parameters, as the devices read them.
struct DeltaOptions {
  enum class Decay { kNone, kHead, kChannel, kTied };
  enum class Norm { kNone, kL2, kSum };
  enum class Activation { kIdentity, kSilu, kRelu, kElu };
  enum class StepSize { kSigmoid, kOne, kKaczmarz, kKaczmarzFull, kKaczmarzLearned, kLonghorn };
  enum class Gate { kNone, kSilu, kSigmoid };
  enum class Retention { kNone, kConstant, kLearned, kData };
  struct Scale {
    OsdnScaleOptions rule = {};
    Retention retention = Retention::kNone;
    float gamma = 1;
  };

  explicit DeltaOptions(const LayerSpec& spec);

  int64_t d_model = 0;
  float norm_eps = 0;
  DeltaRuleShape shape = {};
  Decay decay = Decay::kNone;
  int64_t decay_rank = 0;
  std::optional<float> decay_bound;
  Norm query_norm = Norm::kL2;
  Norm key_norm = Norm::kL2;
  Activation qk_activation = Activation::kSilu;
  int64_t conv_width = 0;
  StepSize step = StepSize::kSigmoid;
  float step_max = 1;
  bool step_bias = false;
  float step_eps = 0;
  Gate gate = Gate::kNone;
  int64_t gate_rank = 0;
  bool learned_state = false;
  std::optional<Scale> scale = {};

  // Whether there are logits b of the step.
  bool has_step_logits() const { return step != StepSize::kOne && step != StepSize::kKaczmarzFull; }
  // Whether the step divides by |k|^2.
  bool uses_key_length() const { return step != StepSize::kOne && step != StepSize::kSigmoid; }
  bool uses_step_eps() const { return uses_key_length() && step != StepSize::kLonghorn; }
  // The decay as the rule sees it.
  DeltaDecay rule_decay() const {
    if (decay == Decay::kNone) return DeltaDecay::kNone;
    return decay == Decay::kChannel ? DeltaDecay::kChannel : DeltaDecay::kHead;
  }
  int64_t q_width() const { return shape.heads * shape.key_dim; }          // H K
  int64_t v_width() const { return shape.value_heads * shape.value_dim; }  // HV V
};

const LayerType& DeltaType();
LayerNeeds DeltaNeeds(const LayerSpec& spec, const DeviceTraits& traits);
// The names of what `parts` answer, whatever device has given them; types and shapes stand there.
LayerNeeds DeltaNeedsNamed(const LayerSpec& spec, const LayerParts& parts);
DeltaRing DeltaRingOf(const LayerNeeds& needs, const LayerParts& parts);
std::unique_ptr<Layer> MakeDeltaCpu(const LayerSpec& spec, const LayerParts& parts);
// Floats of scratch that the CPU layer takes for each row.
int64_t DeltaCpuFloatsPerRow(const DeltaOptions& options);

}  // namespace eddy
