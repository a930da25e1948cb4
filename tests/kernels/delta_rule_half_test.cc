// Proves the delta rule on states of bfloat16, on the CPU: sequences of random shapes are fed
// single rows, which go into the ring, and many, and are flushed, in random order; a float64
// recurrence that rounds its state where the rule says it does, and nowhere else, must give the
// same.
#include "kernels/rules/delta_rule/delta_rule_half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/state_layout.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

struct Case {
  DeltaRuleShape shape = {};
  DeltaDecay decay = DeltaDecay::kNone;
  bool own_w = false;
  int pending_updates = 16;
};

Case RandomCase(std::mt19937& random, int index) {
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  const int64_t heads = draw(1, 2);
  Case c = {.shape = {.heads = heads,
                      .value_heads = heads * draw(1, 2),
                      .key_dim = draw(16, 40),
                      .value_dim = draw(32, 70)},
            .decay = static_cast<DeltaDecay>(index % 3),
            .own_w = draw(0, 1) == 1,
            .pending_updates = std::vector<int>{1, 2, 7, 16}[static_cast<size_t>(draw(0, 3))]};
  return c;
}

int64_t Decays(const Case& c) {
  if (c.decay == DeltaDecay::kNone) return 0;
  return c.shape.value_heads * (c.decay == DeltaDecay::kChannel ? c.shape.key_dim : 1);
}

// Inputs of some rows.
struct Rows {
  Rows(const Case& c, int64_t rows, std::mt19937& random) {
    const auto& [heads, value_heads, key_dim, value_dim] = c.shape;
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0, 1);
    const auto fill = [&](std::vector<float>& to, int64_t count, float scale) {
      to.resize(static_cast<size_t>(count));
      for (float& x : to) x = scale * normal(random);
    };
    const float unit = 1 / std::sqrt(static_cast<float>(key_dim));
    fill(q, rows * heads * key_dim, unit);
    fill(k, rows * heads * key_dim, unit);
    fill(w, c.own_w ? rows * value_heads * key_dim : 0, unit);
    fill(v, rows * value_heads * value_dim, 1);
    for (int64_t i = 0; i < rows * value_heads; ++i) beta.push_back(0.8f * uniform(random));
    for (int64_t i = 0; i < rows * Decays(c); ++i) {
      decay.push_back(std::exp(-0.3f * uniform(random)));
      log_decay.push_back(std::log(decay.back()));
    }
  }
  std::vector<float> q, k, w, v, beta, decay, log_decay;
};

// The recurrence, in float64.
class Reference {
 public:
  Reference(const Case& c, std::vector<double> state) : c_(c), s_(std::move(state)) { Round(); }

  // Of row `row` of `in`; also |e| / |v|, as a mean over the value heads.
  std::vector<double> Advance(const Rows& in, int64_t row, double* residual) {
    const auto& [heads, value_heads, key_dim, value_dim] = c_.shape;
    std::vector<double> out;
    *residual = 0;
    for (int64_t j = 0; j < value_heads; ++j) {
      const int64_t at = row * value_heads + j;
      const float* q =
          &in.q[static_cast<size_t>((row * heads + j / (value_heads / heads)) * key_dim)];
      const float* k =
          &in.k[static_cast<size_t>((row * heads + j / (value_heads / heads)) * key_dim)];
      const float* w = c_.own_w ? &in.w[static_cast<size_t>(at * key_dim)] : k;
      const double beta = double{in.beta[static_cast<size_t>(at)]};
      double missed = 0, length = 0;
      for (int64_t m = 0; m < value_dim; ++m) {
        const double v = double{in.v[static_cast<size_t>(at * value_dim + m)]};
        double e = v, o = 0;
        for (int64_t i = 0; i < key_dim; ++i) {
          double& s = s_[static_cast<size_t>((j * key_dim + i) * value_dim + m)];
          if (c_.decay == DeltaDecay::kHead) s *= double{in.decay[static_cast<size_t>(at)]};
          if (c_.decay == DeltaDecay::kChannel) {
            s *= double{in.decay[static_cast<size_t>(at * key_dim + i)]};
          }
          e -= s * double{k[i]};
        }
        for (int64_t i = 0; i < key_dim; ++i) {
          double& s = s_[static_cast<size_t>((j * key_dim + i) * value_dim + m)];
          s += double{w[i]} * beta * e;
          o += s * double{q[i]};
        }
        out.push_back(o);
        missed += e * e;
        length += v * v;
      }
      *residual += std::sqrt(missed / length) / static_cast<double>(value_heads);
    }
    return out;
  }
  void Round() {
    for (double& x : s_) x = double{FromBF16(ToBF16(static_cast<float>(x)))};
  }
  const std::vector<double>& state() const { return s_; }

 private:
  const Case c_;
  std::vector<double> s_;
};

// Records of a state and its ring; all of it is NaN at first.
class Pool {
 public:
  Pool(const Case& c, int32_t slots) : c_(c), needs_(Needs(c)), layout_({&needs_, 1}) {
    bytes_.assign(static_cast<size_t>(layout_.record_bytes() * (slots + 1)), std::byte{0xFF});
  }
  void Fill(int32_t slot, const std::vector<double>& state) {
    for (size_t i = 0; i < state.size(); ++i) {
      At<uint16_t>(slot, 0)[i] = ToBF16(static_cast<float>(state[i]));
    }
    const size_t count = needs_.state.size() - 1;
    if (count == 0) return;
    std::memset(At<std::byte>(slot, count), 0,
                static_cast<size_t>(FieldBytes(needs_.state[count])));
  }
  std::vector<float> State(int32_t slot) {
    std::vector<float> values(static_cast<size_t>(FieldBytes(needs_.state[0]) / 2));
    FromBF16(At<const uint16_t>(slot, 0), std::ssize(values), values.data());
    return values;
  }
  std::vector<std::byte> StateBytes(int32_t slot) {
    const auto* at = At<std::byte>(slot, 0);
    return {at, at + FieldBytes(needs_.state[0])};
  }
  bool Untouched(int32_t slot) {
    const auto* at = At<std::byte>(slot, 0);
    return std::all_of(at, at + layout_.record_bytes(),
                       [](std::byte x) { return x == std::byte{0xFF}; });
  }
  DeltaRuleArgs Args() {
    DeltaRuleArgs args = {.shape = c_.shape, .channel_decay = c_.decay == DeltaDecay::kChannel};
    for (size_t f = 0; f < needs_.state.size(); ++f) {
      const Field& field = needs_.state[f];
      const FieldView view = {.base = At<std::byte>(0, f),
                              .stride = layout_.record_bytes(),
                              .dtype = field.dtype,
                              .shape = field.shape};
      if (field.name == "state") args.state = view;
      if (field.name == "ring_w") args.ring.w = view;
      if (field.name == "ring_n") args.ring.n = view;
      if (field.name == "ring_a") args.ring.a = view;
      if (field.name == "ring_count") args.ring.count = view;
    }
    scratch_.assign(static_cast<size_t>(DeltaRuleScratchFloats(c_.shape, DType::kBF16)),
                    std::nanf(""));
    args.scratch = scratch_.data();
    return args;
  }

 private:
  static LayerNeeds Needs(const Case& c) {
    LayerNeeds needs;
    needs.state = {{.name = "state",
                    .dtype = DType::kBF16,
                    .shape = {c.shape.value_heads, c.shape.key_dim, c.shape.value_dim, 1}}};
    for (Field& field : DeltaRingFields(c.shape, c.decay, c.pending_updates)) {
      needs.state.push_back(std::move(field));
    }
    return needs;
  }
  template <typename T>
  T* At(int32_t slot, size_t field) {
    return reinterpret_cast<T*>(bytes_.data() + slot * layout_.record_bytes() +
                                layout_.offset(0, field));
  }

  const Case c_;
  const LayerNeeds needs_;
  const StateLayout layout_;
  std::vector<std::byte> bytes_;
  std::vector<float> scratch_;
};

// The sequence in slot 2, with one that has no slot before it in each step.
class Life {
 public:
  Life(const Case& c, std::mt19937& random)
      : c_(c), random_(random), pool_(c, 3), reference_(c, State()) {
    pool_.Fill(kSlot, reference_.state());
  }

  // `single`: one row that goes into the ring.
  void Feed(int64_t rows, bool single) {
    const Rows mine(c_, rows + 1, random_);  // the first is nobody's
    const auto width = static_cast<size_t>(c_.shape.value_heads * c_.shape.value_dim);
    std::vector<float> out(static_cast<size_t>(rows + 1) * width, 5.0f);
    std::vector<float> told(static_cast<size_t>(rows + 1), 5.0f);
    const std::vector<int32_t> starts = {0, 1, static_cast<int32_t>(rows + 1)};
    const std::vector<int32_t> slots = {kNoSlot, kSlot};
    DeltaRuleArgs args = pool_.Args();
    args.q = mine.q.data();
    args.k = mine.k.data();
    if (c_.own_w) args.w = mine.w.data();
    args.v = mine.v.data();
    args.beta = mine.beta.data();
    if (c_.decay != DeltaDecay::kNone) args.decay = mine.decay.data();
    if (c_.decay == DeltaDecay::kHead) args.log_decay = mine.log_decay.data();
    args.out = out.data();
    args.readouts = {.residual = told.data()};
    DeltaRuleCpu({.rows = static_cast<int>(rows + 1),
                  .sequences = 2,
                  .single_row_sequences = single ? 2 : 1,
                  .row_start = starts.data(),
                  .slots = slots.data()},
                 args);
    EXPECT_TRUE(std::all_of(out.begin(), out.begin() + static_cast<ptrdiff_t>(width),
                            [](float x) { return x == 0; }));
    for (int64_t row = 1; row <= rows; ++row) {
      double residual = 0;
      for (double x : reference_.Advance(mine, row, &residual)) expected_.push_back(x);
      expected_told_.push_back(residual);
    }
    got_.insert(got_.end(), out.begin() + static_cast<ptrdiff_t>(width), out.end());
    told_.insert(told_.end(), told.begin() + 1, told.end());
    if (single && ++pending_ < c_.pending_updates) return;
    reference_.Round();
    pending_ = 0;
  }
  void Flush() {
    const std::vector<int32_t> slots = {kNoSlot, kSlot};
    DeltaRuleFlushHalf({.sequences = 2, .slots = slots.data()}, pool_.Args());
    if (pending_ > 0) reference_.Round();
    pending_ = 0;
  }
  // Float32 moves a few numbers across the middle between two of bfloat16, which are then up to
  // 2^-7 of themselves off: five of the 128 or more that there are make 8e-4, one rounding too many
  // or too few 1.7e-3.
  void ExpectTheReference() {
    EXPECT_LE(Distance(got_, expected_), kTolerance) << "outputs";
    EXPECT_LE(Distance(told_, expected_told_), kTolerance) << "residuals";
    EXPECT_LE(Distance(pool_.State(kSlot), reference_.state()), kTolerance) << "state";
    for (int32_t other : {0, 1, 3}) EXPECT_TRUE(pool_.Untouched(other)) << "slot " << other;
  }
  Pool& pool() { return pool_; }
  static constexpr int32_t kSlot = 2;
  static constexpr double kTolerance = 1.2e-3;

 private:
  std::vector<double> State() {
    std::normal_distribution<double> normal;
    std::vector<double> state(
        static_cast<size_t>(c_.shape.value_heads * c_.shape.key_dim * c_.shape.value_dim));
    for (double& x : state) x = 0.3 * normal(random_);
    return state;
  }
  static double Distance(const std::vector<float>& got, const std::vector<double>& want) {
    EXPECT_EQ(got.size(), want.size());
    double off = 0, size = 1e-30;
    for (size_t i = 0; i < want.size(); ++i) {
      off += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
      size += want[i] * want[i];
    }
    const double distance = std::sqrt(off / size);
    return std::isnan(distance) ? INFINITY : distance;
  }

  const Case c_;
  std::mt19937& random_;
  Pool pool_;
  Reference reference_;
  int pending_ = 0;
  std::vector<double> expected_, expected_told_;
  std::vector<float> got_, told_;
};

TEST(DeltaRuleHalf, RoundsItsStateWhereTheRingIsFullOrEmptiedAndNowhereElse) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    const Case c = RandomCase(random, i);
    SCOPED_TRACE("EDDY_TEST_SEED=" + std::to_string(seed) + ", case " + std::to_string(i));
    Life life(c, random);
    for (int step = 0; step < 60; ++step) {
      const auto kind = random() % 10;
      if (kind == 0) life.Flush();
      if (kind == 1) life.Feed(1 + static_cast<int64_t>(random() % 6), /*single=*/false);
      if (kind > 1) life.Feed(1, /*single=*/true);
    }
    life.Flush();
    life.ExpectTheReference();
  }
}

TEST(DeltaRuleHalf, WritesItsStateAtEveryCthTokenAlone) {
  std::mt19937 random(testing::TestSeed());
  const Case c = {.shape = {1, 2, 8, 40}, .decay = DeltaDecay::kHead, .pending_updates = 5};
  Life life(c, random);
  for (int token = 1; token <= 23; ++token) {
    const auto before = life.pool().StateBytes(Life::kSlot);
    life.Feed(1, /*single=*/true);
    EXPECT_EQ(life.pool().StateBytes(Life::kSlot) != before, token % 5 == 0) << token;
  }
  life.Flush();
  const auto flushed = life.pool().StateBytes(Life::kSlot);
  life.Flush();
  EXPECT_EQ(life.pool().StateBytes(Life::kSlot), flushed) << "a second flush changes something";
  life.ExpectTheReference();
}

// Wide enough for the chunk form, which takes the state in float and leaves it rounded once.
TEST(DeltaRuleHalf, TakesTheChunkFormWhereItPays) {
  std::mt19937 random(testing::TestSeed());
  const Case c = {.shape = {1, 1, 256, 256}, .decay = DeltaDecay::kHead};
  Life life(c, random);
  life.Feed(1, /*single=*/true);
  life.Feed(80, /*single=*/false);
  life.Feed(1, /*single=*/true);
  life.Flush();
  life.ExpectTheReference();
}

}  // namespace
}  // namespace eddy
