// Rule: the asymmetric gated delta rule. Per value head and token, with read key k, write key w,
// query q (already scaled), step size beta and log decay g <= 0:
//   S <- diag(e^g) S
//   e  = v - S'k                 residual against the decayed state
//   S <- S + w (beta e)'
//   o  = S'q                     after the update
// S is [K, V] with V contiguous. DeltaNet (no decay), Gated DeltaNet (scalar g), KDA (vector g),
// Kaczmarz (raw k, beta divided by |k|^2) and OSDN (w = d * k) are instances.
//
// Value head j reads q and k of head j / (HV / H) (grouped value attention).
//
// Two forms, equal up to rounding:
//   step   token by token, S read once and written once: S~ = diag(e^g) S, p = S~'k, y = S~'q,
//          n = beta (v - p), S = S~ + w n', o = y + (w.q) n.
//   chunk  the WY form (Yang et al. 2024, arXiv 2406.06484 and 2412.06464) for up to 64 tokens at
//          once, scalar decay or none. With inclusive G_i = sum_{m <= i} g_m inside the chunk,
//            X_ij = beta_i k_i.w_j e^{G_i - G_j}  (j < i)
//            P_ij =        q_i.w_j e^{G_i - G_j}  (j <= i)
//            (I + X) N = diag(beta) (V - [e^{G_i} k_i] S)
//            O = [e^{G_i} q_i] S + P N
//            S <- e^{G_c} S + [e^{G_c - G_j} w_j]' N
//          Every exponent is <= 0; e^{-G} alone would overflow and is never formed.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct DeltaRuleShape {
  int64_t heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;  // H, HV, K, V
};

// What a token did to the memory, each a mean over the value heads. Null: not wanted, and not
// computed; state and outputs are the same to the bit either way. Rows without a slot get zeros.
struct DeltaReadouts {
  // [rows], |e| / |v|: 0, the memory knew v; 1, it knew nothing; above, it was wrong. A token that
  // is not written (beta 0) or has v = 0 counts as 0.
  float* residual = nullptr;
  // [rows], (1 - beta w.k)^2, which is |v - S'k|^2 / |e|^2 with S after the update: above 1, the
  // step made the recall worse.
  float* contraction = nullptr;
  float* decay = nullptr;  // [rows], e^g; with vector decay a mean over the key channels too
  bool wanted() const { return residual != nullptr || contraction != nullptr || decay != nullptr; }
};

// What a record holds beside S where writes are put off: fields as DeltaRingFields (delta_ring.h)
// declares them; all empty if there is no ring.
struct DeltaRing {
  FieldView w = {}, n = {}, a = {}, count = {};
  // C; 1: every step writes S.
  int pending_updates() const { return w.base == nullptr ? 1 : static_cast<int>(w.shape[1]) + 1; }
};

struct DeltaRuleArgs {
  DeltaRuleShape shape = {};
  const float* q = nullptr;      // [rows, H, K], scaled by K^-1/2
  const float* k = nullptr;      // [rows, H, K]
  const float* w = nullptr;      // [rows, HV, K]; null: w = k
  const float* v = nullptr;      // [rows, HV, V]
  const float* beta = nullptr;   // [rows, HV]
  const float* decay = nullptr;  // factors e^g: [rows, HV], or [rows, HV, K] if `channel_decay`;
                                 // null: no decay
  const float* log_decay = nullptr;  // g [rows, HV]; given with scalar decay, for the chunk form
  bool channel_decay = false;
  FieldView state = {};      // [HV, K, V] fp32 or bf16
  DeltaRing ring = {};       // bf16 only
  float* out = nullptr;      // [rows, HV, V]
  float* scratch = nullptr;  // DeltaRuleScratchFloats
  DeltaReadouts readouts = {};
};

// Of DeltaRuleArgs::scratch, of which the chunk form takes the front. `states`: the type of S.
int64_t DeltaChunkFloats(const DeltaRuleShape& shape);
int64_t DeltaRuleScratchFloats(const DeltaRuleShape& shape, DType states = DType::kF32);

// Rows of kNoSlot become zeros. Picks the form per sequence, by its number of rows alone; of an S
// of bfloat16 delta_rule_half.h tells more.
void DeltaRuleCpu(const Step& step, const DeltaRuleArgs& args);

// The two forms, without read-outs but that the chunk form adds to readouts.residual if it is
// wanted, for rows [first, first + rows) of one sequence whose state is `state` [HV, K, V]; the
// chunk form is for scalar decay or none.
void DeltaRuleSteps(const DeltaRuleArgs& args, int64_t first, int64_t rows, float* state);
void DeltaRuleChunks(const DeltaRuleArgs& args, int64_t first, int64_t rows, float* state);

// What DeltaRuleCpu does with rows [first, first + rows) of a sequence whose S is `state`, in
// float.
void DeltaRuleAdvance(const DeltaRuleArgs& args, int64_t first, int64_t rows, float* state);

}  // namespace eddy
