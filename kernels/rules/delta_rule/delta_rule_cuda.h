// The delta rule (delta_rule.h) on the GPU, in float32 arithmetic whatever the type of S, with
// deferred write-back. The update of a token has rank 1, so its write can wait: a record keeps S as
// of the last flush and a ring (delta_ring.h) of the pairs since. With n_i = beta_i e_i,
// a_i = e^{g_i} and c pairs pending, unrolling the rule gives
//   S_c = F_c S + sum_i (f_i w_i) n_i'      F_c = prod_{m <= c} a_m,  f_i = prod_{i < m <= c} a_m
// (factors scale the rows of S). The token that comes next has decay a, so with F = a F_c and
// z_i = a f_i w_i
//   p = S'(F k) + sum_i (k.z_i) n_i         e = v - p,  n = beta e
//   y = S'(F q) + sum_i (q.z_i) n_i         o = y + (q.w) n
// A step therefore reads S once and writes one pair; the C-th pair goes straight into S with the
// others, S <- F S + sum_i z_i n_i' + w n'. All factors are products of decays, at most 1, walked
// from the newest pair to the oldest: nothing is divided and there are no logarithms, so a decay of
// 0 is exact. A flush is a rounding point, and when it happens depends on the sequence alone. An S
// of bfloat16 is rounded to it there and nowhere else: once in C steps.
//
// Bytes of a step per value head, on average over the ring: s K V (1 + 1/C) + (C^2 + C - 2) r / 2C
// with s = 4 (float32) or 2 (bfloat16) and r = 4 (K + V + decays) the bytes of a pair; in place it
// is 2 s K V.
//
// All calls enqueue on step.stream, allocate nothing, wait for nothing. What a sequence with one
// row gets from DeltaRuleStepCuda depends on that sequence alone, to the bit.
//
// From sm_90 on the step kernel reads step.slots and the fields of the rule before the kernels
// ahead of it on the stream have ended, so that S is on its way while the layer's products still
// run. That is safe because none of those writes them: the slots came with the copy that begins
// every step, which the step's first kernel waited for; the fields are written by the kernels below
// alone, and a step has one of them for each sequence of a layer. Whoever enqueues two for the same
// sequence must put a copy, or a kernel that does not let the next one start early, between them.
#pragma once

#include <cstdint>

#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/rules/delta_rule/delta_rule.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// Rows of floats on the device, `stride` elements apart; 0: packed.
struct DeltaRows {
  const float* data = nullptr;
  int64_t stride = 0;
};

struct DeltaRuleCudaArgs {
  DeltaRuleShape shape = {};
  DeltaRows q = {};      // [rows, H, K], scaled by K^-1/2
  DeltaRows k = {};      // [rows, H, K]
  DeltaRows w = {};      // [rows, HV, K]; null: w = k
  DeltaRows v = {};      // [rows, HV, V]
  DeltaRows beta = {};   // [rows, HV]
  DeltaRows decay = {};  // factors e^g: [rows, HV], or [rows, HV, K] if `channel_decay`; null: none
  bool channel_decay = false;
  FieldView state = {};     // [HV, K, V] fp32 or bf16
  DeltaRing ring = {};      // of pending_updates - 1 pairs
  int pending_updates = 1;  // C, 1 .. kMostPendingUpdates; 1: every step writes S, and no ring
  float* out = nullptr;     // [rows, HV, V]
  int64_t out_stride = 0;   // elements from one row to the next; 0: packed
  DeltaReadouts readouts = {};
  float* readout_scratch = nullptr;  // given if readouts.wanted(): DeltaReadoutFloats() * rows
};

// Floats of args.readout_scratch for each row of a step.
int64_t DeltaReadoutFloats(const DeltaRuleShape& shape);

// The first step.single_row_sequences sequences: row i belongs to sequence i. Rows of kNoSlot
// become zeros.
void DeltaRuleStepCuda(const Step& step, const DeltaRuleCudaArgs& args);

// Sequences [first_sequence, step.sequences) with any number of rows each, token by token with S in
// registers: the exact form. Pending pairs are folded into S first, and the ring is left empty.
// Each sequence before the first has one row.
void DeltaRuleRowsCuda(const Step& step, const DeltaRuleCudaArgs& args, int first_sequence);

// Folds the pending pairs of all sequences of the step into S; their rows, if any, are not looked
// at. Changes no bit of a sequence that has none pending.
void DeltaRuleFlushCuda(const Step& step, const DeltaRuleCudaArgs& args);

}  // namespace eddy
