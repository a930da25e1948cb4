#include "tests/kernels/cuda/delta_rule_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/state_layout.h"

namespace eddy::testing {
namespace {

constexpr int64_t kAlign = StateLayout::kAlign;
constexpr float kNoise = 0.05f;

std::vector<float> Gauss(int64_t count, double scale, std::mt19937_64& rng) {
  std::normal_distribution<double> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(scale * normal(rng));
  return values;
}

void Normalise(int64_t dim, double length, std::vector<float>& x) {
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(dim)) {
    double square = 1e-12;
    for (int64_t i = 0; i < dim; ++i) square += double{x[at + i]} * x[at + i];
    for (int64_t i = 0; i < dim; ++i) {
      x[at + i] = static_cast<float>(x[at + i] * length / std::sqrt(square));
    }
  }
}

int64_t Decays(const DeltaCase& c) {
  if (c.decay == DeltaDecay::kNone) return 0;
  return c.shape.value_heads * (c.decay == DeltaDecay::kChannel ? c.shape.key_dim : 1);
}

void Append(const std::vector<float>& from, std::vector<float>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

DeltaRow RandomRow(const DeltaCase& c, std::mt19937_64& rng) {
  const auto& [heads, value_heads, key_dim, value_dim] = c.shape;
  std::uniform_real_distribution<double> uniform;
  DeltaRow row;
  row.q = Gauss(heads * key_dim, 1, rng);
  row.k = Gauss(heads * key_dim, 1, rng);
  Normalise(key_dim, 1 / std::sqrt(static_cast<double>(key_dim)), row.q);
  Normalise(key_dim, 1, row.k);
  row.v = Gauss(value_heads * value_dim, 1, rng);
  if (c.own_w) {
    for (int64_t j = 0; j < value_heads; ++j) {
      const float* k = row.k.data() + j / (value_heads / heads) * key_dim;
      for (int64_t i = 0; i < key_dim; ++i) {
        row.w.push_back(k[i] * static_cast<float>(0.5 + uniform(rng)) +
                        kNoise * Gauss(1, 1, rng)[0]);
      }
    }
  }
  for (int64_t j = 0; j < value_heads; ++j) {
    row.beta.push_back(uniform(rng) < 0.05 ? 0.0f : static_cast<float>(uniform(rng)));
  }
  for (int64_t i = 0; i < Decays(c); ++i) {
    double decay = std::exp(-0.3 * uniform(rng));
    if (c.extreme && uniform(rng) < 0.1) decay = uniform(rng) < 0.5 ? 0 : 1e-30;
    row.decay.push_back(static_cast<float>(decay));
  }
  return row;
}

DeltaReference::DeltaReference(const DeltaCase& c) : c_(c) {}

std::vector<float> DeltaReference::RandomState(std::mt19937_64& rng) {
  const auto& [heads, value_heads, key_dim, value_dim] = c_.shape;
  const std::vector<float> state = Gauss(value_heads * key_dim * value_dim, 0.3, rng);
  s_.assign(state.begin(), state.end());
  RoundState();
  return {s_.begin(), s_.end()};
}

void DeltaReference::RoundState() {
  if (c_.states == DType::kF32) return;
  for (double& x : s_) x = double{FromBF16(ToBF16(static_cast<float>(x)))};
}

std::vector<double> DeltaReference::Advance(const DeltaRow& row) {
  const auto& [heads, value_heads, key_dim, value_dim] = c_.shape;
  std::vector<double> out;
  residual = contraction = kept = 0;
  for (int64_t j = 0; j < value_heads; ++j) {
    const int64_t head = j / (value_heads / heads);
    const float *q = row.q.data() + head * key_dim, *k = row.k.data() + head * key_dim;
    const float* w = c_.own_w ? row.w.data() + j * key_dim : k;
    double* s = s_.data() + j * key_dim * value_dim;
    std::vector<double> e(row.v.begin() + j * value_dim, row.v.begin() + (j + 1) * value_dim);
    std::vector<double> o(static_cast<size_t>(value_dim));
    double length = 0, missed = 0, kw = 0, decays = 0;
    for (double x : e) length += x * x;
    for (int64_t i = 0; i < key_dim; ++i) {
      double a = 1;
      if (c_.decay == DeltaDecay::kHead) a = row.decay[j];
      if (c_.decay == DeltaDecay::kChannel) a = row.decay[j * key_dim + i];
      decays += a / static_cast<double>(key_dim);
      kw += double{k[i]} * w[i];
      for (int64_t m = 0; m < value_dim; ++m) {
        s[i * value_dim + m] *= a;
        e[m] -= s[i * value_dim + m] * k[i];
      }
    }
    for (double x : e) missed += x * x;
    for (int64_t i = 0; i < key_dim; ++i) {
      for (int64_t m = 0; m < value_dim; ++m) {
        s[i * value_dim + m] += w[i] * (row.beta[j] * e[m]);
        o[m] += s[i * value_dim + m] * q[i];
      }
    }
    out.insert(out.end(), o.begin(), o.end());
    const double share = 1 / static_cast<double>(value_heads);
    if (length != 0 && row.beta[j] != 0) residual += share * std::sqrt(missed / length);
    contraction += share * (1 - row.beta[j] * kw) * (1 - row.beta[j] * kw);
    kept += share * decays;
  }
  return out;
}

std::vector<DeltaPool::Placed> DeltaPool::Place(const DeltaCase& c, int64_t* stride) {
  const auto& [heads, value_heads, key_dim, value_dim] = c.shape;
  std::vector<Field> fields = {
      {.name = "state", .dtype = c.states, .shape = {value_heads, key_dim, value_dim, 1}}};
  for (Field& field : DeltaRingFields(c.shape, c.decay, c.pending_updates)) {
    fields.push_back(std::move(field));
  }
  std::vector<Placed> placed;
  int64_t at = 0;
  for (Field& field : fields) {
    const int64_t bytes = FieldBytes(field);
    placed.push_back({.field = std::move(field), .offset = at});
    // A canary behind each field.
    at += (bytes + kAlign) / kAlign * kAlign;
  }
  *stride = at + c.gap;
  return placed;
}

DeltaPool::DeltaPool(const DeltaCase& c)
    : c_(c), fields_(Place(c, &stride_)), memory_(c.slots * stride_) {}

const DeltaPool::Placed& DeltaPool::Find(const char* name) const {
  for (const Placed& placed : fields_) {
    if (placed.field.name == name) return placed;
  }
  std::fprintf(stderr, "no field %s\n", name);
  std::abort();
}

FieldView DeltaPool::View(const char* name) const {
  const Placed& placed = Find(name);
  return {.base = memory_.data<std::byte>() + placed.offset,
          .stride = stride_,
          .dtype = placed.field.dtype,
          .shape = placed.field.shape};
}

void DeltaPool::Fill(int32_t slot, const std::vector<float>& state) {
  const int64_t at = slot * stride_ + Find("state").offset;
  if (c_.states == DType::kBF16) {
    std::vector<uint16_t> halves(state.size());
    ToBF16(state.data(), std::ssize(state), halves.data());
    memory_.Write<uint16_t>(at, halves);
  } else {
    memory_.Write<float>(at, state);
  }
  if (c_.pending_updates == 1) return;
  const std::vector<int32_t> zeros(static_cast<size_t>(FieldBytes(Find("ring_count").field) / 4));
  memory_.Write<int32_t>(slot * stride_ + Find("ring_count").offset, zeros);
}

void DeltaPool::PoisonRing(int32_t slot) {
  for (const Placed& placed : fields_) {
    if (placed.field.name == "state" || placed.field.name == "ring_count") continue;
    memory_.Poison(slot * stride_ + placed.offset, FieldBytes(placed.field));
  }
}

std::vector<float> DeltaPool::State(int32_t slot) const {
  const Placed& state = Find("state");
  const int64_t at = slot * stride_ + state.offset;
  const int64_t count = FieldBytes(state.field) / SizeOf(c_.states);
  if (c_.states == DType::kF32) return memory_.Read<float>(at, count);
  std::vector<float> values(static_cast<size_t>(count));
  FromBF16(memory_.Read<uint16_t>(at, count).data(), count, values.data());
  return values;
}

std::vector<int32_t> DeltaPool::Counts(int32_t slot) const {
  const Placed& count = Find("ring_count");
  return memory_.Read<int32_t>(slot * stride_ + count.offset, FieldBytes(count.field) / 4);
}

bool DeltaPool::Untouched(int32_t slot, bool unused) const {
  std::vector<uint8_t> bytes = memory_.Read<uint8_t>(slot * stride_, stride_);
  for (const Placed& placed : fields_) {
    if (unused) break;
    std::memset(bytes.data() + placed.offset, 0xff, static_cast<size_t>(FieldBytes(placed.field)));
  }
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0xff; });
}

DeltaRuleCudaArgs DeltaPool::Args() const {
  DeltaRuleCudaArgs args = {.shape = c_.shape,
                            .channel_decay = c_.decay == DeltaDecay::kChannel,
                            .state = View("state"),
                            .pending_updates = c_.pending_updates};
  if (c_.pending_updates == 1) return args;
  args.ring = {.w = View("ring_w"), .n = View("ring_n"), .count = View("ring_count")};
  if (c_.decay != DeltaDecay::kNone) args.ring.a = View("ring_a");
  return args;
}

namespace {

template <typename Get>
std::vector<float> Collect(const std::vector<std::vector<DeltaRow>>& rows, Get get) {
  std::vector<float> all;
  for (const std::vector<DeltaRow>& sequence : rows) {
    for (const DeltaRow& row : sequence) Append(get(row), all);
  }
  return all;
}

std::vector<int32_t> Starts(const std::vector<std::vector<DeltaRow>>& rows) {
  std::vector<int32_t> starts = {0};
  for (const std::vector<DeltaRow>& sequence : rows) {
    starts.push_back(starts.back() + static_cast<int32_t>(sequence.size()));
  }
  return starts;
}

}  // namespace

DeltaStepRun::DeltaStepRun(const DeltaCase& c, const std::vector<std::vector<DeltaRow>>& rows,
                           const std::vector<int32_t>& slots_of)
    : c_(c),
      starts_(Starts(rows)),
      q(Collect(rows, [](const DeltaRow& row) { return row.q; })),
      k(Collect(rows, [](const DeltaRow& row) { return row.k; })),
      w(Collect(rows, [](const DeltaRow& row) { return row.w; })),
      v(Collect(rows, [](const DeltaRow& row) { return row.v; })),
      beta(Collect(rows, [](const DeltaRow& row) { return row.beta; })),
      decay(Collect(rows, [](const DeltaRow& row) { return row.decay; })),
      slots(slots_of),
      starts(starts_),
      out(16 + starts_.back() * c.shape.value_heads * c.shape.value_dim * 4),
      readouts(16 + starts_.back() * 3 * 4),
      scratch(16 + starts_.back() * DeltaReadoutFloats(c.shape) * 4) {
  step_ = {.rows = starts_.back(),
           .sequences = static_cast<int>(rows.size()),
           .row_start = starts.data<int32_t>(),
           .slots = slots.data<int32_t>()};
  for (const std::vector<DeltaRow>& sequence : rows) {
    const int count = static_cast<int>(sequence.size());
    const bool single = count == 1 && step_.max_rows_per_sequence <= 1;
    step_.single_row_sequences += single ? 1 : 0;
    step_.max_rows_per_sequence = std::max(step_.max_rows_per_sequence, count);
  }
}

DeltaRuleCudaArgs DeltaStepRun::With(DeltaRuleCudaArgs args, bool with_readouts) const {
  args.q.data = q.data<float>();
  args.k.data = k.data<float>();
  args.w.data = c_.own_w ? w.data<float>() : nullptr;
  args.v.data = v.data<float>();
  args.beta.data = beta.data<float>();
  args.decay.data = c_.decay != DeltaDecay::kNone ? decay.data<float>() : nullptr;
  args.out = out.data<float>();
  if (with_readouts) {
    float* to = readouts.data<float>();
    args.readouts = {.residual = to, .contraction = to + step_.rows, .decay = to + 2 * step_.rows};
    args.readout_scratch = scratch.data<float>();
  }
  return args;
}

std::vector<float> DeltaStepRun::Out() const {
  return out.Read<float>(0, step_.rows * c_.shape.value_heads * c_.shape.value_dim);
}

std::vector<float> DeltaStepRun::Readouts() const {
  return readouts.Read<float>(0, 3 * step_.rows);
}

}  // namespace eddy::testing
