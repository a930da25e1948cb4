#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/cpu/simd.h"
#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/rules/delta_rule/delta_rule_half.h"

namespace eddy {
namespace {

// Scratch behind that of the chunk form.
struct Scratch {
  explicit Scratch(const DeltaRuleArgs& p)
      : whole(p.scratch + DeltaChunkFloats(p.shape)),
        keys(whole + p.shape.value_heads * p.shape.key_dim * p.shape.value_dim),
        factors(keys + (p.ring.pending_updates() - 1) * p.shape.key_dim),
        row(factors + p.shape.key_dim),
        error(row + p.shape.value_dim) {}

  float* whole;    // [HV, K, V]: S of a sequence in float
  float* keys;     // [C-1, K]: z_i
  float* factors;  // [K]: F
  float* row;      // [V]: a row of S
  float* error;    // [V]: e, then n
};

// One value head of one sequence: its part of the record.
struct Record {
  Record(const DeltaRuleArgs& p, int32_t slot, int64_t head)
      : entries(p.ring.pending_updates() - 1),
        decays(p.channel_decay ? p.shape.key_dim : 1),
        s(p.state.at<uint16_t>(slot) + head * p.shape.key_dim * p.shape.value_dim) {
    if (entries == 0) return;
    w = p.ring.w.at<float>(slot) + head * entries * p.shape.key_dim;
    n = p.ring.n.at<float>(slot) + head * entries * p.shape.value_dim;
    if (p.ring.a.base != nullptr) a = p.ring.a.at<float>(slot) + head * entries * decays;
    groups = (p.shape.value_dim + kDeltaCountColumns - 1) / kDeltaCountColumns;
    counts = p.ring.count.at<int32_t>(slot) + head * groups;
  }
  int64_t count() const { return entries == 0 ? 0 : counts[0]; }
  void SetCount(int64_t count) const { std::fill_n(counts, groups, static_cast<int32_t>(count)); }

  int64_t entries, decays;
  uint16_t* s;                       // [K, V]
  float *w = nullptr, *n = nullptr;  // [C-1, K], [C-1, V]
  float* a = nullptr;                // [C-1, decays]; null: no decay
  int32_t* counts = nullptr;         // [groups]
  int64_t groups = 0;
};

// The pending pairs of a head with the decay `next` of the token that comes, one or [K], null for
// none: S = F S + sum_i z_i n_i'.
class Pending {
 public:
  Pending(const DeltaRuleArgs& p, const Record& record, const float* next)
      : record_(record),
        key_dim_(p.shape.key_dim),
        value_dim_(p.shape.value_dim),
        count_(record.count()),
        scratch_(p) {
    const auto factor = [&](const float* from, int64_t i) {
      return from == nullptr ? 1.0f : from[p.channel_decay ? i : 0];
    };
    for (int64_t i = 0; i < key_dim_; ++i) scratch_.factors[i] = factor(next, i);
    for (int64_t pair = count_ - 1; pair >= 0; --pair) {
      const float* a = record.a == nullptr ? nullptr : record.a + pair * record.decays;
      for (int64_t i = 0; i < key_dim_; ++i) {
        scratch_.keys[pair * key_dim_ + i] = record.w[pair * key_dim_ + i] * scratch_.factors[i];
        scratch_.factors[i] *= factor(a, i);
      }
    }
  }

  int64_t count() const { return count_; }

  // y += sign S'x
  void AddProduct(float sign, const float* x, float* y) const {
    for (int64_t i = 0; i < key_dim_; ++i) {
      FromBF16(record_.s + i * value_dim_, value_dim_, scratch_.row);
      simd::AddScaled(sign * scratch_.factors[i] * x[i], scratch_.row, y, value_dim_);
    }
    for (int64_t pair = 0; pair < count_; ++pair) {
      const float share = simd::Dot(scratch_.keys + pair * key_dim_, x, key_dim_);
      simd::AddScaled(sign * share, record_.n + pair * value_dim_, y, value_dim_);
    }
  }

  // Row i of S.
  void Fold(int64_t i, float* row) const {
    FromBF16(record_.s + i * value_dim_, value_dim_, row);
    if (scratch_.factors[i] != 1.0f) simd::Scale(scratch_.factors[i], row, value_dim_);
    for (int64_t pair = 0; pair < count_; ++pair) {
      simd::AddScaled(scratch_.keys[pair * key_dim_ + i], record_.n + pair * value_dim_, row,
                      value_dim_);
    }
  }

 private:
  const Record& record_;
  const int64_t key_dim_, value_dim_, count_;
  const Scratch scratch_;
};

// One decoding row of a value head; returns |e| / |v|.
float StepOfHead(const DeltaRuleArgs& p, const Record& record, int64_t row, int64_t head) {
  const auto& [heads, value_heads, key_dim, value_dim] = p.shape;
  const Scratch scratch(p);
  const int64_t at = row * value_heads + head;
  const int64_t key_at = (row * heads + head / (value_heads / heads)) * key_dim;
  const float *q = p.q + key_at, *k = p.k + key_at;
  const float* w = p.w != nullptr ? p.w + at * key_dim : k;
  const float* v = p.v + at * value_dim;
  const float* decay = p.decay != nullptr ? p.decay + at * record.decays : nullptr;
  const Pending pending(p, record, decay);

  float* const error = scratch.error;
  std::copy_n(v, value_dim, error);
  pending.AddProduct(-1, k, error);
  const float beta = p.beta[at], length = simd::SumOfSquares(v, value_dim);
  const float residual =
      beta == 0 || length == 0 ? 0.0f : std::sqrt(simd::SumOfSquares(error, value_dim) / length);
  simd::Scale(beta, error, value_dim);  // now n
  float* const out = p.out + at * value_dim;
  std::fill_n(out, value_dim, 0.0f);
  pending.AddProduct(1, q, out);
  simd::AddScaled(simd::Dot(q, w, key_dim), error, out, value_dim);

  if (pending.count() < record.entries) {
    const int64_t pair = pending.count();
    std::copy_n(w, key_dim, record.w + pair * key_dim);
    std::copy_n(error, value_dim, record.n + pair * value_dim);
    if (decay != nullptr) std::copy_n(decay, record.decays, record.a + pair * record.decays);
    record.SetCount(pair + 1);
    return residual;
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    pending.Fold(i, scratch.row);
    simd::AddScaled(w[i], error, scratch.row, value_dim);
    ToBF16(scratch.row, value_dim, record.s + i * value_dim);
  }
  if (record.entries > 0) record.SetCount(0);
  return residual;
}

}  // namespace

int64_t DeltaRuleScratchFloats(const DeltaRuleShape& shape, DType states) {
  const int64_t chunk = DeltaChunkFloats(shape);
  if (states == DType::kF32) return chunk;
  return chunk + shape.value_heads * shape.key_dim * shape.value_dim +
         kMostPendingUpdates * shape.key_dim + 2 * shape.value_dim;
}

void DeltaRuleAdvanceHalf(const Step& step, const DeltaRuleArgs& p, int index) {
  EDDY_CHECK(p.ring.pending_updates() <= kMostPendingUpdates);
  const int64_t first = step.row_start[index], rows = step.row_start[index + 1] - first;
  const int32_t slot = step.slots[index];
  const int64_t value_heads = p.shape.value_heads;
  if (index < step.single_row_sequences) {
    float residual = 0;
    for (int64_t j = 0; j < value_heads; ++j) {
      residual += StepOfHead(p, Record(p, slot, j), first, j);
    }
    if (p.readouts.residual != nullptr) {
      p.readouts.residual[first] = residual / static_cast<float>(value_heads);
    }
    return;
  }
  const int64_t key_dim = p.shape.key_dim, value_dim = p.shape.value_dim;
  float* const whole = Scratch(p).whole;
  for (int64_t j = 0; j < value_heads; ++j) {
    const Record record(p, slot, j);
    const Pending pending(p, record, nullptr);
    for (int64_t i = 0; i < key_dim; ++i) pending.Fold(i, whole + (j * key_dim + i) * value_dim);
    if (pending.count() > 0) record.SetCount(0);
  }
  DeltaRuleAdvance(p, first, rows, whole);
  ToBF16(whole, value_heads * key_dim * value_dim, p.state.at<uint16_t>(slot));
}

void DeltaRuleFlushHalf(const Step& step, const DeltaRuleArgs& p) {
  EDDY_CHECK(p.state.dtype == DType::kBF16);
  const int64_t key_dim = p.shape.key_dim, value_dim = p.shape.value_dim;
  for (int index = 0; index < step.sequences; ++index) {
    const int32_t slot = step.slots[index];
    for (int64_t j = 0; slot != kNoSlot && j < p.shape.value_heads; ++j) {
      const Record record(p, slot, j);
      const Pending pending(p, record, nullptr);
      if (pending.count() == 0) continue;
      float* const row = Scratch(p).row;
      for (int64_t i = 0; i < key_dim; ++i) {
        pending.Fold(i, row);
        ToBF16(row, value_dim, record.s + i * value_dim);
      }
      record.SetCount(0);
    }
  }
}

}  // namespace eddy
