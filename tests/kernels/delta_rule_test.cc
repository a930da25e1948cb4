// Proves the delta rule against vectors computed by hand in float64 (design notes 15.1) and both of
// its forms against a float64 recurrence written here from the formula, for random shapes.
#include "kernels/rules/delta_rule/delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

// The three tokens of the vectors: K = V = 2, one head, S = 0.
constexpr double kQ[3][2] = {{1, -2}, {.5, 1.5}, {2, 1}};
constexpr double kK[3][2] = {{3, 1}, {1, -1}, {2, 2}};
constexpr double kV[3][2] = {{1, 2}, {-1, .5}, {.5, -1.5}};
constexpr double kB[3] = {.3, -.2, 1.1};
constexpr double kA[3] = {.5, -1, .1};

enum class Decay { kNone, kHead, kChannel };

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return std::log1p(std::exp(x)); }

struct Vectors {
  std::vector<float> q, k, v, beta, log_decay, decay;
  bool channel = false;
  std::vector<float> state = std::vector<float>(4), out = std::vector<float>(6);

  DeltaRuleArgs Args(std::vector<float>& scratch) {
    const DeltaRuleShape shape{.heads = 1, .value_heads = 1, .key_dim = 2, .value_dim = 2};
    scratch.resize(static_cast<size_t>(DeltaRuleScratchFloats(shape)));
    return {.shape = shape,
            .q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .beta = beta.data(),
            .decay = decay.empty() ? nullptr : decay.data(),
            .log_decay = decay.empty() || channel ? nullptr : log_decay.data(),
            .channel_decay = channel,
            .out = out.data(),
            .scratch = scratch.data()};
  }
};

enum class Kind { kDeltaNet, kGated, kKda, kKaczmarz };

Vectors Make(Kind kind) {
  Vectors made;
  made.channel = kind == Kind::kKda;
  for (int t = 0; t < 3; ++t) {
    const double square = kK[t][0] * kK[t][0] + kK[t][1] * kK[t][1];
    const double query = std::sqrt(kQ[t][0] * kQ[t][0] + kQ[t][1] * kQ[t][1] + 1e-6);
    const double key = kind == Kind::kKaczmarz ? 1 : std::sqrt(square + 1e-6);
    for (int i = 0; i < 2; ++i) {
      made.q.push_back(static_cast<float>(kQ[t][i] / query / std::sqrt(2.0)));
      made.k.push_back(static_cast<float>(kK[t][i] / key));
      made.v.push_back(static_cast<float>(kV[t][i]));
    }
    made.beta.push_back(
        static_cast<float>(Sigmoid(kB[t]) / (kind == Kind::kKaczmarz ? square + 1e-6 : 1.0)));
    if (kind == Kind::kDeltaNet) continue;
    for (int i = 0; i < (made.channel ? 2 : 1); ++i) {
      made.log_decay.push_back(static_cast<float>(-Softplus(kA[t] + i)));
      made.decay.push_back(static_cast<float>(std::exp(-Softplus(kA[t] + i))));
    }
  }
  return made;
}

using Form = void (*)(const DeltaRuleArgs&, int64_t, int64_t, float*);

void ExpectVectors(Form form, Kind kind, std::vector<float> out, std::vector<float> state) {
  Vectors vectors = Make(kind);
  std::vector<float> scratch;
  form(vectors.Args(scratch), 0, 3, vectors.state.data());
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(vectors.out[i], out[i], 2e-7) << "output " << i;
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(vectors.state[i], state[i], 4e-7) << "state " << i;
}

const std::vector<float> kDeltaNetOut = {0.057444243f, 0.114888486f, 0.422640940f,
                                         0.489394567f, 0.268646264f, -0.469281358f};
const std::vector<float> kDeltaNetState = {0.137554453f, -0.255387648f, 0.574425257f,
                                           -0.973222807f};
const std::vector<float> kGatedOut = {0.057444243f, 0.114888486f, 0.347260421f,
                                      0.338633528f, 0.244689284f, -0.649306517f};
const std::vector<float> kGatedState = {0.180244310f, -0.587780274f, 0.413286916f, -0.877727151f};
const std::vector<float> kKdaOut = {0.057444243f, 0.114888486f, 0.323329164f,
                                    0.290771014f, 0.248333927f, -0.649125847f};
const std::vector<float> kKdaState = {0.223663003f, -0.568194671f, 0.337974901f, -0.916327027f};
const std::vector<float> kKaczmarzOut = {0.018165464f, 0.036330927f, 0.165456912f,
                                         0.079263554f, 0.068080210f, -0.224162072f};
const std::vector<float> kKaczmarzState = {0.007795742f, -0.186023381f, 0.199697064f,
                                           -0.336816021f};

TEST(DeltaRule, StepFormGivesTheThreeTokenVectors) {
  ExpectVectors(DeltaRuleSteps, Kind::kDeltaNet, kDeltaNetOut, kDeltaNetState);
  ExpectVectors(DeltaRuleSteps, Kind::kGated, kGatedOut, kGatedState);
  ExpectVectors(DeltaRuleSteps, Kind::kKda, kKdaOut, kKdaState);
  ExpectVectors(DeltaRuleSteps, Kind::kKaczmarz, kKaczmarzOut, kKaczmarzState);
}

TEST(DeltaRule, ChunkFormGivesTheThreeTokenVectors) {
  ExpectVectors(DeltaRuleChunks, Kind::kDeltaNet, kDeltaNetOut, kDeltaNetState);
  ExpectVectors(DeltaRuleChunks, Kind::kGated, kGatedOut, kGatedState);
  ExpectVectors(DeltaRuleChunks, Kind::kKaczmarz, kKaczmarzOut, kKaczmarzState);
}

// Inputs of one sequence in any shape, with write keys of their own.
struct Problem {
  DeltaRuleShape shape;
  int64_t rows = 0;
  std::vector<float> q = {}, k = {}, w = {}, v = {}, beta = {}, log_decay = {}, decay = {};
  std::vector<float> state = {}, scratch = {};
  bool channel = false, own_write_key = false;

  DeltaRuleArgs Args(std::vector<float>& out) {
    out.assign(v.size(), 0);
    scratch.resize(static_cast<size_t>(DeltaRuleScratchFloats(shape)));
    return {.shape = shape,
            .q = q.data(),
            .k = k.data(),
            .w = own_write_key ? w.data() : nullptr,
            .v = v.data(),
            .beta = beta.data(),
            .decay = decay.empty() ? nullptr : decay.data(),
            .log_decay = decay.empty() || channel ? nullptr : log_decay.data(),
            .channel_decay = channel,
            .out = out.data(),
            .scratch = scratch.data()};
  }
};

// `steepest`: the least log decay of one token.
Problem RandomProblem(std::mt19937& random, const DeltaRuleShape& shape, int64_t rows, Decay decay,
                      float steepest) {
  Problem p{.shape = shape, .rows = rows, .channel = decay == Decay::kChannel};
  p.own_write_key = random() % 2 == 0;
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> unit;
  const auto fill = [&](std::vector<float>& to, int64_t n, float scale) {
    to.resize(static_cast<size_t>(n));
    for (float& value : to) value = scale * normal(random);
  };
  const auto& [heads, value_heads, key_dim, value_dim] = shape;
  // Keys of about unit length and no longer, so that the recurrence is stable.
  const float key_scale = 1 / std::sqrt(static_cast<float>(key_dim));
  fill(p.q, rows * heads * key_dim, key_scale);
  fill(p.k, rows * heads * key_dim, key_scale);
  for (int64_t at = 0; at < rows * heads * key_dim; at += key_dim) {
    float* const k = p.k.data() + at;
    const float square = std::inner_product(k, k + key_dim, k, 0.0f);
    for (int64_t i = 0; i < key_dim; ++i) k[i] /= std::max(1.0f, std::sqrt(square));
  }
  fill(p.v, rows * value_heads * value_dim, 1);
  fill(p.state, value_heads * key_dim * value_dim, 1);
  p.w.resize(static_cast<size_t>(rows * value_heads * key_dim));
  for (int64_t i = 0; i < static_cast<int64_t>(p.w.size()); ++i) {
    const int64_t row = i / (value_heads * key_dim), j = i / key_dim % value_heads;
    const int64_t head = j / (value_heads / heads);
    p.w[static_cast<size_t>(i)] =
        unit(random) * p.k[static_cast<size_t>((row * heads + head) * key_dim + i % key_dim)];
  }
  for (int64_t i = 0; i < rows * value_heads; ++i) p.beta.push_back(unit(random));
  if (decay == Decay::kNone) return p;
  for (int64_t i = 0; i < rows * value_heads * (p.channel ? key_dim : 1); ++i) {
    p.log_decay.push_back(steepest * unit(random));
    p.decay.push_back(std::exp(p.log_decay.back()));
  }
  return p;
}

// The recurrence in float64.
void Reference(const Problem& p, std::vector<double>& out, std::vector<double>& state) {
  const auto& [heads, value_heads, key_dim, value_dim] = p.shape;
  out.assign(p.v.size(), 0);
  state.assign(p.state.begin(), p.state.end());
  for (int64_t t = 0; t < p.rows; ++t) {
    for (int64_t j = 0; j < value_heads; ++j) {
      const int64_t head = t * heads + j / (value_heads / heads), at = t * value_heads + j;
      const float* q = p.q.data() + head * key_dim;
      const float* k = p.k.data() + head * key_dim;
      const float* w = p.own_write_key ? p.w.data() + at * key_dim : k;
      for (int64_t m = 0; m < value_dim; ++m) {
        double* s = state.data() + j * key_dim * value_dim + m;
        double error = static_cast<double>(p.v[static_cast<size_t>(at * value_dim + m)]);
        for (int64_t i = 0; i < key_dim; ++i) {
          const int64_t g = p.channel ? at * key_dim + i : at;
          if (!p.decay.empty()) {
            s[i * value_dim] *= std::exp(static_cast<double>(p.log_decay[static_cast<size_t>(g)]));
          }
          error -= s[i * value_dim] * static_cast<double>(k[i]);
        }
        for (int64_t i = 0; i < key_dim; ++i) {
          s[i * value_dim] += static_cast<double>(w[i] * p.beta[static_cast<size_t>(at)]) * error;
          out[static_cast<size_t>(at * value_dim + m)] +=
              s[i * value_dim] * static_cast<double>(q[i]);
        }
      }
    }
  }
}

DeltaRuleShape RandomShape(std::mt19937& random) {
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  const int64_t heads = draw(1, 3);
  return {.heads = heads,
          .value_heads = heads * draw(1, 3),
          .key_dim = draw(0, 5) == 0 ? 1 : draw(2, 70),
          .value_dim = draw(1, 150)};
}

// 200 steps may each add the rounding of a sum of 70 numbers, 2^-24 times its root: 1e-4 at worst.
// A thousand problems showed 1.6e-5.
constexpr double kTolerance = 3e-5;

TEST(DeltaRule, BothFormsEqualTheRecurrenceForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 60; ++i) {
    const DeltaRuleShape shape = RandomShape(random);
    const auto decay = static_cast<Decay>(i % 3);
    // Steep decays overflow wherever e^{-G} is formed: 64 tokens of up to -12.
    const float steepest = i % 2 == 0 ? -0.2f : -12.0f;
    const int64_t rows = std::uniform_int_distribution<int>(1, 200)(random);
    Problem problem = RandomProblem(random, shape, rows, decay, steepest);
    SCOPED_TRACE("EDDY_TEST_SEED=" + std::to_string(seed) + ", problem " + std::to_string(i) +
                 ", rows " + std::to_string(rows));
    std::vector<double> out, state;
    Reference(problem, out, state);
    for (const Form form : {DeltaRuleSteps, DeltaRuleChunks}) {
      if (form == DeltaRuleChunks && decay == Decay::kChannel) continue;
      std::vector<float> got, memory = problem.state;
      form(problem.Args(got), 0, rows, memory.data());
      const std::string name = form == DeltaRuleSteps ? "step" : "chunk";
      testing::ExpectClose(got, out, kTolerance, name + ": outputs");
      testing::ExpectClose(memory, state, kTolerance, name + ": state");
    }
  }
}

// A row lost amid a chunk, at its borders and behind the first one, through any of its inputs.
TEST(DeltaRule, KeepsALostRowFromTheRowsBeforeIt) {
  std::mt19937 random(testing::TestSeed());
  const DeltaRuleShape shape{.heads = 1, .value_heads = 2, .key_dim = 40, .value_dim = 70};
  constexpr size_t kRows = 90, kRowFloats = 2 * 70;
  Problem good = RandomProblem(random, shape, kRows, Decay::kHead, -0.2f);
  good.own_write_key = true;
  std::vector<double> out, state;
  Reference(good, out, state);
  for (const size_t row : {0u, 1u, 17u, 63u, 64u, 80u}) {
    for (const auto input : {&Problem::q, &Problem::k, &Problem::w, &Problem::v, &Problem::beta,
                             &Problem::log_decay}) {
      Problem lost = good;
      std::vector<float>& values = lost.*input;
      values[row * values.size() / kRows] = std::numeric_limits<float>::quiet_NaN();
      if (input == &Problem::log_decay) lost.decay[row * 2] = values[row * 2];
      for (const Form form : {DeltaRuleSteps, DeltaRuleChunks}) {
        SCOPED_TRACE(::testing::Message()
                     << (form == DeltaRuleSteps ? "step" : "chunk") << " form, row " << row);
        std::vector<float> got, memory = lost.state;
        form(lost.Args(got), 0, kRows, memory.data());
        testing::ExpectClose(std::span(got).first(row * kRowFloats),
                             std::span(out).first(row * kRowFloats), 1e-5, "rows before");
        EXPECT_TRUE(std::isnan(got[row * kRowFloats])) << "the lost row does not show it";
      }
    }
  }
}

TEST(DeltaRule, LeavesTheStateAloneWhereBetaIsZeroAndNothingDecays) {
  std::mt19937 random(1);
  const DeltaRuleShape shape{.heads = 1, .value_heads = 2, .key_dim = 9, .value_dim = 21};
  Problem problem = RandomProblem(random, shape, 5, Decay::kNone, 0);
  std::fill(problem.beta.begin(), problem.beta.end(), 0.0f);
  std::vector<float> out, memory = problem.state;
  DeltaRuleSteps(problem.Args(out), 0, 5, memory.data());
  EXPECT_EQ(memory, problem.state);
}

// One sequence through DeltaRuleCpu, with read-outs if `readouts`.
struct Ran {
  std::vector<float> out, state, residual, contraction, decay;
};
Ran RunRule(Problem& p, int32_t slot, bool readouts) {
  Ran ran;
  const auto rows = static_cast<size_t>(p.rows);
  for (auto* of : {&ran.residual, &ran.contraction, &ran.decay}) of->assign(rows, 5.0f);
  // Two slots, of which the second is the sequence's.
  std::vector<float> pool(p.state.size());
  pool.insert(pool.end(), p.state.begin(), p.state.end());
  const std::vector<int32_t> starts = {0, static_cast<int32_t>(p.rows)}, slots = {slot};
  DeltaRuleArgs args = p.Args(ran.out);
  args.state = {.base = reinterpret_cast<std::byte*>(pool.data()),
                .stride = static_cast<int64_t>(p.state.size() * sizeof(float))};
  if (readouts) {
    args.readouts = {.residual = ran.residual.data(),
                     .contraction = ran.contraction.data(),
                     .decay = ran.decay.data()};
  }
  DeltaRuleCpu({.rows = static_cast<int>(p.rows),
                .sequences = 1,
                .row_start = starts.data(),
                .slots = slots.data()},
               args);
  ran.state.assign(pool.begin() + static_cast<ptrdiff_t>(p.state.size()), pool.end());
  return ran;
}

// The same quantities in float64: each token's from the state that the tokens before it left.
void ReferenceReadouts(const Problem& p, std::vector<double>& residual,
                       std::vector<double>& contraction, std::vector<double>& decay) {
  const auto& [heads, value_heads, key_dim, value_dim] = p.shape;
  Problem before = p;
  for (int64_t t = 0; t < p.rows; ++t) {
    before.rows = t;
    std::vector<double> out, state;
    Reference(before, out, state);
    double residuals = 0, contractions = 0, decays = 0;
    for (int64_t j = 0; j < value_heads; ++j) {
      const int64_t at = t * value_heads + j;
      const float* k = p.k.data() + (t * heads + j / (value_heads / heads)) * key_dim;
      const float* w = p.own_write_key ? p.w.data() + at * key_dim : k;
      std::vector<double> kept(static_cast<size_t>(key_dim), 1.0);
      double inner = 0, error = 0, length = 0;
      for (int64_t i = 0; i < key_dim; ++i) {
        const int64_t g = p.channel ? at * key_dim + i : at;
        double& a = kept[static_cast<size_t>(i)];
        if (!p.decay.empty())
          a = std::exp(static_cast<double>(p.log_decay[static_cast<size_t>(g)]));
        inner += static_cast<double>(w[i]) * static_cast<double>(k[i]);
        decays += a / static_cast<double>(key_dim);
      }
      for (int64_t m = 0; m < value_dim; ++m) {
        const double v = p.v[static_cast<size_t>(at * value_dim + m)];
        double e = v;
        for (int64_t i = 0; i < key_dim; ++i) {
          e -= kept[static_cast<size_t>(i)] * static_cast<double>(k[i]) *
               state[static_cast<size_t>((j * key_dim + i) * value_dim + m)];
        }
        error += e * e;
        length += v * v;
      }
      residuals += std::sqrt(error / length);
      contractions += std::pow(1 - static_cast<double>(p.beta[static_cast<size_t>(at)]) * inner, 2);
    }
    residual.push_back(residuals / static_cast<double>(value_heads));
    contraction.push_back(contractions / static_cast<double>(value_heads));
    decay.push_back(decays / static_cast<double>(value_heads));
  }
}

TEST(DeltaRule, ReadsOutWhatATokenDidWithoutChangingABit) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int i = 0; i < 14; ++i) {
    // The last two are large enough for the chunk form.
    const bool large = i >= 12;
    const DeltaRuleShape shape =
        large ? DeltaRuleShape{.heads = 1, .value_heads = 2, .key_dim = 200, .value_dim = 330}
              : RandomShape(random);
    Problem problem = RandomProblem(random, shape, large ? 20 : 1 + i,
                                    static_cast<Decay>(large ? i % 2 : i % 3), -0.5f);
    SCOPED_TRACE("EDDY_TEST_SEED=" + std::to_string(seed) + ", problem " + std::to_string(i));
    const Ran off = RunRule(problem, 1, /*readouts=*/false);
    const Ran on = RunRule(problem, 1, /*readouts=*/true);
    EXPECT_EQ(off.out, on.out);
    EXPECT_EQ(off.state, on.state);
    EXPECT_EQ(off.residual, std::vector<float>(off.residual.size(), 5.0f));
    std::vector<double> residual, contraction, decay;
    ReferenceReadouts(problem, residual, contraction, decay);
    testing::ExpectClose(on.residual, residual, 1e-5, "residual");
    testing::ExpectClose(on.contraction, contraction, 1e-5, "contraction");
    testing::ExpectClose(on.decay, decay, 1e-5, "decay");
    const Ran nobody = RunRule(problem, kNoSlot, /*readouts=*/true);
    EXPECT_EQ(nobody.state, problem.state);
    for (const auto* of : {&nobody.out, &nobody.residual, &nobody.contraction, &nobody.decay}) {
      EXPECT_EQ(*of, std::vector<float>(of->size()));
    }
  }
}

}  // namespace
}  // namespace eddy
