#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/rules/delta_rule/delta_rule.h"
#include "kernels/rules/delta_rule/delta_rule_half.h"

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

const float* ReadKey(const DeltaRuleArgs& p, int64_t row, int64_t j) {
  const int64_t head = row * p.shape.heads + j / (p.shape.value_heads / p.shape.heads);
  return p.k + head * p.shape.key_dim;
}

// |e| / |v| of one value head, whose S [K, V] still is that before the token.
float Residual(const DeltaRuleArgs& p, int64_t row, int64_t j, const float* s) {
  const int64_t key_dim = p.shape.key_dim, value_dim = p.shape.value_dim;
  const int64_t at = row * p.shape.value_heads + j;
  const float* k = ReadKey(p, row, j);
  const float* v = p.v + at * value_dim;
  const float length = simd::SumOfSquares(v, value_dim);
  if (length == 0 || p.beta[at] == 0) return 0;
  float* e = p.scratch;
  std::copy_n(v, value_dim, e);
  for (int64_t i = 0; i < key_dim; ++i) {
    float kept = 1;
    if (p.decay != nullptr) kept = p.channel_decay ? p.decay[at * key_dim + i] : p.decay[at];
    simd::AddScaled(-kept * k[i], s + i * value_dim, e, value_dim);
  }
  return std::sqrt(simd::SumOfSquares(e, value_dim) / length);
}

// What does not depend on S.
void ReadInputs(const DeltaRuleArgs& p, int64_t row) {
  const int64_t value_heads = p.shape.value_heads, key_dim = p.shape.key_dim;
  float contraction = 0;
  for (int64_t j = 0; j < value_heads && p.readouts.contraction != nullptr; ++j) {
    const int64_t at = row * value_heads + j;
    const float* k = ReadKey(p, row, j);
    const float* w = p.w != nullptr ? p.w + at * key_dim : k;
    const float left = 1 - p.beta[at] * simd::Dot(w, k, key_dim);
    contraction += left * left / static_cast<float>(value_heads);
  }
  if (p.readouts.contraction != nullptr) p.readouts.contraction[row] = contraction;
  if (p.readouts.decay == nullptr) return;
  const int64_t decays = p.channel_decay ? value_heads * key_dim : value_heads;
  p.readouts.decay[row] =
      p.decay != nullptr ? simd::Sum(p.decay + row * decays, decays) / static_cast<float>(decays)
                         : 1.0f;
}

// The step form, with the residuals read between the tokens.
void StepsWithResiduals(const DeltaRuleArgs& p, int64_t first, int64_t rows, float* state) {
  const int64_t value_heads = p.shape.value_heads;
  for (int64_t row = first; row < first + rows; ++row) {
    float sum = 0;
    for (int64_t j = 0; j < value_heads; ++j) {
      sum += Residual(p, row, j, state + j * p.shape.key_dim * p.shape.value_dim);
    }
    p.readouts.residual[row] = sum / static_cast<float>(value_heads);
    DeltaRuleSteps(p, row, 1, state);
  }
}

void ZeroRows(const DeltaRuleArgs& p, int64_t first, int64_t rows) {
  const auto zero = [&](float* to, int64_t width) {
    if (to != nullptr) std::fill_n(to + first * width, rows * width, 0.0f);
  };
  zero(p.out, p.shape.value_heads * p.shape.value_dim);
  zero(p.readouts.residual, 1);
  zero(p.readouts.contraction, 1);
  zero(p.readouts.decay, 1);
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

void DeltaRuleAdvance(const DeltaRuleArgs& p, int64_t first, int64_t rows, float* state) {
  if (ChunksPay(p, rows)) {
    if (p.readouts.residual != nullptr) std::fill_n(p.readouts.residual + first, rows, 0.0f);
    DeltaRuleChunks(p, first, rows, state);
  } else if (p.readouts.residual != nullptr) {
    StepsWithResiduals(p, first, rows, state);
  } else {
    DeltaRuleSteps(p, first, rows, state);
  }
}

void DeltaRuleCpu(const Step& step, const DeltaRuleArgs& p) {
  for (int i = 0; i < step.sequences; ++i) {
    const int64_t first = step.row_start[i], rows = step.row_start[i + 1] - first;
    if (rows == 0) continue;
    if (step.slots[i] == kNoSlot) {
      ZeroRows(p, first, rows);
      continue;
    }
    for (int64_t row = first; row < first + rows && p.readouts.wanted(); ++row) ReadInputs(p, row);
    if (p.state.dtype == DType::kBF16) {
      DeltaRuleAdvanceHalf(step, p, i);
    } else {
      DeltaRuleAdvance(p, first, rows, p.state.at<float>(step.slots[i]));
    }
  }
}

}  // namespace eddy
