// Proves layer "attention" in all its options against a float64 reference written here from the
// page of the layer (kernels/layers/attention/attention.h), with no code of the layer; and that it
// obeys the laws of every layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/layers/attention/attention.h"
#include "tests/testing/layer_conformance.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;
using testing::LayerCase;
using testing::Trace;
using testing::Weights;
using Vector = std::vector<double>;

class ReferenceAttention {
 public:
  ReferenceAttention(const LayerSpec& spec, const Weights& weights)
      : spec_(spec),
        heads_(static_cast<size_t>(spec.Int("heads"))),
        kv_heads_(static_cast<size_t>(spec.Int("kv_heads"))),
        d_(static_cast<size_t>(spec.Int("head_dim"))) {
    for (const auto& [name, values] : weights) w_[name] = Vector(values.begin(), values.end());
  }

  // Rewrites one row; rows come in order.
  void Token(Vector& x) {
    double square = 0;
    for (double value : x) square += value * value;
    Vector n = x;
    for (size_t i = 0; i < n.size(); ++i) {
      n[i] *=
          w_["norm.weight"][i] / std::sqrt(square / static_cast<double>(x.size()) + spec_.norm_eps);
    }
    Vector q = Projected("q", n), k = Projected("k", n);
    Turn(q, heads_), Turn(k, kv_heads_);
    keys_.push_back(k);
    values_.push_back(Projected("v", n));
    Vector all;
    for (size_t h = 0; h < heads_; ++h) {
      const Vector o = Read(q.data() + h * d_, h / (heads_ / kv_heads_));
      all.insert(all.end(), o.begin(), o.end());
    }
    const Vector y = MatVec("out.weight", all);
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

 private:
  Vector MatVec(const std::string& name, const Vector& x) {
    const Vector& w = w_.at(name);
    Vector y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }
  Vector Projected(const std::string& name, const Vector& n) {
    Vector y = MatVec(name + ".weight", n);
    if (spec_.Flag("bias")) {
      for (size_t i = 0; i < y.size(); ++i) y[i] += w_.at(name + ".bias")[i];
    }
    return y;
  }
  // As a complex number, x_i + i x_{i + d/2} is multiplied with e^{i angle}.
  void Turn(Vector& x, size_t heads) const {
    const auto t = static_cast<double>(keys_.size());  // this row's key is not among them yet
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < d_ / 2; ++i) {
        double& re = x[h * d_ + i];
        double& im = x[h * d_ + i + d_ / 2];
        const double angle = t / std::pow(spec_.Real("rope_theta"),
                                          2.0 * static_cast<double>(i) / static_cast<double>(d_));
        const double turned = re * std::cos(angle) - im * std::sin(angle);
        im = re * std::sin(angle) + im * std::cos(angle);
        re = turned;
      }
    }
  }
  Vector Read(const double* q, size_t kv_head) const {
    size_t from = 0;
    if (!spec_.IsNull("window")) {
      const auto window = static_cast<size_t>(spec_.Int("window"));
      from = keys_.size() - std::min(keys_.size(), window);
    }
    Vector out(d_);
    double sum = 0;
    for (size_t s = from; s < keys_.size(); ++s) {
      double score = 0;
      for (size_t i = 0; i < d_; ++i) score += q[i] * keys_[s][kv_head * d_ + i];
      const double weight = std::exp(score / std::sqrt(static_cast<double>(d_)));
      sum += weight;
      for (size_t i = 0; i < d_; ++i) out[i] += weight * values_[s][kv_head * d_ + i];
    }
    for (double& value : out) value /= sum;
    return out;
  }

  const LayerSpec spec_;
  const size_t heads_, kv_heads_, d_;
  std::map<std::string, Vector> w_;
  std::vector<Vector> keys_, values_;
};

Trace Reference(const LayerSpec& spec, const Weights& weights, std::span<const float> x,
                int64_t rows) {
  ReferenceAttention layer(spec, weights);
  Trace trace;
  for (int64_t r = 0; r < rows; ++r) {
    Vector row(x.begin() + r * spec.d_model, x.begin() + (r + 1) * spec.d_model);
    layer.Token(row);
    trace.out.insert(trace.out.end(), row.begin(), row.end());
  }
  return trace;
}

struct Options {
  int64_t heads = 4, kv_heads = 2, head_dim = 6;
  double rope_theta = 10000;
  int64_t window = 0;
  bool bias = false;
  int64_t d_model = 24;
};

LayerSpec::Value NullIfZero(int64_t value) {
  return value == 0 ? LayerSpec::Value() : LayerSpec::Value(value);
}

LayerSpec Spec(const Options& o) {
  return {.type = "attention",
          .d_model = o.d_model,
          .norm_eps = 1e-5,
          .params = {{"heads", o.heads},
                     {"head_dim", o.head_dim},
                     {"kv_heads", o.kv_heads},
                     {"rope_theta", o.rope_theta},
                     {"window", NullIfZero(o.window)},
                     {"bias", o.bias}}};
}

TEST(AttentionLayer, ObeysTheLawsInAllItsOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const std::pair<const char*, Options> kCases[] = {
      {"grouped queries", {}},
      {"one head", {.heads = 1, .kv_heads = 1, .head_dim = 2}},
      {"a key for each query", {.heads = 3, .kv_heads = 3, .head_dim = 10, .bias = true}},
      {"one key for all", {.heads = 9, .kv_heads = 1, .head_dim = 64}},
      {"other frequencies", {.rope_theta = 17.5}},
      {"window of one", {.window = 1}},
      {"window", {.window = 13, .bias = true}},
      {"window longer than the prompt", {.window = 1000}},
  };
  for (const auto& [name, options] : kCases) {
    const LayerSpec spec = Spec(options);
    ASSERT_EQ(AttentionType().conflict(spec), std::nullopt) << name;
    testing::CheckLayerLaws(*device, {.name = name, .spec = spec, .reference = Reference}, seed);
  }
}

TEST(AttentionLayer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (int i = 0; i < 8; ++i) {
    Options options = {.kv_heads = draw(1, 3),
                       .head_dim = 2 * draw(1, 33),
                       .window = draw(0, 1) * draw(1, 90),
                       .bias = draw(0, 1) == 1,
                       .d_model = draw(5, 70)};
    options.heads = options.kv_heads * draw(1, 4);
    const LayerCase test{.name = "random " + std::to_string(i),
                         .spec = Spec(options),
                         .reference = Reference,
                         .rows = static_cast<int>(draw(7, 200))};
    testing::CheckLayerLaws(*device, test, seed);
  }
}

TEST(AttentionLayer, SaysWhichOptionsDoNotFitTogether) {
  EXPECT_THAT(*AttentionType().conflict(Spec({.head_dim = 7})), HasSubstr("head_dim is 7"));
  EXPECT_THAT(*AttentionType().conflict(Spec({.heads = 4, .kv_heads = 3})),
              HasSubstr("kv_heads is 3, it must divide heads, 4"));
}

TEST(AttentionLayer, TellsHowFarBackItReads) {
  EXPECT_EQ(AttentionNeeds(Spec({}), {}).kv_window, 0);
  EXPECT_EQ(AttentionNeeds(Spec({.window = 13}), {}).kv_window, 13);
  EXPECT_TRUE(AttentionNeeds(Spec({}), {}).state.empty());
}

}  // namespace
}  // namespace eddy
