// Proves the decay scan on the GPU, with both kinds of decay and all kinds of heads, against the
// recurrence in float64 and the CPU twin, on random shapes, for sequences cut into steps at random
// among others, with padding and gaps; and that a decoding row's bits do not depend on its company.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/rules/decay_scan/decay_scan.h"
#include "kernels/rules/decay_scan/decay_scan_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

struct Case {
  DecayScanShape shape = {};
  bool channel_decay = false, ones = false, writes = false;
  float query_scale = 1;
  int64_t query_stride = 0, key_stride = 0, value_stride = 0;
  std::vector<int> rows = {};
  // Per sequence, as in DecayScanCudaArgs, packed.
  std::vector<Floats> q = {}, k = {}, v = {}, write = {}, decay = {};

  int64_t queries() const { return shape.query_heads * shape.key_dim; }
  int64_t keys() const { return shape.key_heads * shape.key_dim; }
  int64_t values() const { return shape.states * shape.value_dim; }
  int64_t decays() const { return shape.states * (channel_decay ? shape.key_dim : 1); }
  int64_t outputs() const { return values() * shape.reads; }
  int64_t state_size() const { return values() * shape.key_dim; }
  std::string Name() const {
    return "states " + std::to_string(shape.states) + " reads " + std::to_string(shape.reads) +
           " K " + std::to_string(shape.key_dim) + " V " + std::to_string(shape.value_dim) +
           (channel_decay ? " vector decay" : " scalar decay");
  }
};

// Rows for the shape that the case has.
void Refill(Case& c, Random& random) {
  c.rows.clear();
  c.q.clear(), c.k.clear(), c.v.clear(), c.write.clear(), c.decay.clear();
  const auto gap = [&] {
    return Pick(random, 0, 1) == 0 ? 4 * Pick(random, 0, 2) : Pick(random, 0, 5);
  };
  c.query_stride = c.queries() + gap();
  c.key_stride = c.keys() + gap();
  c.value_stride = c.values() + gap();
  const bool large = c.shape.key_dim * c.shape.value_dim > 4000;
  for (int64_t i = Pick(random, 1, large ? 2 : 7); i > 0; --i) {
    const int rows =
        static_cast<int>(Pick(random, 0, 2) == 0 ? 1 : Pick(random, 1, large ? 60 : 200));
    c.rows.push_back(rows);
    c.q.push_back(Uniform(random, rows * c.queries(), -1, 1));
    c.k.push_back(Uniform(random, rows * c.keys(), -1, 1));
    c.v.push_back(Uniform(random, rows * c.values(), -1, 1));
    c.write.push_back(Uniform(random, rows * c.shape.states, 0, 2));
    c.decay.push_back(Uniform(random, rows * c.decays(), 0.3f, 1));
  }
}

Case RandomCase(Random& random) {
  Case c;
  DecayScanShape& s = c.shape;
  s.states = Pick(random, 1, 4);
  s.key_heads = s.states % 2 == 0 && Pick(random, 0, 1) == 0 ? s.states / 2 : s.states;
  s.reads = Pick(random, 0, 1) == 0 ? 1 : Pick(random, 2, 9);
  s.query_heads = s.reads > 1 ? s.states * s.reads : s.key_heads;
  const int64_t sizes[] = {16, 64, 128, 256, 1, Pick(random, 1, 40), Pick(random, 41, 300)};
  s.key_dim = sizes[Pick(random, 0, 6)];
  s.value_dim = sizes[Pick(random, 0, 6)];
  if (Pick(random, 0, 9) == 0) s.key_dim = Pick(random, 300, 1024), s.value_dim = 20;
  if (s.key_dim * s.value_dim > 8000) s.states = s.key_heads = 1, s.query_heads = s.reads;
  c.channel_decay = Pick(random, 0, 1) == 0;
  c.ones = Pick(random, 0, 4) == 0;
  c.writes = Pick(random, 0, 1) == 0;
  c.query_scale = Pick(random, 0, 1) == 0 ? 1.0f : 0.3f;
  Refill(c, random);
  return c;
}

// The sizes are those that outputs and states would have if nothing cancelled: what the rounding of
// operands is relative to.
struct Truth {
  std::vector<double> out, state;
  double out_size = 0, state_size = 0;
};
Truth Exact(const Case& c, size_t i) {
  const auto& [states, key_heads, query_heads, reads, key_dim, value_dim] = c.shape;
  Truth truth{.out = std::vector<double>(c.rows[i] * c.outputs()),
              .state = std::vector<double>(c.state_size())};
  std::vector<double> out_terms = truth.out, state_terms = truth.state;
  for (int64_t t = 0; t < c.rows[i]; ++t) {
    for (int64_t j = 0; j < states; ++j) {
      const float* k = c.k[i].data() + t * c.keys() + j / (states / key_heads) * key_dim;
      const double write = c.writes ? c.write[i][t * states + j] : 1;
      double* s = truth.state.data() + j * key_dim * value_dim;
      double* terms = state_terms.data() + j * key_dim * value_dim;
      for (int64_t n = 0; n < key_dim; ++n) {
        const float* decay = c.decay[i].data() + t * c.decays();
        const double a = c.channel_decay ? decay[j * key_dim + n] : decay[j];
        for (int64_t e = 0; e < value_dim; ++e) {
          const double v = c.ones ? 1 : c.v[i][(t * states + j) * value_dim + e];
          s[n * value_dim + e] = a * s[n * value_dim + e] + k[n] * write * v;
          terms[n * value_dim + e] = a * terms[n * value_dim + e] + std::abs(k[n] * write * v);
        }
      }
      for (int64_t r = 0; r < reads; ++r) {
        const int64_t output = j * reads + r;
        const float* q =
            c.q[i].data() + t * c.queries() + output / (states * reads / query_heads) * key_dim;
        const int64_t at = t * c.outputs() + output * value_dim;
        for (int64_t n = 0; n < key_dim; ++n) {
          for (int64_t e = 0; e < value_dim; ++e) {
            const double scaled = static_cast<double>(c.query_scale) * q[n];
            truth.out[at + e] += scaled * s[n * value_dim + e];
            out_terms[at + e] += std::abs(scaled) * terms[n * value_dim + e];
          }
        }
      }
    }
  }
  const auto size = [](const std::vector<double>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  };
  truth.out_size = size(out_terms);
  truth.state_size = size(state_terms);
  return truth;
}

std::vector<Floats> RunPlans(const Case& c, const std::vector<Plan>& plans, Pool& pool) {
  for (int64_t slot = 1; slot <= std::ssize(c.rows); ++slot) {
    std::ranges::fill(pool.At(slot, 0), 0.0f);
  }
  pool.Write();
  std::vector<Floats> out;
  for (int rows : c.rows) out.emplace_back(rows * c.outputs(), kNan);
  for (const Plan& plan : plans) {
    const DeviceStep device(plan);
    const DeviceBytes q = Upload(Gather(plan, c.q, c.queries(), c.query_stride));
    const DeviceBytes k = Upload(Gather(plan, c.k, c.keys(), c.key_stride));
    const DeviceBytes v = Upload(Gather(plan, c.v, c.values(), c.value_stride));
    const DeviceBytes write = Upload(Gather(plan, c.write, c.shape.states, c.shape.states));
    const DeviceBytes decay = Upload(Gather(plan, c.decay, c.decays(), c.decays()));
    const DeviceBytes y(plan.rows() * c.outputs() * 4);
    DecayScanCuda(device.step, {.shape = c.shape,
                                .q = q.as(),
                                .k = k.as(),
                                .v = c.ones ? nullptr : v.as(),
                                .query_stride = c.query_stride,
                                .key_stride = c.key_stride,
                                .value_stride = c.value_stride,
                                .query_scale = c.query_scale,
                                .write = c.writes ? write.as() : nullptr,
                                .decay = decay.as(),
                                .channel_decay = c.channel_decay,
                                .state = pool.Field(0),
                                .out = y.as()});
    Check(cudaDeviceSynchronize());
    Scatter(plan, y.Read(), c.outputs(), c.outputs(), out);
  }
  pool.Read();
  return out;
}

Pool MakePool(const Case& c, Random& random) {
  return Pool(std::ssize(c.rows) + 1, {c.state_size()}, Pick(random, 0, 2) == 0 ? 1 : 4,
              Pick(random, 0, 1) * 4);
}

TEST(DecayScanCuda, EqualsTheRecurrenceInAnyCutAndCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(60)) {
    const Case c = RandomCase(random);
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
    Case c = RandomCase(random);
    c.shape = {.states = 2, .key_heads = 2, .query_heads = 2, .key_dim = 64, .value_dim = 32};
    c.ones = false;
    c.writes = true;
    Refill(c, random);
    const Case good = c;
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
    Case c = RandomCase(random);
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
