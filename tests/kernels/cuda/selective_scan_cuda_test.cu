// Proves the selective scan on the GPU, with both decays, against the recurrence in float64 and the
// CPU twin, on random shapes, for sequences cut into steps at random among others, with padding and
// gaps, and for long prompts; that what is not a number stays where it is; and that the bits of a
// sequence do not depend on its company.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/rules/selective_scan/selective_scan.h"
#include "kernels/rules/selective_scan/selective_scan_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

struct Case {
  int64_t channels = 1, states = 1, row_stride = 0;
  bool exponential = false;
  DType x_type = DType::kF32;
  Floats rate_log = {};  // [channels, N]
  std::vector<int> rows = {};
  std::vector<Floats> x = {}, step = {};  // per sequence [rows, channels]
  std::vector<Floats> kq = {};            // per sequence [rows, 2 N]
  std::string Name() const {
    return std::to_string(channels) + " x " + std::to_string(states) +
           (exponential ? " exponential" : " longhorn");
  }
};

Case RandomCase(Random& random) {
  Case c;
  const int64_t sizes[] = {1, 4, 16, 64, 128, Pick(random, 1, 40), Pick(random, 41, 200)};
  c.states = sizes[Pick(random, 0, 6)];
  c.channels = Pick(random, 0, 1) == 0 ? 4 * Pick(random, 1, 40) : Pick(random, 1, 150);
  if (c.states > 40) c.channels = Pick(random, 1, 20);
  c.row_stride = 2 * c.states + Pick(random, 0, 9);
  c.exponential = Pick(random, 0, 1) == 0;
  c.x_type = Pick(random, 0, 1) == 0 ? DType::kF32 : DType::kBF16;
  c.rate_log = Uniform(random, c.channels * c.states, -3, 2);
  for (int64_t i = Pick(random, 1, 7); i > 0; --i) {
    const int rows = static_cast<int>(Pick(random, 0, 2) == 0 ? 1 : Pick(random, 1, 200));
    c.rows.push_back(rows);
    c.x.push_back(Uniform(random, rows * c.channels, -2, 2));
    for (float& x : c.x.back()) x = RoundTo(c.x_type, x);
    c.step.push_back(Uniform(random, rows * c.channels, 0, 0.9f));
    c.kq.push_back(Uniform(random, rows * 2 * c.states, -1, 1));
  }
  return c;
}

// `size` is what the outputs would be if nothing cancelled: what rounding is relative to.
struct Truth {
  std::vector<double> out, state;
  double size = 0;
};
Truth Exact(const Case& c, size_t sequence) {
  Truth truth{.out = {}, .state = std::vector<double>(c.states * c.channels, 0.0)};
  std::vector<double> magnitude = truth.state;
  for (int t = 0; t < c.rows[sequence]; ++t) {
    const float* k = c.kq[sequence].data() + t * 2 * c.states;
    const float* q = k + c.states;
    for (int64_t ch = 0; ch < c.channels; ++ch) {
      const double step = c.step[sequence][t * c.channels + ch];
      const double x = c.x[sequence][t * c.channels + ch];
      double out = 0, size = 0;
      for (int64_t n = 0; n < c.states; ++n) {
        const double rate = -std::exp(static_cast<double>(c.rate_log[ch * c.states + n]));
        const double kn = k[n];
        double& s = truth.state[n * c.channels + ch];
        double& m = magnitude[n * c.channels + ch];
        const double a = c.exponential ? std::exp(step * rate) : 1 - step * kn * kn;
        s = a * s + kn * step * x;
        m = a * m + std::abs(kn * step * x);
        out += q[n] * s;
        size += std::abs(q[n]) * m;
      }
      truth.size += size * size;
      truth.out.push_back(out);
    }
  }
  truth.size = std::sqrt(truth.size);
  return truth;
}

std::vector<Floats> RunPlans(const Case& c, const std::vector<Plan>& plans, Pool& pool) {
  for (int64_t slot = 1; slot <= std::ssize(c.rows); ++slot) {
    std::ranges::fill(pool.At(slot, 0), 0.0f);
  }
  pool.Write();
  std::vector<Floats> out;
  for (const Floats& x : c.x) out.emplace_back(x.size(), kNan);
  const DeviceBytes rate_log = Upload(c.rate_log), rates(c.rate_log.size() * 4);
  SelectiveScanRatesCuda(nullptr, c.channels, c.states, rate_log.as(), rates.as());
  for (const Plan& plan : plans) {
    const DeviceStep device(plan);
    const DeviceBytes x = UploadAs(c.x_type, Gather(plan, c.x, c.channels, c.channels));
    const DeviceBytes step = Upload(Gather(plan, c.step, c.channels, c.channels));
    const DeviceBytes kq = Upload(Gather(plan, c.kq, 2 * c.states, c.row_stride));
    const DeviceBytes y(plan.rows() * c.channels * 4);
    SelectiveScanCuda(device.step, {.channels = c.channels,
                                    .states = c.states,
                                    .x = x.as(),
                                    .x_type = c.x_type,
                                    .step = step.as(),
                                    .k = kq.as(),
                                    .q = kq.as() + c.states,
                                    .row_stride = c.row_stride,
                                    .rates = c.exponential ? rates.as() : nullptr,
                                    .state = pool.Field(0),
                                    .out = y.as()});
    Check(cudaDeviceSynchronize());
    Scatter(plan, y.Read(), c.channels, c.channels, out);
  }
  pool.Read();
  return out;
}

Pool MakePool(const Case& c, Random& random) {
  return Pool(std::ssize(c.rows) + 1, {c.states * c.channels}, Pick(random, 0, 2) == 0 ? 1 : 4,
              Pick(random, 0, 1) * 4);
}

TEST(SelectiveScanCuda, EqualsTheRecurrenceInAnyCutAndCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(60)) {
    const Case c = RandomCase(random);
    Pool pool = MakePool(c, random);
    const std::vector<Floats> out = RunPlans(c, RandomPlans(random, c.rows), pool);
    EXPECT_TRUE(pool.OthersAreUntouched(std::ssize(c.rows))) << c.Name();
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(c, i);
      EXPECT_LT(Distance(out[i], truth.out, truth.size), 1e-5) << c.Name();
      EXPECT_LT(Distance(pool.At(i + 1, 0), truth.state), 1e-5) << c.Name();
    }
  }
}

Case PromptCase(Random& random, int most_rows) {
  Case c = RandomCase(random);
  c.channels = 8 * Pick(random, 1, 2) - Pick(random, 0, 1);
  c.states = Pick(random, 0, 1) == 0 ? 16 : Pick(random, 1, 40);
  c.row_stride = 2 * c.states + 4 * Pick(random, 0, 1);
  c.rate_log = Uniform(random, c.channels * c.states, -4, 4);
  c.rows.clear(), c.x.clear(), c.step.clear(), c.kq.clear();
  for (int64_t i = Pick(random, 1, 4); i > 0; --i) {
    const int rows = static_cast<int>(Pick(random, 2, i == 1 ? most_rows : most_rows / 20));
    c.rows.push_back(rows);
    c.x.push_back(Uniform(random, rows * c.channels, -2, 2));
    for (float& x : c.x.back()) x = RoundTo(c.x_type, x);
    c.step.push_back(Uniform(random, rows * c.channels, 0, 0.9f));
    c.kq.push_back(Uniform(random, rows * 2 * c.states, -1, 1));
  }
  return c;
}

Plan WholePlan(const std::vector<int>& rows, bool padded) {
  Plan plan;
  for (int i = 0; i < std::ssize(rows); ++i) {
    if (padded) plan.Add(-1, 0, 1 + 3 * i);
    plan.Add(i, 0, rows[i]);
  }
  return plan;
}

// Whole prompts of up to 20,000 rows in one step.
TEST(SelectiveScanCuda, FollowsLongPrompts) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  double worst[2] = {};
  for (int trial = 0; trial < 12; ++trial) {
    const Case c = PromptCase(random, 20'000);
    Pool pool = MakePool(c, random);
    const std::vector<Floats> out = RunPlans(c, {WholePlan(c.rows, trial % 2 == 0)}, pool);
    EXPECT_TRUE(pool.OthersAreUntouched(std::ssize(c.rows))) << c.Name();
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(c, i);
      const double off[] = {Distance(out[i], truth.out, truth.size),
                            Distance(pool.At(i + 1, 0), truth.state)};
      for (int j = 0; j < 2; ++j) {
        EXPECT_LT(off[j], 1e-5) << c.Name() << ", " << c.rows[i] << " rows, " << j;
        worst[j] = std::max(worst[j], off[j]);
      }
    }
  }
  std::printf("out %.1e, state %.1e\n", worst[0], worst[1]);
}

TEST(SelectiveScanCuda, KeepsWhatIsNotANumberFromEarlierRowsAndFromOthers) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial = 0; trial < 8; ++trial) {
    Case c = PromptCase(random, 2000);
    Pool pool = MakePool(c, random), alone = pool.Fresh();
    const std::vector<Floats> good = RunPlans(c, {WholePlan(c.rows, true)}, pool);
    std::vector<Plan> one_by_one;
    for (int i = 0; i < std::ssize(c.rows); ++i) {
      one_by_one.emplace_back();
      one_by_one.back().Add(i, 0, c.rows[i]);
    }
    const std::vector<Floats> same = RunPlans(c, one_by_one, alone);
    const size_t sick = Pick(random, 0, std::ssize(c.rows) - 1);
    const int rows = c.rows[sick], row = static_cast<int>(Pick(random, 0, rows - 1));
    const int64_t channel = Pick(random, 0, c.channels - 1);
    (trial % 2 == 0 ? c.x : c.step)[sick][row * c.channels + channel] = kNan;
    const std::vector<Floats> bad = RunPlans(c, {WholePlan(c.rows, true)}, pool);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      EXPECT_TRUE(SameBits(good[i], same[i])) << c.Name();
      for (size_t at = 0; at < good[i].size(); ++at) {
        const int64_t t = static_cast<int64_t>(at) / c.channels;
        if (i == sick && t >= row && static_cast<int64_t>(at) % c.channels == channel) {
          EXPECT_TRUE(std::isnan(bad[i][at])) << c.Name();
        } else {
          EXPECT_EQ(good[i][at], bad[i][at]) << c.Name();
        }
      }
    }
  }
}

TEST(SelectiveScanCuda, AgreesWithItsTwin) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(10)) {
    const Case c = RandomCase(random);
    Pool pool = MakePool(c, random);
    const std::vector<Floats> out = RunPlans(c, RandomPlans(random, c.rows), pool);
    Floats rates(c.rate_log.size());
    for (int64_t n = 0; n < c.states; ++n) {
      for (int64_t ch = 0; ch < c.channels; ++ch) {
        rates[n * c.channels + ch] = -std::exp(c.rate_log[ch * c.states + n]);
      }
    }
    for (size_t i = 0; i < c.rows.size(); ++i) {
      Floats state(c.states * c.channels, 0.0f), want(c.x[i].size()), scratch(2 * c.channels);
      const int32_t starts[] = {0, c.rows[i]}, slot = 1;
      SelectiveScanCpu(
          {.rows = c.rows[i], .sequences = 1, .row_start = starts, .slots = &slot},
          {.channels = c.channels,
           .states = c.states,
           .x = c.x[i].data(),
           .step = c.step[i].data(),
           .k = c.kq[i].data(),
           .q = c.kq[i].data() + c.states,
           .row_stride = 2 * c.states,
           .rates = c.exponential ? rates.data() : nullptr,
           .state = {.base = reinterpret_cast<std::byte*>(state.data()) - 64, .stride = 64},
           .out = want.data(),
           .scratch = scratch.data()});
      EXPECT_LT(Distance(out[i], std::vector<double>(want.begin(), want.end())), 1e-5) << c.Name();
    }
  }
}

TEST(SelectiveScanCuda, GivesADecodingRowTheSameBitsInAnyCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(20)) {
    const Case c = RandomCase(random);
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
