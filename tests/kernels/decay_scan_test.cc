// Proves the decay scan against vectors computed by hand in float64 (design notes 15.1), and
// against a float64 recurrence written here from the formula, for random shapes, groups and splits.
#include "kernels/rules/decay_scan/decay_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/float64.h"

namespace eddy {
namespace {

using testing::Vector;

// The three tokens of the vectors: K = V = 2, one state, S = 0.
const std::vector<float> kQ = {1, -2, .5, 1.5, 2, 1};
const std::vector<float> kK = {3, 1, 1, -1, 2, 2};
const std::vector<float> kV = {1, 2, -1, .5, .5, -1.5};
constexpr double kA[3] = {.5, -1, .1};
constexpr DecayScanShape kOne = {
    .states = 1, .key_heads = 1, .query_heads = 1, .key_dim = 2, .value_dim = 2};

// A step of one sequence in slot 1 of a pool of two records.
struct OneSequence {
  explicit OneSequence(size_t state_floats) : pool(2 * state_floats) {}
  FieldView State() {
    return {.base = reinterpret_cast<std::byte*>(pool.data()),
            .stride = static_cast<int64_t>(pool.size() / 2 * sizeof(float))};
  }
  std::vector<float> Final() const {
    return {pool.begin() + static_cast<std::ptrdiff_t>(pool.size() / 2), pool.end()};
  }
  void Run(const DecayScanArgs& args, int32_t begin, int32_t end) {
    const std::vector<int32_t> starts = {begin, end};
    DecayScanCpu({.rows = end - begin, .sequences = 1, .row_start = starts.data(), .slots = &slot},
                 args);
  }
  std::vector<float> pool;
  int32_t slot = 1;
};

TEST(DecayScan, GivesTheThreeTokenVectorsOfGla) {
  std::vector<float> q = kQ, decay, out(6);
  for (float& value : q) value /= std::sqrt(2.0f);
  for (double a : kA) {
    for (double shift : {0.0, 1.0}) {
      decay.push_back(static_cast<float>(std::exp(testing::LogSigmoid(a + shift) / 16)));
    }
  }
  OneSequence sequence(4);
  sequence.Run({.shape = kOne,
                .q = q.data(),
                .k = kK.data(),
                .query_stride = 2,
                .key_stride = 2,
                .v = kV.data(),
                .decay = decay.data(),
                .channel_decay = true,
                .state = sequence.State(),
                .out = out.data()},
               0, 3);
  testing::ExpectClose(
      out, Vector{0.707106781, 1.414213562, 2.699877864, 3.631988776, 5.876568575, 2.806201817},
      2e-7, "outputs");
  testing::ExpectClose(sequence.Final(),
                       Vector{2.693980723, 2.789275094, 2.922761533, -1.609981519}, 2e-7, "state");
}

// delta = softplus(a), A = -1; the skip of 0.5 is the layer's.
TEST(DecayScan, GivesTheThreeTokenVectorsOfMamba2) {
  std::vector<float> v = kV, decay, out(6);
  for (size_t t = 0; t < 3; ++t) {
    const double delta = testing::Softplus(kA[t]);
    decay.push_back(static_cast<float>(std::exp(-delta)));
    for (size_t p = 0; p < 2; ++p) v[2 * t + p] = static_cast<float>(delta * double{kV[2 * t + p]});
  }
  OneSequence sequence(4);
  sequence.Run({.shape = kOne,
                .q = kQ.data(),
                .k = kK.data(),
                .query_stride = 2,
                .key_stride = 2,
                .v = v.data(),
                .decay = decay.data(),
                .state = sequence.State(),
                .out = out.data()},
               0, 3);
  for (size_t i = 0; i < 6; ++i) out[i] += 0.5f * kV[i];
  testing::ExpectClose(
      out, Vector{1.474076984, 2.948153968, 1.949583694, 4.366013169, 4.702244795, -2.639445758},
      2e-7, "outputs");
  // The notes have rows (p, n), the rule (n, p).
  testing::ExpectClose(sequence.Final(),
                       Vector{1.610388254, -0.129192239, 1.231468287, -1.631061281}, 2e-7, "state");
}

struct Case {
  DecayScanShape shape;
  bool channel_decay = false;
  int64_t rows = 1;
  int64_t padding = 0;  // between the rows of q and k
  std::vector<float> q, k, v, decay;

  int64_t query_stride() const { return shape.query_heads * shape.key_dim + padding; }
  int64_t key_stride() const { return shape.key_heads * shape.key_dim + padding; }
  int64_t out_width() const { return shape.states * shape.reads * shape.value_dim; }
  size_t state_floats() const {
    return static_cast<size_t>(shape.states * shape.key_dim * shape.value_dim);
  }
};

Case RandomCase(std::mt19937& random) {
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  Case made;
  DecayScanShape& s = made.shape;
  s.key_heads = draw(1, 3);
  s.states = s.key_heads * draw(1, 2);
  s.reads = draw(1, 3);
  // One query for all states of a group, or one of its own for each read.
  s.query_heads = s.reads == 1 && draw(0, 1) == 0 ? s.key_heads : s.states * s.reads;
  s.key_dim = draw(0, 5) == 0 ? 1 : draw(2, 70), s.value_dim = draw(1, 70);
  made.channel_decay = draw(0, 1) == 0;
  made.rows = draw(0, 1) == 0 ? draw(1, 200) : draw(1, 20);
  made.padding = draw(0, 5);
  const auto seed = static_cast<uint32_t>(random());
  made.q = testing::RandomRows(made.rows, made.query_stride(), seed);
  made.k = testing::RandomRows(made.rows, made.key_stride(), seed + 1);
  made.v = testing::RandomRows(made.rows, s.states * s.value_dim, seed + 2);
  made.decay =
      testing::RandomRows(made.rows, s.states * (made.channel_decay ? s.key_dim : 1), seed + 3);
  for (float& value : made.decay) value = std::exp(-0.1f * std::abs(value));
  return made;
}

// Outputs, and the state after them.
std::pair<Vector, Vector> Reference(const Case& c) {
  const DecayScanShape& s = c.shape;
  const auto at = [](const std::vector<float>& x, int64_t i) {
    return static_cast<double>(x[static_cast<size_t>(i)]);
  };
  Vector out(static_cast<size_t>(c.rows * c.out_width())), state(c.state_floats());
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t o = 0; o < s.states * s.reads; ++o) {
      const int64_t j = o / s.reads, query = o / (s.states * s.reads / s.query_heads);
      for (int64_t i = 0; i < s.key_dim; ++i) {
        const int64_t head = t * s.states + j;
        const double decay = at(c.decay, c.channel_decay ? head * s.key_dim + i : head);
        const int64_t key_head = j / (s.states / s.key_heads);
        const double k = at(c.k, t * c.key_stride() + key_head * s.key_dim + i);
        const double q = at(c.q, t * c.query_stride() + query * s.key_dim + i);
        for (int64_t m = 0; m < s.value_dim; ++m) {
          double& element = state[static_cast<size_t>((j * s.key_dim + i) * s.value_dim + m)];
          if (o % s.reads == 0) {
            element = decay * element + k * at(c.v, (t * s.states + j) * s.value_dim + m);
          }
          out[static_cast<size_t>(t * c.out_width() + o * s.value_dim + m)] += q * element;
        }
      }
    }
  }
  return {out, state};
}

TEST(DecayScan, EqualsItsFormulaForRandomShapesAndSplits) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const Case c = RandomCase(random);
    const DecayScanShape& s = c.shape;
    const std::string what = "round " + std::to_string(round) + ", K " + std::to_string(s.key_dim) +
                             ", V " + std::to_string(s.value_dim) + ", reads " +
                             std::to_string(s.reads) + ", rows " + std::to_string(c.rows);
    OneSequence whole(c.state_floats()), split(c.state_floats());
    std::vector<float> out(static_cast<size_t>(c.rows * c.out_width()), -1.0f);
    DecayScanArgs args = {.shape = s,
                          .q = c.q.data(),
                          .k = c.k.data(),
                          .query_stride = c.query_stride(),
                          .key_stride = c.key_stride(),
                          .v = c.v.data(),
                          .decay = c.decay.data(),
                          .channel_decay = c.channel_decay,
                          .state = whole.State(),
                          .out = out.data()};
    whole.Run(args, 0, static_cast<int32_t>(c.rows));
    const auto [expected, state] = Reference(c);
    testing::ExpectClose(out, expected, 2e-6, what);
    testing::ExpectClose(whole.Final(), state, 2e-6, what + ", state");

    std::vector<float> parts(out.size(), -1.0f);
    args.state = split.State();
    args.out = parts.data();
    for (int32_t begin = 0; begin < c.rows;) {
      const auto end = static_cast<int32_t>(
          std::min<int64_t>(c.rows, begin + 1 + static_cast<int64_t>(random() % 30)));
      split.Run(args, begin, end);
      begin = end;
    }
    EXPECT_EQ(parts, out) << what << ": splits show";
    EXPECT_EQ(split.pool, whole.pool) << what << ": splits show";
  }
}

TEST(DecayScan, GivesZerosToRowsOfNobodyAndLeavesOthersAlone) {
  const std::vector<float> decay(6, 0.5f);
  std::vector<float> out(6, -1.0f);
  OneSequence sequence(4);
  sequence.slot = kNoSlot;
  std::fill(sequence.pool.begin(), sequence.pool.end(), 7.0f);
  sequence.Run({.shape = kOne,
                .q = kQ.data(),
                .k = kK.data(),
                .query_stride = 2,
                .key_stride = 2,
                .v = kV.data(),
                .decay = decay.data(),
                .state = sequence.State(),
                .out = out.data()},
               1, 3);
  EXPECT_EQ(out, (std::vector<float>{-1, -1, 0, 0, 0, 0}));
  EXPECT_EQ(sequence.pool, std::vector<float>(8, 7.0f));
}

}  // namespace
}  // namespace eddy
