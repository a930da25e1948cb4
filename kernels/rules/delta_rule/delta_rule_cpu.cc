#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/rules/delta_rule/delta_rule.h"

namespace eddy {
namespace {

// Where the chunk form is the faster one. The step form keeps a strip of S in the first cache and
// so runs near the speed of the adders; the chunk form does more arithmetic, in products. Measured
// with one thread (kernels_bench, BenchRule), microseconds for 4 heads and 64 tokens, step against
// chunk: K = V = 64: 41, 106; 128: 243, 277; 256: 1176, 781.
bool ChunksPay(const DeltaRuleArgs& p, int64_t rows) {
  constexpr int64_t kLargeState = 256 * 256, kManyRows = 16;
  return !p.channel_decay && rows >= kManyRows &&
         p.shape.key_dim * p.shape.value_dim >= kLargeState;
}

}  // namespace

void DeltaRuleSteps(const DeltaRuleArgs& p, int64_t first, int64_t rows, float* state) {
  const auto& [heads, value_heads, key_dim, value_dim] = p.shape;
  const int64_t group = value_heads / heads;
  for (int64_t j = 0; j < value_heads; ++j) {
    const int64_t key_at = (first * heads + j / group) * key_dim;
    const int64_t head_at = first * value_heads + j;
    const int64_t decay_dim = p.channel_decay ? key_dim : 1;
    simd::DeltaSteps({.tokens = rows,
                      .key_dim = key_dim,
                      .value_dim = value_dim,
                      .q = p.q + key_at,
                      .k = p.k + key_at,
                      .w = p.w != nullptr ? p.w + head_at * key_dim : p.k + key_at,
                      .v = p.v + head_at * value_dim,
                      .beta = p.beta + head_at,
                      .decay = p.decay != nullptr ? p.decay + head_at * decay_dim : nullptr,
                      .key_stride = heads * key_dim,
                      .write_stride = (p.w != nullptr ? value_heads : heads) * key_dim,
                      .value_stride = value_heads * value_dim,
                      .beta_stride = value_heads,
                      .decay_stride = value_heads * decay_dim,
                      .channel_decay = p.channel_decay,
                      .state = state + j * key_dim * value_dim,
                      .out = p.out + head_at * value_dim});
  }
}

void DeltaRuleCpu(const Step& step, const DeltaRuleArgs& p) {
  const int64_t width = p.shape.value_heads * p.shape.value_dim;
  for (int i = 0; i < step.sequences; ++i) {
    const int64_t first = step.row_start[i], rows = step.row_start[i + 1] - first;
    if (rows == 0) continue;
    if (step.slots[i] == kNoSlot) {
      std::fill(p.out + first * width, p.out + (first + rows) * width, 0.0f);
      continue;
    }
    float* state = p.state.at<float>(step.slots[i]);
    if (ChunksPay(p, rows)) {
      DeltaRuleChunks(p, first, rows, state);
    } else {
      DeltaRuleSteps(p, first, rows, state);
    }
  }
}

}  // namespace eddy
