// Rule: the learned scale d of the write key of OSDN, online scaled DeltaNet. It is the first of
// two phases; the second is the delta rule (kernels/rules/delta_rule/delta_rule.h) with read key k
// and write key w. Per value head and token, with s = k * k element by element, and d as it was
// *before* this token:
//   w     = d * k
//   inner = sum_i d_i s_i
//   G     = beta (1 - beta inner)     beta-aware: the gradient of the step that is really taken
//         = 1 - inner                 beta-unaware: the same as if beta were 1
//   d    <- r d + eta G s             the step divided by (sum_i s_i + 1e-5) if `normalise`
//   d    <- min(max(d, clip_min), clip_max)      if there is a clip
// The retention r keeps of d only: it touches neither inner nor the step, and the decay of S never
// touches d. k is l2-normalised, so beta-aware is descent on
//   h(d) = ((1 - beta inner)^2 - 1) / (2 |k|^2).
// Value head j reads k of head j / (HV / H), but has beta, r and d of its own.
//
// Sequential over the tokens and exact. A closed form over chunks exists, but holds only where no
// entry of d meets the clip at any token, and a bounded clip with retention binds on most entries.
// It is not worth a second form on the CPU: measured with one thread (kernels_bench, BenchScale and
// BenchRule), microseconds for 4 heads and 64 tokens, this against the delta rule behind it:
// K = V = 64: 6, 68; 128: 11, 426; 256: 18, 1704.
//
// Sources: Zhou et al. 2026, arXiv 2605.13473, for surrogate and projection; order of the steps,
// both gradients and retention as in the authors' code (design notes, 7).
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// What of the model the recursion depends on.
struct OsdnScaleOptions {
  bool beta_aware = true;
  float eta = 1;
  bool normalise = false;
  bool clips = false;
  float clip_min = 0, clip_max = 0;  // means nothing unless `clips`
};

// Of the d that a token's write key was made with, over all value heads. Null: not wanted, and not
// computed. Rows without a slot get zeros.
struct OsdnScaleReadouts {
  float* least = nullptr;     // [rows]
  float* greatest = nullptr;  // [rows]
  float* at_bound = nullptr;  // [rows], the share of entries that equal a bound of the clip
  bool wanted() const { return least != nullptr || greatest != nullptr || at_bound != nullptr; }
};

struct OsdnScaleArgs {
  int64_t heads = 0, value_heads = 0, key_dim = 0;
  OsdnScaleOptions options = {};
  const float* k = nullptr;          // [rows, H, K], l2-normalised
  const float* beta = nullptr;       // [rows, HV]
  const float* retention = nullptr;  // r: [HV] at retention_stride; null: 1
  int64_t retention_stride = 0;      // elements from one row to the next; 0: one r for all rows
  FieldView scale = {};              // [HV, K] fp32, d
  float* w = nullptr;                // [rows, HV, K]
  OsdnScaleReadouts readouts = {};
};

// Advances d of each sequence by its rows. Rows of kNoSlot get zeros.
void OsdnScaleCpu(const Step& step, const OsdnScaleArgs& args);

}  // namespace eddy
