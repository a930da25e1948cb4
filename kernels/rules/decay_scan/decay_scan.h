// Rule: a matrix state that decays and is written by outer products. Per state and token, with key
// k, value v, query q (already scaled) and log decay g <= 0:
//   S <- diag(e^g) S + k v'
//   o  = S'q                     after the update
// S is [K, V] with V contiguous. GLA (vector g; Yang et al. 2023, arXiv 2312.06635), Mamba2 (scalar
// g, k = B, v = delta x, q = C; Dao and Gu 2024, arXiv 2405.21060) and mLSTM are instances: the
// delta rule without its residual.
//
// Heads: each state has a decay and a value of its own; it takes the key of key head
// j / (states / key_heads) and is read by `reads` queries, so there are states * reads outputs.
// Output o takes the query of query head o / (states * reads / query_heads).
//
// On the CPU one form, token by token, S read once and written once for each. The chunk form would
// trade this traversal for products of three times the arithmetic, and the step form runs from the
// first cache already. The GPU has that form too, for prompts: decay_scan_chunk_cuda.cuh.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct DecayScanShape {
  int64_t states = 0, key_heads = 0, query_heads = 0;
  int64_t reads = 1;
  int64_t key_dim = 0, value_dim = 0;  // K, V
};

struct DecayScanArgs {
  DecayScanShape shape = {};
  const float* q = nullptr;  // [rows, query_heads, K], `query_stride` from one row to the next
  const float* k = nullptr;  // [rows, key_heads, K], `key_stride` from one row to the next
  int64_t query_stride = 0, key_stride = 0;
  const float* v = nullptr;      // [rows, states, V]
  const float* decay = nullptr;  // factors e^g: [rows, states], or [rows, states, K]
  bool channel_decay = false;    // the latter
  FieldView state = {};          // [states, K, V] fp32
  float* out = nullptr;          // [rows, states * reads, V]
};

// Rows of kNoSlot become zeros. All strides are in elements.
void DecayScanCpu(const Step& step, const DecayScanArgs& args);

}  // namespace eddy
