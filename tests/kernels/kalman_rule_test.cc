// Proves that the Kalman rule computes the filter of its page: against three tokens worked out by
// hand, against the textbook covariance form and the information form in float64 on random shapes,
// and that padding, splitting and neighbours change nothing. The references are written here from
// the textbook, not from the rule.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/rules/kalman/kalman.h"
#include "tests/kernels/kalman_reference.h"
#include "tests/kernels/kalman_rule_case.h"

namespace eddy {
namespace {

using kalman_test::Case;
using kalman_test::Filter;
using kalman_test::Floats;
using kalman_test::Outputs;
using kalman_test::Pool;
using kalman_test::RandomCase;
using Doubles = std::vector<double>;

struct Reference {
  explicit Reference(const Case& c)
      : y(c.rows * c.channels),
        y_mass(y),
        variance(y),
        surprise(c.rows),
        surprise_mass(surprise),
        information(surprise),
        precision(surprise),
        least_precision(c.rows, std::numeric_limits<double>::infinity()) {}
  Doubles y, y_mass, variance;                                               // [rows, M]
  Doubles surprise, surprise_mass, information, precision, least_precision;  // [rows]
  Doubles lambda, eta, eta_mass;                                             // at the end, [M, Sn]
};

ExactDynamics Exact(const Case& c, int64_t i) {
  return ExactDynamics(c.rate_log[i], c.step_raw[i], c.process_noise[i],
                       {.zoh = c.discretization == Discretization::kZeroOrderHold,
                        .floored = c.floored,
                        .noise_max = c.noise_max});
}

Reference Textbook(const Case& c) {
  const int64_t m = c.channels, sn = c.state_dim;
  Reference r(c);
  for (int64_t i = 0; i < m * sn; ++i) {
    const auto [a, p] = Exact(c, i);
    Covariance filter;
    for (int64_t t = 0; t < c.rows; ++t) {
      const int64_t at = t * m + i / sn;
      const double k = c.kq[t * 2 * sn + i % sn], q = c.kq[t * 2 * sn + sn + i % sn];
      filter.Update(a, p, k, c.v[at], 1.0 / c.certainty[at]);
      r.y[at] += q * filter.mean * (c.prior ? a : 1);
      r.y_mass[at] += std::abs(q) * filter.mass;
      r.variance[at] += q * q * (c.prior ? a * a * filter.variance + p : filter.variance);
      r.surprise[t] += filter.surprise / static_cast<double>(m * sn);
      r.surprise_mass[t] += filter.surprise_mass / static_cast<double>(m * sn);
      r.information[t] += filter.information / static_cast<double>(m);
      r.precision[t] += 1 / filter.variance / static_cast<double>(m * sn);
      r.least_precision[t] = std::min(r.least_precision[t], 1 / filter.variance);
    }
    r.lambda.push_back(1 / filter.variance);
    r.eta.push_back(filter.mean / filter.variance);
    r.eta_mass.push_back(filter.mass / filter.variance);
  }
  return r;
}

// The information form: the rule's own equations, in float64.
Reference InformationForm(const Case& c) {
  const int64_t m = c.channels, sn = c.state_dim;
  Reference r(c);
  for (int64_t i = 0; i < m * sn; ++i) {
    const auto [a, p] = Exact(c, i);
    double lambda = 1, eta = 0, mass = 0;
    for (int64_t t = 0; t < c.rows; ++t) {
      const int64_t at = t * m + i / sn;
      const double k = c.kq[t * 2 * sn + i % sn], q = c.kq[t * 2 * sn + sn + i % sn];
      const double den = a * a + p * lambda;
      eta = a / den * eta + c.certainty[at] * c.v[at] * k;
      mass = a / den * mass + std::abs(c.certainty[at] * c.v[at] * k);
      lambda = lambda / den + c.certainty[at] * k * k;
      r.y[at] += q * eta / lambda * (c.prior ? a : 1);
      r.y_mass[at] += std::abs(q) * mass / lambda;
    }
    r.lambda.push_back(lambda);
    r.eta.push_back(eta);
    r.eta_mass.push_back(mass);
  }
  return r;
}

// A token rounds at most six times by half a unit, relative to the mass of what it adds up, and
// hardly any of it decays in the slowest of these cases: so the bound grows with the tokens.
void ExpectNear(const Floats& got, const Doubles& want, const Doubles& mass, int64_t tokens,
                const char* what) {
  const double relative =
      3.0 * static_cast<double>(8 + tokens) * std::numeric_limits<float>::epsilon();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], relative * mass[i] + 1e-30) << what << " at " << i;
  }
}

TEST(KalmanRule, FollowsTheThreeTokensOfTheDesign) {
  const double b[] = {0.3, -0.2, 1.1};
  Case c = {.channels = 2, .state_dim = 2, .rows = 3};
  c.rate_log = Floats(4, 0.0f);
  c.step_raw = Floats(4, -1.0f);
  c.process_noise = Floats(4, 0.01f);
  c.v = {1, 2, -1, 0.5, 0.5, -1.5};
  for (double raw : b) {
    const auto certainty = static_cast<float>(1 / (std::log1p(std::exp(raw)) + 1e-4));
    c.certainty.insert(c.certainty.end(), {certainty, certainty});
  }
  const float q[3][2] = {{1, -2}, {0.5, 1.5}, {2, 1}}, k[3][2] = {{3, 1}, {1, -1}, {2, 2}};
  for (int t = 0; t < 3; ++t) {
    const float kn = std::hypot(k[t][0], k[t][1]), qn = std::hypot(q[t][0], q[t][1]);
    c.kq.insert(c.kq.end(), {k[t][0] / kn, k[t][1] / kn, q[t][0] / qn, q[t][1] / qn});
  }
  const KalmanDynamics dynamics = c.Dynamics();
  EXPECT_NEAR(dynamics.transition[0], 0.731058505524, 1e-7);
  EXPECT_NEAR(dynamics.noise[0], 0.002327767308, 1e-9);

  Pool pool(2, 4);
  const Outputs out = Filter(c, &pool, 1, 0, 3, /*readouts=*/true);

  const double y[] = {0.003080625, 0.006161251, 0.370436750, 0.269279985, 0.182032337, 0.296216545};
  const double variance[] = {.472617993, .472617993, .215671945,
                             .215671945, .091546731, .091546731};
  const double lambda[] = {11.698683750, 8.634471616, 11.698683750, 8.634471616};
  const double eta[] = {0.677928124, 2.513827044, 4.017067906, -0.210639693};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(out.y[i], y[i], 1e-6) << i;
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(out.variance[i], variance[i], 1e-6) << i;
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(pool.precision(1)[i], lambda[i], 1e-5) << i;
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(pool.information(1)[i], eta[i], 1e-5) << i;
}

TEST(KalmanRule, EqualsBothTextbookFormsOnRandomShapes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const Case c = RandomCase(random);
    SCOPED_TRACE(::testing::Message() << "M " << c.channels << " Sn " << c.state_dim << " T "
                                      << c.rows << " round " << round);
    Pool pool(2, c.channels * c.state_dim);
    const Outputs out = Filter(c, &pool, 1, 0, c.rows, /*readouts=*/true);
    const Reference covariance = Textbook(c), information = InformationForm(c);

    for (const Reference* r : {&covariance, &information}) {
      const int64_t n = pool.size;
      ExpectNear(out.y, r->y, r->y_mass, c.rows, "y");
      ExpectNear(Floats(pool.precision(1), pool.precision(1) + n), r->lambda, r->lambda, c.rows,
                 "precision");
      ExpectNear(Floats(pool.information(1), pool.information(1) + n), r->eta, r->eta_mass, c.rows,
                 "information");
    }
    ExpectNear(out.variance, covariance.variance, covariance.variance, c.rows, "variance of y");
    ExpectNear(out.surprise, covariance.surprise, covariance.surprise_mass, c.rows, "surprise");
    ExpectNear(out.information, covariance.information, covariance.information, c.rows, "gain");
    ExpectNear(out.precision, covariance.precision, covariance.precision, c.rows, "precision");
    ExpectNear(out.least_precision, covariance.least_precision, covariance.least_precision, c.rows,
               "least precision");
    if (HasFatalFailure()) return;
  }
}

TEST(KalmanRule, GivesTheSameBitsHoweverTheRowsAreSplitAndWhetherReadOutsAreWanted) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    const Case c = RandomCase(random);
    Pool whole(2, c.channels * c.state_dim), parts(3, c.channels * c.state_dim);
    const Outputs at_once = Filter(c, &whole, 1, 0, c.rows, /*readouts=*/false);
    Floats y;
    for (int64_t begin = 0; begin < c.rows;) {
      const int64_t end =
          std::min(c.rows, begin + std::uniform_int_distribution<int64_t>(1, 40)(random));
      const bool readouts = std::uniform_int_distribution<int>(0, 1)(random) == 1;
      const Outputs some = Filter(c, &parts, 2, begin, end, readouts);
      y.insert(y.end(), some.y.begin(), some.y.end());
      begin = end;
    }
    EXPECT_EQ(y, at_once.y);
    for (int64_t i = 0; i < whole.size; ++i) {
      ASSERT_EQ(whole.precision(1)[i], parts.precision(2)[i]);
      ASSERT_EQ(whole.information(1)[i], parts.information(2)[i]);
    }
  }
}

TEST(KalmanRule, LeavesAllOtherMemoryAloneAndGivesZerosWithoutASlot) {
  std::mt19937_64 random(17);
  const Case c = RandomCase(random);
  Pool pool(3, c.channels * c.state_dim);
  const Floats before = pool.data;

  const Outputs padding = Filter(c, &pool, kNoSlot, 0, c.rows, /*readouts=*/true);

  EXPECT_EQ(pool.data, before);
  EXPECT_THAT(padding.y, ::testing::Each(0.0f));
  EXPECT_THAT(padding.variance, ::testing::Each(0.0f));
  EXPECT_THAT(padding.surprise, ::testing::Each(0.0f));

  Filter(c, &pool, 1, 0, c.rows, /*readouts=*/false);
  for (int64_t i = 0; i < static_cast<int64_t>(before.size()); ++i) {
    const bool own = i >= pool.stride && i < pool.stride + 2 * pool.size;
    if (own) continue;
    ASSERT_EQ(pool.data[i], before[i]) << i;
  }
}

TEST(KalmanRule, DividesByNoLessThanItsFloors) {
  // Dynamics that forget everything at once, and a filter that knows nothing and sees nothing.
  const float zeros[] = {0, 0}, v[] = {2}, certainty[] = {1}, k[] = {1, 0}, q[] = {1, 1};
  float y = -1;
  Pool pool(2, 2);
  pool.precision(1)[1] = 0;
  const int32_t row_start[] = {0, 1}, slot = 1;
  KalmanCpu({.rows = 1, .sequences = 1, .row_start = row_start, .slots = &slot},
            {.channels = 1,
             .state_dim = 2,
             .transition = zeros,
             .noise = zeros,
             .v = v,
             .certainty = certainty,
             .k = k,
             .q = q,
             .precision = pool.View(0),
             .information = pool.View(pool.size),
             .y = &y});
  EXPECT_FLOAT_EQ(pool.precision(1)[0], 1e12f);
  EXPECT_FLOAT_EQ(pool.information(1)[0], 2);
  EXPECT_FLOAT_EQ(y, 2e-12f);
}

TEST(KalmanRule, LetsANotANumberShow) {
  std::mt19937_64 random(18);
  Case c = RandomCase(random);
  Pool pool(2, c.channels * c.state_dim);
  pool.precision(1)[0] = std::nanf("");
  const Outputs out = Filter(c, &pool, 1, 0, 1, /*readouts=*/false);
  EXPECT_TRUE(std::isnan(out.y[0]));
}

TEST(KalmanRule, StaysWithinItsBoundsOverAThousandTokensOfCertainty) {
  // The hardest case for float: certainty at its bound, no process noise, hardly any decay.
  Case c = {.channels = 1, .state_dim = 3, .rows = 4096, .floored = false};
  c.rate_log = Floats(3, -6.0f);
  c.step_raw = Floats(3, -7.0f);
  c.process_noise = Floats(3, 0.0f);
  std::mt19937_64 random(19);
  for (int64_t i = 0; i < c.rows; ++i) {
    c.v.push_back(std::uniform_real_distribution<float>(-3, 3)(random));
    c.certainty.push_back(1e4f);
    for (int j = 0; j < 6; ++j) {
      c.kq.push_back(std::uniform_real_distribution<float>(-1, 1)(random));
    }
  }
  Pool pool(2, 3);
  const Outputs out = Filter(c, &pool, 1, 0, c.rows, /*readouts=*/false);
  const Reference r = InformationForm(c);
  for (int64_t t = 0; t < c.rows; ++t) ASSERT_NEAR(out.y[t], r.y[t], 3e-4) << t;
}

TEST(KalmanSpread, IsTheShareOfTheReadOutThatIsUncertain) {
  const float y[] = {3, 0}, variance[] = {16, 9}, open[] = {1, 0};
  EXPECT_FLOAT_EQ(KalmanSpread(y, variance, nullptr, 2), std::sqrt(25.0f / 34.0f));
  EXPECT_FLOAT_EQ(KalmanSpread(y, variance, open, 2), 0.8f);
  EXPECT_FLOAT_EQ(KalmanDeviation(variance, 2), 3.5f);
  const float shut[] = {0, 0};
  EXPECT_EQ(KalmanSpread(y, variance, shut, 2), 0.0f);
}

TEST(KalmanReadouts, SurpriseIsOneOnDataOfTheModel) {
  // One state with known k; the data are drawn from the filter's own model.
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<double> normal;
  Case c = {.channels = 1, .state_dim = 1, .rows = 20000};
  c.rate_log = {0.0f};
  c.step_raw = {-1.0f};
  c.process_noise = {0.5f};
  const KalmanDynamics dynamics = c.Dynamics();
  double state = normal(random);
  for (int64_t t = 0; t < c.rows; ++t) {
    state = dynamics.transition[0] * state + std::sqrt(dynamics.noise[0]) * normal(random);
    const double k = normal(random), certainty = 2;
    c.v.push_back(static_cast<float>(k * state + normal(random) / std::sqrt(certainty)));
    c.certainty.push_back(static_cast<float>(certainty));
    c.kq.insert(c.kq.end(), {static_cast<float>(k), 1.0f});
  }
  Pool pool(2, 1);
  const Outputs out = Filter(c, &pool, 1, 0, c.rows, /*readouts=*/true);
  double mean = 0;
  for (float surprise : out.surprise) mean += surprise / static_cast<double>(c.rows);
  // The standard deviation of the mean of 20000 squares of normals is 0.01.
  EXPECT_NEAR(mean, 1.0, 0.06);
}

}  // namespace
}  // namespace eddy
