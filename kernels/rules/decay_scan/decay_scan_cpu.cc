#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/simd_scan.h"
#include "kernels/rules/decay_scan/decay_scan.h"

namespace eddy {
namespace {

// Rows [first, first + rows) of one sequence whose state is `state` [states, K, V].
void OneSequence(const DecayScanArgs& p, int64_t first, int64_t rows, float* state) {
  const auto& [states, key_heads, query_heads, reads, key_dim, value_dim] = p.shape;
  const int64_t outputs_per_query = states * reads / query_heads;
  const int64_t decay_dim = p.channel_decay ? key_dim : 1;
  for (int64_t j = 0; j < states; ++j) {
    const int64_t output = j * reads;
    simd::DecaySteps({.tokens = rows,
                      .key_dim = key_dim,
                      .value_dim = value_dim,
                      .reads = reads,
                      .k = p.k + first * p.key_stride + j / (states / key_heads) * key_dim,
                      .v = p.v + (first * states + j) * value_dim,
                      .q = p.q + first * p.query_stride + output / outputs_per_query * key_dim,
                      .decay = p.decay + (first * states + j) * decay_dim,
                      .channel_decay = p.channel_decay,
                      .key_stride = p.key_stride,
                      .value_stride = states * value_dim,
                      .query_stride = p.query_stride,
                      .read_step = key_dim,
                      .decay_stride = states * decay_dim,
                      .state = state + j * key_dim * value_dim,
                      .out = p.out + (first * states * reads + output) * value_dim,
                      .out_stride = states * reads * value_dim});
  }
}

}  // namespace

void DecayScanCpu(const Step& step, const DecayScanArgs& p) {
  const auto& [states, key_heads, query_heads, reads, key_dim, value_dim] = p.shape;
  EDDY_CHECK(states % key_heads == 0 && states * reads % query_heads == 0);
  // Several reads are of as many query heads: a state read twice by one query would be waste.
  EDDY_CHECK(reads == 1 || query_heads == states * reads);
  const int64_t width = states * reads * value_dim;
  for (int i = 0; i < step.sequences; ++i) {
    const int64_t first = step.row_start[i], rows = step.row_start[i + 1] - first;
    if (rows == 0) continue;
    if (step.slots[i] == kNoSlot) {
      std::fill(p.out + first * width, p.out + (first + rows) * width, 0.0f);
      continue;
    }
    OneSequence(p, first, rows, p.state.at<float>(step.slots[i]));
  }
}

}  // namespace eddy
