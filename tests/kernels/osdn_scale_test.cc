// Proves the learned scale of OSDN: with the delta rule behind it, against vectors computed by hand
// in float64 (design notes 15.1); alone, against a float64 recursion written here from the formula,
// for random shapes, options and splits, most of them with a clip that binds on many entries.
#include "kernels/rules/osdn_scale/osdn_scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/rules/delta_rule/delta_rule.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

constexpr int32_t kSlot = 1;

// One sequence of `rows` rows in `slot`.
struct OneSequence {
  std::vector<int32_t> starts, slots;
  Step step;
  explicit OneSequence(int rows, int32_t slot = kSlot) : starts{0, rows}, slots{slot} {
    step = {.rows = rows, .sequences = 1, .row_start = starts.data(), .slots = slots.data()};
  }
};

// A pool of two slots, of which the second is the sequence's.
FieldView ViewOf(std::vector<float>& pool, std::array<int64_t, 4> shape) {
  return {.base = reinterpret_cast<std::byte*>(pool.data()),
          .stride = static_cast<int64_t>(pool.size() * sizeof(float) / 2),
          .shape = shape};
}

std::vector<float> SecondHalf(const std::vector<float>& pool) {
  return {pool.begin() + static_cast<ptrdiff_t>(pool.size() / 2), pool.end()};
}

// The three tokens of the vectors: K = V = 2, one head, S = 0, d = 1.
constexpr double kQ[3][2] = {{1, -2}, {.5, 1.5}, {2, 1}};
constexpr double kK[3][2] = {{3, 1}, {1, -1}, {2, 2}};
constexpr double kB[3] = {.3, -.2, 1.1};
constexpr double kA[3] = {.5, -1, .1};

enum class Decay { kNone, kHead, kChannel };

struct Expected {
  std::vector<float> out, state, scale;
};

std::vector<float> UnitRows(const double (&x)[3][2], double scale) {
  std::vector<float> rows;
  for (const auto& row : x) {
    const double length = std::sqrt(row[0] * row[0] + row[1] * row[1] + 1e-6);
    for (double value : row) rows.push_back(static_cast<float>(value / length * scale));
  }
  return rows;
}

void ExpectVectors(bool beta_aware, Decay decay, bool chunks, const Expected& expected) {
  const std::vector<float> q = UnitRows(kQ, std::sqrt(0.5)), k = UnitRows(kK, 1);
  const std::vector<float> v = {1, 2, -1, .5, .5, -1.5};
  std::vector<float> beta, log_decay, factors, w(6), out(6), d_pool = {7, 7, 1, 1}, s_pool(8);
  for (int t = 0; t < 3; ++t) {
    beta.push_back(static_cast<float>(1 / (1 + std::exp(-kB[t]))));
    for (int i = 0; i < (decay == Decay::kChannel ? 2 : 1) && decay != Decay::kNone; ++i) {
      log_decay.push_back(static_cast<float>(-std::log1p(std::exp(kA[t] + i))));
      factors.push_back(std::exp(log_decay.back()));
    }
  }
  const std::vector<float> retention = {.9f};
  const OneSequence one(3);
  OsdnScaleCpu(one.step, {.heads = 1,
                          .value_heads = 1,
                          .key_dim = 2,
                          .options = {.beta_aware = beta_aware,
                                      .eta = .5f,
                                      .clips = true,
                                      .clip_min = .6666667f,
                                      .clip_max = 1.5f},
                          .k = k.data(),
                          .beta = beta.data(),
                          .retention = retention.data(),
                          .scale = ViewOf(d_pool, {1, 2, 1, 1}),
                          .w = w.data()});
  const DeltaRuleShape shape{.heads = 1, .value_heads = 1, .key_dim = 2, .value_dim = 2};
  std::vector<float> scratch(static_cast<size_t>(DeltaRuleScratchFloats(shape)));
  const bool channel = decay == Decay::kChannel, none = decay == Decay::kNone;
  (chunks ? DeltaRuleChunks : DeltaRuleSteps)(
      {.shape = shape,
       .q = q.data(),
       .k = k.data(),
       .w = w.data(),
       .v = v.data(),
       .beta = beta.data(),
       .decay = none ? nullptr : factors.data(),
       .log_decay = none || channel ? nullptr : log_decay.data(),
       .channel_decay = channel,
       .out = out.data(),
       .scratch = scratch.data()},
      0, 3, s_pool.data() + 4);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(out[i], expected.out[i], 2e-7) << "output " << i;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(s_pool[4 + i], expected.state[i], 4e-7) << "state " << i;
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(d_pool[2 + i], expected.scale[i], 2e-7) << "d " << i;
  EXPECT_EQ(d_pool[0], 7) << "the slot of somebody else";
}

TEST(OsdnScale, GivesTheThreeTokenVectors) {
  const std::vector<float> aware = {0.932423872f, 0.853219376f};
  for (const bool chunks : {false, true}) {
    ExpectVectors(/*beta_aware=*/false, Decay::kNone, chunks,
                  {.out = {0.057444243f, 0.114888486f, 0.404748369f, 0.489198162f, 0.282443952f,
                           -0.259244160f},
                   .state = {0.178771159f, -0.033696212f, 0.535623970f, -0.752409672f},
                   .scale = {0.792750113f, 0.792750080f}});
    ExpectVectors(/*beta_aware=*/true, Decay::kNone, chunks,
                  {.out = {0.057444243f, 0.114888486f, 0.398187391f, 0.489126143f, 0.268537371f,
                           -0.397437699f},
                   .state = {0.148027251f, -0.218875199f, 0.553135313f, -0.819058085f},
                   .scale = aware});
    ExpectVectors(/*beta_aware=*/true, Decay::kHead, chunks,
                  {.out = {0.057444243f, 0.114888486f, 0.324151063f, 0.341053485f, 0.235323288f,
                           -0.596500294f},
                   .state = {0.180225482f, -0.561522896f, 0.383706689f, -0.763253953f},
                   .scale = aware});
  }
  ExpectVectors(
      /*beta_aware=*/true, Decay::kChannel, /*chunks=*/false,
      {.out = {0.057444243f, 0.114888486f, 0.299642381f, 0.292036122f, 0.236245564f, -0.597853213f},
       .state = {0.219662214f, -0.542332729f, 0.307749716f, -0.805912592f},
       .scale = aware});
}

// Inputs of one sequence in any shape.
struct Problem {
  int64_t heads = 1, value_heads = 1, key_dim = 1;
  int rows = 1;
  OsdnScaleOptions options = {};
  std::vector<float> k = {}, beta = {}, retention = {}, start = {};
  int64_t retention_stride = 0;

  // Row `first` on, for a sequence whose d lies in `pool`.
  OsdnScaleArgs Args(int64_t first, std::vector<float>& pool, std::vector<float>& w) const {
    OsdnScaleArgs args = {.heads = heads,
                          .value_heads = value_heads,
                          .key_dim = key_dim,
                          .options = options,
                          .k = k.data() + first * heads * key_dim,
                          .beta = beta.data() + first * value_heads,
                          .retention_stride = retention_stride,
                          .scale = ViewOf(pool, {value_heads, key_dim, 1, 1}),
                          .w = w.data() + first * value_heads * key_dim};
    if (!retention.empty()) args.retention = retention.data() + first * retention_stride;
    return args;
  }
  std::vector<float> Pool() const {
    std::vector<float> pool(start.size(), -1.0f);
    pool.insert(pool.end(), start.begin(), start.end());
    return pool;
  }
};

Problem RandomProblem(std::mt19937& random) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> unit;
  Problem p{
      .heads = draw(1, 3), .key_dim = draw(0, 3) == 0 ? 1 : draw(2, 140), .rows = draw(1, 200)};
  p.value_heads = p.heads * draw(1, 3);
  p.options = {.beta_aware = draw(0, 1) == 0,
               .eta = draw(0, 1) == 0 ? 1.0f : 0.003f,
               .normalise = draw(0, 1) == 0,
               .clips = draw(0, 3) != 0};
  const bool tight = draw(0, 1) == 0;
  p.options.clip_min = tight ? 0.6666667f : 0.0f;
  p.options.clip_max = tight ? 1.5f : 1e9f;
  const auto value_heads = static_cast<size_t>(p.value_heads);
  for (int64_t at = 0; at < p.rows * p.heads; ++at) {
    std::vector<float> key(static_cast<size_t>(p.key_dim));
    double square = 1e-6;
    for (float& value : key) {
      value = normal(random);
      square += static_cast<double>(value) * static_cast<double>(value);
    }
    for (float value : key) p.k.push_back(static_cast<float>(value / std::sqrt(square)));
  }
  for (size_t i = 0; i < static_cast<size_t>(p.rows) * value_heads; ++i) {
    p.beta.push_back(unit(random));
  }
  const int retention = draw(0, 2);
  p.retention_stride = retention == 2 ? p.value_heads : 0;
  if (retention > 0) {
    p.retention.resize(retention == 2 ? p.beta.size() : value_heads);
    for (float& r : p.retention) r = 1 - 0.1f * unit(random);
  }
  for (size_t i = 0; i < value_heads * static_cast<size_t>(p.key_dim); ++i) {
    p.start.push_back(1 + 0.5f * normal(random));
  }
  return p;
}

// The recursion in float64: w of all rows, then d.
void Reference(const Problem& p, std::vector<double>& w, std::vector<double>& d) {
  d.assign(p.start.begin(), p.start.end());
  w.clear();
  for (int64_t t = 0; t < p.rows; ++t) {
    for (int64_t j = 0; j < p.value_heads; ++j) {
      const int64_t at = t * p.value_heads + j;
      const float* k = p.k.data() + (t * p.heads + j / (p.value_heads / p.heads)) * p.key_dim;
      double* dj = d.data() + j * p.key_dim;
      double inner = 0, square = 0;
      for (int64_t i = 0; i < p.key_dim; ++i) {
        const double key = k[i];
        w.push_back(dj[i] * key);
        inner += dj[i] * key * key;
        square += key * key;
      }
      const double beta = p.beta[static_cast<size_t>(at)];
      double step = p.options.beta_aware ? beta * (1 - beta * inner) : 1 - inner;
      step *= p.options.eta;
      if (p.options.normalise) step /= square + 1e-5;
      const auto r_at = static_cast<size_t>(t * p.retention_stride + j);
      const double retention = p.retention.empty() ? 1.0 : p.retention[r_at];
      for (int64_t i = 0; i < p.key_dim; ++i) {
        dj[i] = retention * dj[i] + step * static_cast<double>(k[i]) * static_cast<double>(k[i]);
        if (!p.options.clips) continue;
        dj[i] = std::clamp(dj[i], static_cast<double>(p.options.clip_min),
                           static_cast<double>(p.options.clip_max));
      }
    }
  }
}

TEST(OsdnScale, EqualsTheRecursionForRandomShapesOptionsAndSplits) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  int often_clipped = 0;
  for (int i = 0; i < 80; ++i) {
    const Problem p = RandomProblem(random);
    SCOPED_TRACE("EDDY_TEST_SEED=" + std::to_string(seed) + ", problem " + std::to_string(i));
    std::vector<double> w64, d64;
    Reference(p, w64, d64);
    std::vector<float> w(w64.size()), pool = p.Pool();
    for (int first = 0; first < p.rows;) {
      const int rows = std::uniform_int_distribution<int>(1, p.rows - first)(random);
      OsdnScaleCpu(OneSequence(rows).step, p.Args(first, pool, w));
      first += rows;
    }
    testing::ExpectClose(w, w64, 2e-6, "write keys");
    const std::vector<float> d = SecondHalf(pool);
    testing::ExpectClose(d, d64, 2e-6, "scale");
    const auto bound = std::count_if(d.begin(), d.end(), [&](float x) {
      return p.options.clips && (x == p.options.clip_min || x == p.options.clip_max);
    });
    often_clipped += 2 * bound > static_cast<int64_t>(d.size()) ? 1 : 0;
    EXPECT_TRUE(std::all_of(pool.begin(), pool.end() - static_cast<ptrdiff_t>(d.size()),
                            [](float x) { return x == -1.0f; }));
  }
  EXPECT_GT(often_clipped, 3) << "the clip was not tested";
}

TEST(OsdnScale, ReadsOutTheScaleThatEachTokenUsedWithoutChangingAnything) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) {
    const Problem p = RandomProblem(random);
    SCOPED_TRACE("EDDY_TEST_SEED=" + std::to_string(seed) + ", problem " + std::to_string(i));
    const auto rows = static_cast<size_t>(p.rows);
    std::vector<float> w(rows * p.start.size()), w_read = w;
    std::vector<float> pool = p.Pool(), pool_read = pool;
    std::vector<float> least(rows), greatest(rows), at_bound(rows);
    OsdnScaleArgs args = p.Args(0, pool_read, w_read);
    args.readouts = {
        .least = least.data(), .greatest = greatest.data(), .at_bound = at_bound.data()};
    OsdnScaleCpu(OneSequence(p.rows).step, args);
    for (int t = 0; t < p.rows; ++t) {
      const std::vector<float> d = SecondHalf(pool);
      const auto at = static_cast<size_t>(t);
      EXPECT_EQ(least[at], *std::min_element(d.begin(), d.end()));
      EXPECT_EQ(greatest[at], *std::max_element(d.begin(), d.end()));
      const auto bound = std::count_if(d.begin(), d.end(), [&](float x) {
        return p.options.clips && (x == p.options.clip_min || x == p.options.clip_max);
      });
      EXPECT_FLOAT_EQ(at_bound[at], static_cast<float>(bound) / static_cast<float>(d.size()));
      OsdnScaleCpu(OneSequence(1).step, p.Args(t, pool, w));
    }
    EXPECT_EQ(w, w_read);
    EXPECT_EQ(pool, pool_read);
  }
}

TEST(OsdnScale, TouchesNothingForRowsOfNobody) {
  std::mt19937 random(1);
  const Problem p = RandomProblem(random);
  std::vector<float> w(static_cast<size_t>(p.rows) * p.start.size(), 5.0f), pool = p.Pool();
  std::vector<float> least(static_cast<size_t>(p.rows), 5.0f);
  OsdnScaleArgs args = p.Args(0, pool, w);
  args.readouts.least = least.data();
  OsdnScaleCpu(OneSequence(p.rows, kNoSlot).step, args);
  EXPECT_EQ(pool, p.Pool());
  EXPECT_EQ(w, std::vector<float>(w.size()));
  EXPECT_EQ(least, std::vector<float>(least.size()));
}

TEST(OsdnScale, LetsAClipHideNoNaN) {
  const std::vector<float> k = {std::numeric_limits<float>::quiet_NaN(), 1}, beta = {.5f};
  std::vector<float> w(2), pool = {0, 0, 1, 1};
  OsdnScaleCpu(OneSequence(1).step, {.heads = 1,
                                     .value_heads = 1,
                                     .key_dim = 2,
                                     .options = {.clips = true, .clip_min = 0, .clip_max = 1e9f},
                                     .k = k.data(),
                                     .beta = beta.data(),
                                     .scale = ViewOf(pool, {1, 2, 1, 1}),
                                     .w = w.data()});
  EXPECT_TRUE(std::isnan(pool[2]) && std::isnan(pool[3]));
}

}  // namespace
}  // namespace eddy
