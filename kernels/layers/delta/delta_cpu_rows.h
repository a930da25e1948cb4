// Where the intermediate tensors of a step lie in the scratch of the CPU layer "delta".
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/layers/delta/delta.h"

namespace eddy {

struct DeltaCpuRows {
  // `states`: the type of S.
  DeltaCpuRows(const DeltaOptions& o, DType states, int64_t rows, float* scratch) : count(rows) {
    float* const begin = scratch + DeltaRuleScratchFloats(o.shape, states);
    float* at = begin;
    const auto take = [&](int64_t width) {
      float* const taken = at;
      at += rows * width;
      return taken;
    };
    const int64_t decays = o.decay == DeltaOptions::Decay::kChannel
                               ? o.shape.value_heads * o.shape.key_dim
                               : o.shape.value_heads;
    normed = take(o.d_model);
    before = take(std::max(o.q_width(), o.v_width()));
    q = take(o.q_width());
    k = take(o.q_width());
    v = take(o.v_width());
    gate = take(o.v_width());
    out = take(o.v_width());
    low = take(std::max(o.decay_rank, o.gate_rank));
    beta = take(o.shape.value_heads);
    decay = take(decays);
    log_decay = take(o.shape.value_heads);
    if (o.scale) {
      w = take(o.shape.value_heads * o.shape.key_dim);
      retention = take(o.shape.value_heads);
    }
    EDDY_DCHECK(at == begin + rows * DeltaCpuFloatsPerRow(o));
  }

  int64_t count;
  float* normed;               // [rows, D]
  float* before;               // [rows, max(H K, HV V)]: inputs of one convolution
  float* q;                    // [rows, H, K]
  float* k;                    // [rows, H, K]
  float* v;                    // [rows, HV, V]
  float* gate;                 // [rows, HV, V]
  float* out;                  // [rows, HV, V]
  float* low;                  // [rows, max(decay_rank, gate_rank)]
  float* beta;                 // [rows, HV]: first the logits b
  float* decay;                // [rows, HV] or [rows, HV, K]: factors
  float* log_decay;            // [rows, HV]; scalar decay only
  float* w = nullptr;          // [rows, HV, K]; null without a scale
  float* retention = nullptr;  // [rows, HV]; retention of a scale, if it is data
};

}  // namespace eddy
