// Proves the decay scan on the GPU, with both kinds of decay and all kinds of heads, against the
// recurrence in float64 and the CPU twin, on random shapes, for sequences cut into steps at random
// among others, with padding and gaps; and that a decoding row's bits do not depend on its company.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/rules/decay_scan/decay_scan.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/kernels/cuda/decay_scan_case.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

TEST(DecayScanCuda, EqualsTheRecurrenceInAnyCutAndCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(60)) {
    const DecayCase c = RandomDecayCase(random);
    Pool pool = MakePool(c, random);
    const std::vector<Floats> out = RunPlans(c, RandomPlans(random, c.rows), pool);
    EXPECT_TRUE(pool.OthersAreUntouched(std::ssize(c.rows))) << c.Name();
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(c, i);
      EXPECT_LT(Distance(out[i], truth.out, truth.out_size), 1e-5) << c.Name();
      EXPECT_LT(Distance(pool.At(i + 1, 0), truth.state, truth.state_size), 1e-5) << c.Name();
    }
  }
}

// Through whichever input it is lost.
TEST(DecayScanCuda, KeepsALostRowFromTheRowsBeforeIt) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(40)) {
    DecayCase c = RandomDecayCase(random);
    c.shape = {.states = 2, .key_heads = 2, .query_heads = 2, .key_dim = 64, .value_dim = 32};
    c.ones = false;
    c.writes = true;
    Refill(c, random);
    const DecayCase good = c;
    std::vector<Floats>* const inputs[] = {&c.q, &c.k, &c.v, &c.write, &c.decay};
    std::vector<Floats>& input = *inputs[trial % 5];
    std::vector<int> lost;
    std::vector<Plan> whole(c.rows.size());
    for (int i = 0; i < std::ssize(c.rows); ++i) {
      lost.push_back(static_cast<int>(Pick(random, 0, c.rows[i] - 1)));
      input[i][lost[i] * (std::ssize(input[i]) / c.rows[i])] = kNan;
      whole[i].Add(i, 0, c.rows[i]);
    }
    Pool pool = MakePool(c, random);
    const std::vector<Floats> out = RunPlans(c, whole, pool);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(good, i);
      const int64_t before = lost[i] * c.outputs();
      EXPECT_LT(Distance(std::span(out[i]).first(before), truth.out, truth.out_size), 1e-5)
          << c.Name() << ", row " << lost[i];
      EXPECT_TRUE(std::isnan(out[i][before])) << "the lost row does not show it";
    }
  }
}

TEST(DecayScanCuda, AgreesWithItsTwin) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(10)) {
    DecayCase c = RandomDecayCase(random);
    c.ones = c.writes = false;
    c.query_scale = 1;
    Pool pool = MakePool(c, random);
    const std::vector<Floats> out = RunPlans(c, RandomPlans(random, c.rows), pool);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      Floats state(c.state_size(), 0.0f), want(c.rows[i] * c.outputs());
      const int32_t starts[] = {0, c.rows[i]}, slot = 1;
      DecayScanCpu(
          {.rows = c.rows[i], .sequences = 1, .row_start = starts, .slots = &slot},
          {.shape = c.shape,
           .q = c.q[i].data(),
           .k = c.k[i].data(),
           .query_stride = c.queries(),
           .key_stride = c.keys(),
           .v = c.v[i].data(),
           .decay = c.decay[i].data(),
           .channel_decay = c.channel_decay,
           .state = {.base = reinterpret_cast<std::byte*>(state.data()) - 64, .stride = 64},
           .out = want.data()});
      EXPECT_LT(Distance(out[i], std::vector<double>(want.begin(), want.end())), 1e-5) << c.Name();
    }
  }
}

TEST(DecayScanCuda, GivesADecodingRowTheSameBitsInAnyCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(20)) {
    const DecayCase c = RandomDecayCase(random);
    Pool first = MakePool(c, random), second = first.Fresh();
    const auto a = RunPlans(c, DecodingPlans(random, c.rows, /*together=*/false), first);
    const auto b = RunPlans(c, DecodingPlans(random, c.rows, /*together=*/true), second);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      EXPECT_TRUE(SameBits(a[i], b[i])) << c.Name();
      EXPECT_TRUE(SameBits(first.At(i + 1, 0), second.At(i + 1, 0))) << c.Name();
    }
  }
}

}  // namespace
}  // namespace eddy
