// Proves that prompts of the decay scan that go in chunks on the tensor cores give what the
// recurrence in float64 gives, for all heads and sizes that chunks take, in packs of sequences of
// all lengths with padding among them; that strong decays overflow nothing; that a lost row reaches
// neither rows before it nor other sequences; and that the bits of a sequence depend on its own
// rows alone.
//
// Tolerance. Operands of products are rounded to bf16, whose relative errors are at most 2^-9 and
// 1.1e-3 on average. A result is a sum of terms with four rounded factors or fewer (the scores with
// a query, a key, themselves and a value; the state with a key and a value, itself and a query):
// in the relative L2 norm about sqrt(4) * 1.1e-3 = 2.2e-3. The bound is more than three times that;
// a wrong index or a missing row gives errors above 0.1.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/kernels/cuda/cuda_test.h"
#include "tests/kernels/cuda/decay_scan_case.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

constexpr double kTolerance = 8e-3;

struct Lengths {
  int sequences, least, most;
};

// Sequences of the case's shape; decays between `strongest` and 1.
void Fill(DecayCase& c, Random& random, const Lengths& lengths, float strongest) {
  c.rows.clear();
  c.q.clear(), c.k.clear(), c.v.clear(), c.write.clear(), c.decay.clear();
  c.query_stride = c.queries() + 4 * Pick(random, 0, 2);
  c.key_stride = c.keys() + 4 * Pick(random, 0, 2);
  c.value_stride = c.values() + 4 * Pick(random, 0, 2);
  for (int i = 0; i < lengths.sequences; ++i) {
    const auto rows = static_cast<int>(Pick(random, lengths.least, lengths.most));
    c.rows.push_back(rows);
    c.q.push_back(Uniform(random, rows * c.queries(), -1, 1));
    c.k.push_back(Uniform(random, rows * c.keys(), -1, 1));
    c.v.push_back(Uniform(random, rows * c.values(), -1, 1));
    c.write.push_back(Uniform(random, rows * c.shape.states, 0, 2));
    c.decay.push_back(Uniform(random, rows * c.decays(), strongest, 1));
  }
}

DecayCase RandomShape(Random& random) {
  DecayCase c;
  DecayScanShape& s = c.shape;
  s.states = Pick(random, 1, 12);
  s.key_heads = s.states % 3 == 0 ? s.states / 3 : s.states;
  s.reads = Pick(random, 0, 2) > 0 ? 1 : Pick(random, 2, 3);
  s.query_heads = s.reads > 1 ? s.states * s.reads : s.states % 2 == 0 ? s.states / 2 : s.key_heads;
  const int64_t keys[] = {64, 128, 256, 8 * Pick(random, 1, 31)};
  const int64_t values[] = {64, 128, 16, 4 * Pick(random, 1, 40)};
  s.key_dim = keys[Pick(random, 0, 3)];
  s.value_dim = values[Pick(random, 0, 3)];
  if (s.key_dim * s.value_dim > 8000) s.states = s.key_heads = 1, s.query_heads = s.reads;
  c.channel_decay = Pick(random, 0, 1) == 0;
  c.writes = Pick(random, 0, 1) == 0;
  c.query_scale = Pick(random, 0, 1) == 0 ? 1.0f : 0.3f;
  return c;
}

// All sequences whole in one step, with padding of all lengths among them.
std::vector<Plan> Whole(Random& random, const DecayCase& c) {
  Plan plan;
  for (int i = 0; i < std::ssize(c.rows); ++i) {
    if (Pick(random, 0, 2) == 0) plan.Add(-1, 0, static_cast<int>(Pick(random, 1, 150)));
    plan.Add(i, 0, c.rows[i]);
  }
  return {plan};
}

// Each sequence in two steps: its state passes by memory.
std::vector<Plan> Halves(const DecayCase& c) {
  std::vector<Plan> plans(2);
  for (int i = 0; i < std::ssize(c.rows); ++i) {
    const int first = c.rows[i] / 2;
    if (first > 0) plans[0].Add(i, 0, first);
    plans[1].Add(i, first, c.rows[i] - first);
  }
  return plans;
}

Pool PoolOf(const DecayCase& c) { return Pool(std::ssize(c.rows) + 1, {c.state_size()}, 4, 4); }

void ExpectEqual(const DecayCase& c, const std::vector<Floats>& out, Pool& pool) {
  EXPECT_TRUE(pool.OthersAreUntouched(std::ssize(c.rows))) << c.Name();
  for (size_t i = 0; i < c.rows.size(); ++i) {
    const Truth truth = Exact(c, i);
    EXPECT_LT(Distance(out[i], truth.out), kTolerance) << c.Name() << ", " << c.rows[i] << " rows";
    EXPECT_LT(Distance(pool.At(i + 1, 0), truth.state), kTolerance)
        << c.Name() << ", " << c.rows[i] << " rows";
  }
}

TEST(DecayScanChunks, EqualTheRecurrenceForAllShapes) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(80)) {
    DecayCase c = RandomShape(random);
    Fill(c, random, {static_cast<int>(Pick(random, 1, 6)), 1, 200}, 0.7f);
    Pool pool = PoolOf(c);
    const auto plans = Pick(random, 0, 1) == 0 ? Whole(random, c) : Halves(c);
    ExpectEqual(c, RunPlans(c, plans, pool, /*chunks=*/true), pool);
  }
}

// With so few states, sequences of 4,096 rows and more are cut into segments.
TEST(DecayScanChunks, EqualTheRecurrenceForLongSequences) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(10)) {
    DecayCase c = RandomShape(random);
    Fill(c, random, {2, 3800, 5000}, 0.99f);
    Pool pool = PoolOf(c);
    ExpectEqual(c, RunPlans(c, Whole(random, c), pool, /*chunks=*/true), pool);
  }
}

// Factors down to zero, so that a chunk's decay is far below what a float holds.
TEST(DecayScanChunks, TakeAnyDecay) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(20)) {
    DecayCase c = RandomShape(random);
    Fill(c, random, {3, 32, 200}, 0.0f);
    for (Floats& decay : c.decay) {
      for (float& factor : decay) {
        const int64_t kind = Pick(random, 0, 9);
        if (kind == 0) factor = 0;
        if (kind == 1) factor = 1e-30f;
        if (kind == 2) factor = 1;
      }
    }
    Pool pool = PoolOf(c);
    ExpectEqual(c, RunPlans(c, Whole(random, c), pool, /*chunks=*/true), pool);
  }
}

TEST(DecayScanChunks, KeepALostRowFromTheRowsBeforeItAndFromOthers) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(40)) {
    DecayCase c = RandomShape(random);
    c.writes = true;
    Fill(c, random, {3, 40, 200}, 0.7f);
    const DecayCase good = c;
    std::vector<Floats>* const inputs[] = {&c.v, &c.k, &c.q, &c.write, &c.decay};
    Floats& input = (*inputs[trial % 5])[1];
    const auto lost = static_cast<int>(Pick(random, 0, c.rows[1] - 1));
    const float values[] = {kNan, std::numeric_limits<float>::infinity(), 3.4e38f};
    input[lost * (std::ssize(input) / c.rows[1])] = trial % 5 == 0 ? values[trial / 5 % 3] : kNan;
    Pool pool = PoolOf(c);
    const std::vector<Floats> out = RunPlans(c, Whole(random, c), pool, /*chunks=*/true);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(good, i);
      const int64_t clean = i == 1 ? lost * c.outputs() : std::ssize(out[i]);
      if (clean > 0) {
        const double size = std::sqrt(
            std::accumulate(truth.out_squares.begin(), truth.out_squares.begin() + clean, 0.0));
        EXPECT_LT(Distance(std::span(out[i]).first(clean), std::span(truth.out).first(clean), size),
                  kTolerance)
            << c.Name() << ", input " << trial % 5 << ", row " << lost;
      }
      if (i == 1) {
        EXPECT_FALSE(std::isfinite(out[i][clean])) << "the lost row does not show it";
      }
    }
  }
}

TEST(DecayScanChunks, GiveASequenceTheSameBitsInAnyCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(20)) {
    DecayCase c = RandomShape(random);
    Fill(c, random, {5, 2, 150}, 0.7f);
    if (trial == 0) Fill(c, random, {3, 20, 5000}, 0.99f);
    std::vector<Plan> alone(c.rows.size());
    for (int i = 0; i < std::ssize(c.rows); ++i) alone[i].Add(i, 0, c.rows[i]);
    Pool first = PoolOf(c), second = first.Fresh();
    const auto a = RunPlans(c, alone, first, /*chunks=*/true);
    const auto b = RunPlans(c, Whole(random, c), second, /*chunks=*/true);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      EXPECT_TRUE(SameBits(a[i], b[i])) << c.Name();
      EXPECT_TRUE(SameBits(first.At(i + 1, 0), second.At(i + 1, 0))) << c.Name();
    }
  }
}

// The normaliser of mLSTM: one column, in float, with or without chunks for others.
TEST(DecayScanColumns, EqualTheRecurrenceToFloat) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(20)) {
    DecayCase c;
    DecayScanShape& s = c.shape;
    s.states = s.key_heads = s.query_heads = Pick(random, 1, 6);
    s.key_dim = Pick(random, 0, 3) == 0 ? Pick(random, 257, 512) : Pick(random, 1, 256);
    s.value_dim = 1;
    c.ones = c.writes = true;
    Fill(c, random, {3, 20, trial == 0 ? 4000 : 200}, 0.7f);
    Pool pool(std::ssize(c.rows) + 1, {c.state_size()}, 1, 3);
    const auto plans = trial % 2 == 0 ? Whole(random, c) : Halves(c);
    const auto out = RunPlans(c, plans, pool, trial % 3 == 0);
    EXPECT_TRUE(pool.OthersAreUntouched(std::ssize(c.rows))) << c.Name();
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(c, i);
      EXPECT_LT(Distance(out[i], truth.out, truth.out_size), 1e-6) << c.Name();
      EXPECT_LT(Distance(pool.At(i + 1, 0), truth.state, truth.state_size), 1e-6) << c.Name();
    }
  }
}

}  // namespace
}  // namespace eddy
