// Proves the Kalman filters on the GPU against the recurrence in float64 and the CPU twin, on
// random shapes, for sequences cut into steps at random among others, with padding and gaps, and
// for long prompts at extreme gains; that asking for read-outs changes no bit; that what is not a
// number stays where it is; and that the bits of a sequence do not depend on its company.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/rules/kalman/kalman.h"
#include "kernels/rules/kalman/kalman_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

struct Case {
  int64_t channels = 1, state_dim = 1;
  bool prior = false;
  Floats rate_log = {}, step_raw = {}, process_noise = {};  // [M, Sn]
  Discretization discretization = Discretization::kOrnsteinUhlenbeck;
  bool floored = true;
  float noise_max = 0;
  int64_t value_stride = 0, key_stride = 0;
  std::vector<int> rows = {};
  std::vector<Floats> v = {}, certainty = {};  // per sequence [rows, M]
  std::vector<Floats> kq = {};                 // per sequence [rows, 2 Sn]
  std::vector<Floats> weight = {};             // per sequence [rows, M]
  bool weighted = false;
  std::vector<Floats> lambda = {}, eta = {};  // per sequence [M, Sn], at the start; empty: 1 and 0
  int64_t states() const { return channels * state_dim; }
  std::string Name() const { return std::to_string(channels) + " x " + std::to_string(state_dim); }
};

void AddSequence(Random& random, Case& c, int rows, float log_certainty) {
  c.rows.push_back(rows);
  c.v.push_back(Uniform(random, rows * c.channels, -3, 3));
  c.certainty.push_back(Uniform(random, rows * c.channels, -log_certainty, log_certainty));
  for (float& value : c.certainty.back()) value = std::exp(value);
  c.kq.push_back(Uniform(random, rows * 2 * c.state_dim, -1, 1));
  c.weight.push_back(Uniform(random, rows * c.channels, -1, 1));
}

Case RandomCase(Random& random) {
  Case c;
  c.channels = Pick(random, 1, 150);
  const int64_t sizes[] = {1, 4, 8, 16, 64, 128, Pick(random, 1, 40), Pick(random, 41, 200)};
  c.state_dim = sizes[Pick(random, 0, 7)];
  if (c.state_dim > 40) c.channels = Pick(random, 1, 20);
  c.prior = Pick(random, 0, 1) == 0;
  c.discretization =
      Pick(random, 0, 1) == 0 ? Discretization::kOrnsteinUhlenbeck : Discretization::kZeroOrderHold;
  c.floored = Pick(random, 0, 2) > 0;
  c.noise_max = Pick(random, 0, 2) == 0 ? 0.02f : 0.0f;
  c.rate_log = Uniform(random, c.states(), -3, 1);
  c.step_raw = Uniform(random, c.states(), -7, 1);
  c.process_noise = Uniform(random, c.states(), -0.01f, 0.1f);  // some below the floor
  if (!c.floored) c.process_noise.assign(c.process_noise.size(), 0.0f);
  c.value_stride = c.channels + Pick(random, 0, 5);
  c.key_stride = 2 * c.state_dim + (Pick(random, 0, 1) == 0 ? 4 : Pick(random, 0, 5));
  c.weighted = Pick(random, 0, 1) == 0;
  for (int64_t i = Pick(random, 1, 7); i > 0; --i) {
    AddSequence(random, c, static_cast<int>(Pick(random, 0, 2) == 0 ? 1 : Pick(random, 1, 200)), 6);
  }
  return c;
}

KalmanDynamicsArgs Dynamics(const Case& c) {
  return {.count = c.states(),
          .step_raw = c.step_raw.data(),
          .rate_log = c.rate_log.data(),
          .process_noise = c.process_noise.data(),
          .discretization = c.discretization,
          .floored = c.floored,
          .noise_max = c.noise_max};
}

// What the recurrence gives in float64, from the dynamics as they are rounded to float.
// `eta_size` is what eta would be if nothing cancelled: what rounding is relative to.
struct Truth {
  std::vector<double> y, lambda, eta;
  double eta_size = 0;
};
Truth Exact(const Case& c, size_t sequence) {
  const KalmanDynamics dynamics = Discretize(Dynamics(c));
  Truth truth{.y = {},
              .lambda = std::vector<double>(c.states(), 1.0),
              .eta = std::vector<double>(c.states(), 0.0)};
  if (!c.lambda.empty()) {
    truth.lambda.assign(c.lambda[sequence].begin(), c.lambda[sequence].end());
    truth.eta.assign(c.eta[sequence].begin(), c.eta[sequence].end());
  }
  std::vector<double> magnitude = truth.eta;
  for (double& m : magnitude) m = std::abs(m);
  for (int t = 0; t < c.rows[sequence]; ++t) {
    const float* k = c.kq[sequence].data() + t * 2 * c.state_dim;
    const float* q = k + c.state_dim;
    for (int64_t m = 0; m < c.channels; ++m) {
      const double v = c.v[sequence][t * c.channels + m];
      const double certainty = c.certainty[sequence][t * c.channels + m];
      double y = 0;
      for (int64_t s = 0; s < c.state_dim; ++s) {
        const int64_t i = m * c.state_dim + s;
        const double a = dynamics.transition[i], p = dynamics.noise[i];
        const double den = std::max(a * a + p * truth.lambda[i], 1e-12);
        truth.lambda[i] = truth.lambda[i] / den + certainty * k[s] * k[s];
        truth.eta[i] = a / den * truth.eta[i] + certainty * v * k[s];
        magnitude[i] = a / den * magnitude[i] + std::abs(certainty * v * k[s]);
        const double mean = truth.eta[i] / std::max(truth.lambda[i], 1e-12);
        y += q[s] * (c.prior ? a * mean : mean);
      }
      truth.y.push_back(y);
    }
  }
  for (double m : magnitude) truth.eta_size += m * m;
  truth.eta_size = std::sqrt(truth.eta_size);
  return truth;
}

struct Told {
  std::vector<Floats> y;
  std::vector<std::vector<Floats>> readouts;  // [6][sequence][rows]
};

Told RunPlans(const Case& c, const std::vector<Plan>& plans, Pool& pool, bool asks) {
  for (int64_t slot = 1; slot <= std::ssize(c.rows); ++slot) {
    std::ranges::fill(pool.At(slot, 0), 1.0f);
    std::ranges::fill(pool.At(slot, 1), 0.0f);
    if (c.lambda.empty()) continue;
    std::ranges::copy(c.lambda[slot - 1], pool.At(slot, 0).begin());
    std::ranges::copy(c.eta[slot - 1], pool.At(slot, 1).begin());
  }
  pool.Write();
  Told told;
  for (const Floats& v : c.v) told.y.emplace_back(v.size(), kNan);
  told.readouts.resize(6);
  for (auto& one : told.readouts) {
    for (int rows : c.rows) one.emplace_back(rows, kNan);
  }
  const DeviceBytes step_raw = Upload(c.step_raw), rate_log = Upload(c.rate_log),
                    process_noise = Upload(c.process_noise), transition(c.states() * 4),
                    noise(c.states() * 4);
  KalmanDynamicsArgs dynamics = Dynamics(c);
  dynamics.step_raw = step_raw.as();
  dynamics.rate_log = rate_log.as();
  dynamics.process_noise = process_noise.as();
  DiscretizeCuda(nullptr, dynamics, transition.as(), noise.as());
  for (const Plan& plan : plans) {
    const DeviceStep device(plan);
    const DeviceBytes v = Upload(Gather(plan, c.v, c.channels, c.value_stride));
    const DeviceBytes certainty = Upload(Gather(plan, c.certainty, c.channels, c.value_stride));
    const DeviceBytes weight = Upload(Gather(plan, c.weight, c.channels, c.value_stride));
    const DeviceBytes kq = Upload(Gather(plan, c.kq, 2 * c.state_dim, c.key_stride));
    const DeviceBytes y(plan.rows() * c.channels * 4), out(plan.rows() * 6 * 4);
    const DeviceBytes partials(plan.rows() * KalmanCudaPartials(c.channels, c.state_dim) * 4);
    KalmanCudaReadouts readouts;
    if (asks) {
      readouts = {.out = out.as(),
                  .weight = c.weighted ? weight.as() : nullptr,
                  .weight_stride = c.value_stride,
                  .partials = partials.as()};
    }
    KalmanCuda(device.step, {.channels = c.channels,
                             .state_dim = c.state_dim,
                             .transition = transition.as(),
                             .noise = noise.as(),
                             .v = v.as(),
                             .certainty = certainty.as(),
                             .k = kq.as(),
                             .q = kq.as() + c.state_dim,
                             .v_stride = c.value_stride,
                             .certainty_stride = c.value_stride,
                             .k_stride = c.key_stride,
                             .q_stride = c.key_stride,
                             .prior = c.prior,
                             .precision = pool.Field(0),
                             .information = pool.Field(1),
                             .y = y.as(),
                             .readouts = readouts});
    Check(cudaDeviceSynchronize());
    Scatter(plan, y.Read(), c.channels, c.channels, told.y);
    const Floats all = out.Read();
    for (int i = 0; i < 6 && asks; ++i) {
      const Floats one(all.begin() + i * plan.rows(), all.begin() + (i + 1) * plan.rows());
      Scatter(plan, one, 1, 1, told.readouts[i]);
    }
  }
  pool.Read();
  return told;
}

Pool MakePool(const Case& c, Random& random) {
  return Pool(std::ssize(c.rows) + 1, {c.states(), c.states()}, Pick(random, 0, 2) == 0 ? 1 : 4,
              Pick(random, 0, 1) * 4);
}

TEST(KalmanCuda, EqualsTheRecurrenceInAnyCutAndCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(60)) {
    const Case c = RandomCase(random);
    Pool pool = MakePool(c, random);
    const Told told = RunPlans(c, RandomPlans(random, c.rows), pool, /*asks=*/false);
    EXPECT_TRUE(pool.OthersAreUntouched(std::ssize(c.rows))) << c.Name();
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(c, i);
      EXPECT_LT(Distance(told.y[i], truth.y), 1e-5) << c.Name();
      EXPECT_LT(Distance(pool.At(i + 1, 0), truth.lambda), 1e-5) << c.Name();
      EXPECT_LT(Distance(pool.At(i + 1, 1), truth.eta), 1e-5) << c.Name();
    }
  }
}

// Rows [0, rows) of one sequence on the CPU.
struct Twin {
  Floats y, readouts[6];
};
Twin RunTwin(const Case& c, size_t sequence) {
  const KalmanDynamics dynamics = Discretize(Dynamics(c));
  const int rows = c.rows[sequence];
  Floats lambda(c.states(), 1.0f), eta(c.states(), 0.0f), variance(rows * c.channels);
  Twin twin;
  twin.y.resize(rows * c.channels);
  for (Floats& one : twin.readouts) one.resize(rows);
  const int32_t starts[] = {0, rows}, slot = 1;
  const auto slot_one = [](Floats& x) {
    return FieldView{.base = reinterpret_cast<std::byte*>(x.data()) - 64, .stride = 64};
  };
  KalmanCpu({.rows = rows, .sequences = 1, .row_start = starts, .slots = &slot},
            {.channels = c.channels,
             .state_dim = c.state_dim,
             .transition = dynamics.transition.data(),
             .noise = dynamics.noise.data(),
             .v = c.v[sequence].data(),
             .certainty = c.certainty[sequence].data(),
             .k = c.kq[sequence].data(),
             .q = c.kq[sequence].data() + c.state_dim,
             .k_stride = 2 * c.state_dim,
             .q_stride = 2 * c.state_dim,
             .prior = c.prior,
             .precision = slot_one(lambda),
             .information = slot_one(eta),
             .y = twin.y.data(),
             .readouts = {.variance = variance.data(),
                          .surprise = twin.readouts[3].data(),
                          .information = twin.readouts[4].data(),
                          .precision = twin.readouts[0].data(),
                          .least_precision = twin.readouts[1].data()}});
  for (int r = 0; r < rows; ++r) {
    const int64_t at = r * c.channels;
    twin.readouts[2][r] = KalmanDeviation(variance.data() + at, c.channels);
    twin.readouts[5][r] =
        KalmanSpread(twin.y.data() + at, variance.data() + at,
                     c.weighted ? c.weight[sequence].data() + at : nullptr, c.channels);
  }
  return twin;
}

// Whole prompts of up to 20,000 rows in one step, from states that are not fresh.
Case PromptCase(Random& random, int most_rows) {
  Case c = RandomCase(random);
  c.channels = Pick(random, 1, 6);
  c.state_dim = Pick(random, 0, 1) == 0 ? 16 : Pick(random, 1, 40);
  c.rows.clear(), c.v.clear(), c.certainty.clear(), c.kq.clear(), c.weight.clear();
  // From hardly any noise to nothing else. The memory lasts no longer than some hundred tokens,
  // for as many of which the rounding of a^2 counts.
  c.rate_log = Uniform(random, c.states(), -3, 3);
  c.step_raw = Uniform(random, c.states(), -2, 1);
  c.process_noise = Uniform(random, c.states(), -16, 7);
  for (float& value : c.process_noise) value = std::exp(value);
  c.floored = true, c.noise_max = 0.0f;
  c.value_stride = c.channels + Pick(random, 0, 5);
  c.key_stride = 2 * c.state_dim + Pick(random, 0, 5);
  for (int64_t i = Pick(random, 1, 4); i > 0; --i) {
    AddSequence(random, c, static_cast<int>(Pick(random, 2, i == 1 ? most_rows : most_rows / 20)),
                9.2f);
    c.lambda.push_back(Uniform(random, c.states(), -14, 14));
    for (float& value : c.lambda.back()) value = std::exp(value);
    c.eta.push_back(Uniform(random, c.states(), -2, 2));
    for (size_t j = 0; j < c.eta.back().size(); ++j) c.eta.back()[j] *= c.lambda.back()[j];
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

TEST(KalmanCuda, FollowsLongPromptsAtAnyGain) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  double worst[3] = {};
  for (int trial : testing::Trials(12)) {
    const Case c = PromptCase(random, testing::InTime(20'000, 1'000));
    Pool pool = MakePool(c, random);
    const Told told = RunPlans(c, {WholePlan(c.rows, trial % 2 == 0)}, pool, /*asks=*/false);
    EXPECT_TRUE(pool.OthersAreUntouched(std::ssize(c.rows))) << c.Name();
    for (size_t i = 0; i < c.rows.size(); ++i) {
      const Truth truth = Exact(c, i);
      const double off[] = {Distance(told.y[i], truth.y), Distance(pool.At(i + 1, 0), truth.lambda),
                            Distance(pool.At(i + 1, 1), truth.eta, truth.eta_size)};
      for (int j = 0; j < 3; ++j) {
        EXPECT_LT(off[j], 1e-5) << c.Name() << ", " << c.rows[i] << " rows, " << j;
        worst[j] = std::max(worst[j], off[j]);
      }
    }
  }
  std::printf("y %.1e, lambda %.1e, eta %.1e\n", worst[0], worst[1], worst[2]);
}

TEST(KalmanCuda, KeepsWhatIsNotANumberFromEarlierRowsAndFromOthers) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial = 0; trial < 12; ++trial) {
    Case c = PromptCase(random, 2000);
    Pool pool = MakePool(c, random), alone = pool.Fresh();
    const Told good = RunPlans(c, {WholePlan(c.rows, true)}, pool, /*asks=*/false);
    std::vector<Plan> one_by_one;
    for (int i = 0; i < std::ssize(c.rows); ++i) {
      one_by_one.emplace_back();
      one_by_one.back().Add(i, 0, c.rows[i]);
    }
    const Told same = RunPlans(c, one_by_one, alone, /*asks=*/false);
    const size_t sick = Pick(random, 0, std::ssize(c.rows) - 1);
    const int rows = c.rows[sick], row = static_cast<int>(Pick(random, 0, rows - 1));
    const int64_t channel = Pick(random, 0, c.channels - 1);
    const bool key = trial % 3 == 0;
    if (key) {
      c.kq[sick][row * 2 * c.state_dim] = kNan;
    } else {
      (trial % 3 == 1 ? c.v : c.certainty)[sick][row * c.channels + channel] = kNan;
    }
    const Told bad = RunPlans(c, {WholePlan(c.rows, true)}, pool, /*asks=*/false);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      EXPECT_TRUE(SameBits(good.y[i], same.y[i])) << c.Name();
      if (i != sick) EXPECT_TRUE(SameBits(good.y[i], bad.y[i])) << c.Name();
    }
    for (size_t at = 0; at < good.y[sick].size(); ++at) {
      const int64_t t = static_cast<int64_t>(at) / c.channels;
      if (t >= row && (key || static_cast<int64_t>(at) % c.channels == channel)) {
        EXPECT_TRUE(std::isnan(bad.y[sick][at])) << c.Name();
      } else {
        EXPECT_EQ(bad.y[sick][at], good.y[sick][at]) << c.Name();
      }
    }
  }
}

TEST(KalmanCuda, TellsWhatItsTwinTellsAndDoesTheSameWhenAsked) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(40)) {
    const Case c = RandomCase(random);
    Pool pool = MakePool(c, random), quiet_pool = pool.Fresh();
    const std::vector<Plan> plans = RandomPlans(random, c.rows);
    const Told told = RunPlans(c, plans, pool, /*asks=*/true);
    const Told quiet = RunPlans(c, plans, quiet_pool, /*asks=*/false);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      EXPECT_TRUE(SameBits(told.y[i], quiet.y[i])) << c.Name();
      for (size_t field : {0, 1}) {
        EXPECT_TRUE(SameBits(pool.At(i + 1, field), quiet_pool.At(i + 1, field))) << c.Name();
      }
      const Twin twin = RunTwin(c, i);
      EXPECT_LT(Distance(told.y[i], std::vector<double>(twin.y.begin(), twin.y.end())), 1e-5);
      for (int j = 0; j < 6; ++j) {
        const std::vector<double> want(twin.readouts[j].begin(), twin.readouts[j].end());
        // Squares of differences and quotients: ten times as far off as what they are made of.
        EXPECT_LT(Distance(told.readouts[j][i], want), 1e-4) << c.Name() << ", read-out " << j;
      }
    }
  }
}

TEST(KalmanCuda, GivesADecodingRowTheSameBitsInAnyCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(20)) {
    const Case c = RandomCase(random);
    Pool first = MakePool(c, random), second = first.Fresh();
    const Told a = RunPlans(c, DecodingPlans(random, c.rows, /*together=*/false), first, false);
    const Told b = RunPlans(c, DecodingPlans(random, c.rows, /*together=*/true), second, false);
    for (size_t i = 0; i < c.rows.size(); ++i) {
      EXPECT_TRUE(SameBits(a.y[i], b.y[i])) << c.Name();
      EXPECT_TRUE(SameBits(first.At(i + 1, 0), second.At(i + 1, 0))) << c.Name();
      EXPECT_TRUE(SameBits(first.At(i + 1, 1), second.At(i + 1, 1))) << c.Name();
    }
  }
}

}  // namespace
}  // namespace eddy
