// Proves layer "gla" in all families of its options against a float64 reference written here from
// the page of the layer (kernels/layers/gla/gla.h), token by token; and that it obeys the laws of
// every layer. norm_eps is 1e-3 because a head whose output is nearly zero (a first token with q
// and k nearly orthogonal) has its rounding errors magnified by norm_eps^-1/2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/layers/gla/gla.h"
#include "tests/kernels/float64.h"
#include "tests/testing/layer_rounding.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using testing::Float64Layer;
using testing::LayerCase;
using testing::Params;
using testing::Trace;
using testing::Vector;
using testing::Weights;

constexpr std::monostate kNull;

Trace Reference(const LayerSpec& spec, const Weights& weights, std::span<const float> x, int64_t) {
  const Float64Layer layer(spec, weights);
  const size_t heads = layer.Size("heads"), group = heads / layer.Size("kv_heads");
  const size_t key_dim = layer.Size("key_dim"), value_dim = layer.Size("value_dim");
  // A state for each head: those of a group are equal.
  std::vector<Vector> states(heads, Vector(key_dim * value_dim));
  const auto token = [&](const Vector& row) {
    const Vector n = layer.Norm(row);
    const Vector q = layer.Linear("q", n), k = layer.Linear("k", n), v = layer.Linear("v", n);
    const Vector f = layer.Linear("decay_up", layer.Linear("decay_down", n));
    const Vector z = layer.Linear("gate", n);
    Vector out;
    for (size_t j = 0; j < heads; ++j) {
      Vector& state = states[j];
      Vector o(value_dim);
      for (size_t i = 0; i < key_dim; ++i) {
        const size_t channel = j / group * key_dim + i;
        double g = testing::LogSigmoid(f[channel]) / spec.Real("decay_divisor");
        if (!spec.IsNull("decay_min")) g = std::max(g, spec.Real("decay_min"));
        for (size_t m = 0; m < value_dim; ++m) {
          double& s = state[i * value_dim + m];
          s = std::exp(g) * s + k[channel] * v[j / group * value_dim + m];
          o[m] += q[j * key_dim + i] * s / std::sqrt(static_cast<double>(key_dim));
        }
      }
      o = testing::RmsNorm(o, layer.At("out_norm.weight"), spec.norm_eps);
      for (size_t m = 0; m < value_dim; ++m)
        out.push_back(o[m] * testing::Silu(z[j * value_dim + m]));
    }
    return layer.Linear("out", out);
  };
  Trace trace{.out = testing::RunRows(x, static_cast<size_t>(spec.d_model), token)};
  for (size_t j = 0; j < heads; j += group) {
    trace.state["state"].insert(trace.state["state"].end(), states[j].begin(), states[j].end());
  }
  return trace;
}

LayerSpec Spec(const Params& changes) {
  return testing::Changed({.type = "gla",
                           .d_model = 24,
                           .norm_eps = 1e-3,
                           .params = {{"heads", int64_t{2}},
                                      {"kv_heads", int64_t{2}},
                                      {"key_dim", int64_t{7}},
                                      {"value_dim", int64_t{19}},
                                      {"decay_rank", int64_t{5}},
                                      {"decay_divisor", int64_t{16}},
                                      {"decay_min", kNull}}},
                          changes);
}

TEST(GlaLayer, ObeysTheLawsInEveryFamilyOfOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const std::vector<std::pair<const char*, Params>> families = {
      {"plain", {}},
      {"groups", {{"heads", int64_t{6}}}},
      {"one_group", {{"heads", int64_t{3}}, {"kv_heads", int64_t{1}}, {"value_dim", int64_t{64}}}},
      {"bounded_decay", {{"decay_min", -0.05}}},
      {"fast_decay", {{"decay_divisor", 0.5}}},
      {"one_key_channel", {{"key_dim", int64_t{1}}, {"value_dim", int64_t{40}}}},
      {"keys_wider_than_values", {{"key_dim", int64_t{65}}, {"value_dim", int64_t{3}}}}};
  for (const auto& [name, changes] : families) {
    const LayerCase test{.name = name, .spec = Spec(changes), .reference = Reference};
    ASSERT_EQ(GlaType().conflict(test.spec), std::nullopt) << name;
    testing::CheckLayerLaws(*device, test, seed);
  }
}

TEST(GlaLayer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const int64_t kv_heads = draw(1, 3), heads = kv_heads * draw(1, 3);
    const int64_t key_dim = draw(1, 70), value_dim = draw(1, 140);
    LayerCase test{.name = std::to_string(heads) + " heads of " + std::to_string(kv_heads) +
                           ", K " + std::to_string(key_dim) + ", V " + std::to_string(value_dim),
                   .spec = Spec({{"heads", heads},
                                 {"kv_heads", kv_heads},
                                 {"key_dim", key_dim},
                                 {"value_dim", value_dim}}),
                   .reference = Reference,
                   .rows = static_cast<int>(draw(7, 200))};
    testing::CheckLayerLaws(*device, test, seed + i);
    test.spec.norm_eps = 1e-5;  // as trained models have it
    testing::CheckLayerRounding(*device, test, seed + i);
  }
}

TEST(GlaLayer, NamesParametersThatDoNotFitTogether) {
  EXPECT_THAT(GlaType().conflict(Spec({{"kv_heads", int64_t{4}}})).value_or(""),
              ::testing::HasSubstr("heads is 2, it must be a multiple of kv_heads, 4"));
}

}  // namespace
}  // namespace eddy
