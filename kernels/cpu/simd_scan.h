// The vector primitive of the decay scan; see simd.h for the others.
#pragma once

#include <cstdint>

namespace eddy::simd {

// One state of the decay scan, token by token: see kernels/rules/decay_scan/decay_scan.h. A
// `*_stride` is the distance from one token to the next.
struct DecayState {
  int64_t tokens = 0, key_dim = 0, value_dim = 0;
  int64_t reads = 1;             // queries of each token
  const float* k = nullptr;      // [tokens, K]
  const float* v = nullptr;      // [tokens, V]
  const float* q = nullptr;      // [tokens, reads, K]; `read_step` from one query to the next
  const float* decay = nullptr;  // factors e^g: [tokens], or [tokens, K] if `channel_decay`
  bool channel_decay = false;
  int64_t key_stride = 0, value_stride = 0, query_stride = 0, read_step = 0, decay_stride = 0;
  float* state = nullptr;  // [K, V]
  float* out = nullptr;    // [tokens, reads, V]: `out_stride`, and V from one read to the next
  int64_t out_stride = 0;
};
// Advances it by `tokens` tokens. Every element takes the same operations in the same order however
// the tokens are split into calls.
void DecaySteps(const DecayState& state);

}  // namespace eddy::simd
