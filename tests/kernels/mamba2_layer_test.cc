// Proves layer "mamba2" in all families of its options against a float64 reference written here
// from the page of the layer (kernels/layers/mamba2/mamba2.h), token by token; and that it obeys
// the laws of every layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/layers/mamba2/mamba2.h"
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
  const size_t heads = layer.Size("heads"), head_dim = layer.Size("head_dim");
  const size_t state_dim = layer.Size("state_dim"), groups = layer.Size("groups");
  const size_t inner = heads * head_dim, conv = inner + 2 * groups * state_dim;
  Vector state(heads * state_dim * head_dim);
  std::vector<Vector> inputs;
  const auto token = [&](const Vector& row) {
    const Vector in = layer.Linear("in", layer.Norm(row));
    const auto before = testing::Part(in, inner, conv);
    Vector u = layer.Conv(Vector(before.begin(), before.end()), inputs);
    for (double& value : u) value = testing::Silu(value);
    Vector y(inner);
    for (size_t j = 0; j < heads; ++j) {
      double delta = testing::Softplus(in[inner + conv + j] + layer.At("step_bias")[j]);
      delta = std::max(delta, spec.Real("step_min"));
      if (!spec.IsNull("step_max")) delta = std::min(delta, spec.Real("step_max"));
      const double decay = std::exp(-delta * std::exp(layer.At("decay_rate_log")[j]));
      const size_t b = inner + j / (heads / groups) * state_dim, c = b + groups * state_dim;
      for (size_t p = 0; p < head_dim; ++p) {
        const double s = u[j * head_dim + p];
        double& o = y[j * head_dim + p];
        o = layer.At("skip")[j] * s;
        for (size_t n = 0; n < state_dim; ++n) {
          double& h = state[(j * state_dim + n) * head_dim + p];
          h = decay * h + u[b + n] * delta * s;
          o += u[c + n] * h;
        }
        o *= testing::Silu(in[j * head_dim + p]);
      }
    }
    Vector out;
    for (size_t g = 0; g < groups; ++g) {
      const size_t size = inner / groups;
      const Vector normed = testing::RmsNorm(
          testing::Part(y, g * size, size),
          testing::Part(layer.At("out_norm.weight"), g * size, size), spec.norm_eps);
      out.insert(out.end(), normed.begin(), normed.end());
    }
    return layer.Linear("out", out);
  };
  Trace trace{.out = testing::RunRows(x, static_cast<size_t>(spec.d_model), token)};
  trace.state = {{"state", state}, {"conv", layer.ConvState(inputs)}};
  return trace;
}

// Steps around 0.1, as trained ones are: with those of 0.7 that chance gives, states forget within
// a few tokens.
void SmallSteps(const LayerSpec&, Weights& weights) {
  for (float& value : weights.at("step_bias")) value -= 2;
}

LayerSpec Spec(const Params& changes) {
  return testing::Changed({.type = "mamba2",
                           .d_model = 24,
                           .norm_eps = 1e-3,
                           .params = {{"heads", int64_t{3}},
                                      {"head_dim", int64_t{13}},
                                      {"state_dim", int64_t{7}},
                                      {"groups", int64_t{1}},
                                      {"conv_width", int64_t{4}},
                                      {"conv_bias", true},
                                      {"bias", false},
                                      {"step_min", int64_t{0}},
                                      {"step_max", kNull}}},
                          changes);
}

LayerCase Case(std::string name, const Params& changes) {
  LayerCase test{.name = std::move(name),
                 .spec = Spec(changes),
                 .reference = Reference,
                 .prepare = SmallSteps};
  test.adds_nothing_without_rule = !test.spec.Flag("bias");
  return test;
}

TEST(Mamba2Layer, ObeysTheLawsInEveryFamilyOfOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const std::vector<std::pair<const char*, Params>> families = {
      {"plain", {}},
      {"groups", {{"heads", int64_t{6}}, {"groups", int64_t{2}}}},
      {"as_many_groups_as_heads", {{"groups", int64_t{3}}}},
      {"no_bias_in_the_convolution", {{"conv_bias", false}, {"conv_width", int64_t{2}}}},
      {"bias_everywhere", {{"bias", true}, {"conv_width", int64_t{3}}}},
      {"bounded_steps", {{"step_min", 0.11}, {"step_max", 0.13}}},
      {"one_state_channel", {{"state_dim", int64_t{1}}}},
      {"one_wide_head", {{"heads", int64_t{1}}, {"head_dim", int64_t{70}}}}};
  for (const auto& [name, changes] : families) {
    const LayerCase test = Case(name, changes);
    ASSERT_EQ(Mamba2Type().conflict(test.spec), std::nullopt) << name;
    testing::CheckLayerLaws(*device, test, seed);
  }
}

TEST(Mamba2Layer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const int64_t groups = draw(1, 3), heads = groups * draw(1, 3);
    const int64_t head_dim = draw(1, 70), state_dim = draw(1, 70), conv_width = draw(2, 5);
    LayerCase test = Case(std::to_string(heads) + " heads of " + std::to_string(groups) + ", P " +
                              std::to_string(head_dim) + ", N " + std::to_string(state_dim) +
                              ", W " + std::to_string(conv_width),
                          {{"heads", heads},
                           {"groups", groups},
                           {"head_dim", head_dim},
                           {"state_dim", state_dim},
                           {"conv_width", conv_width}});
    test.rows = static_cast<int>(draw(7, 200));
    testing::CheckLayerLaws(*device, test, seed + i);
    test.spec.norm_eps = 1e-5;  // as trained models have it
    testing::CheckLayerRounding(*device, test, seed + i);
  }
}

TEST(Mamba2Layer, NamesParametersThatDoNotFitTogether) {
  const auto conflict = [](const Params& changes) {
    return Mamba2Type().conflict(Spec(changes)).value_or("");
  };
  EXPECT_THAT(conflict({{"groups", int64_t{2}}}),
              ::testing::HasSubstr("heads is 3, it must be a multiple of groups, 2"));
  EXPECT_THAT(conflict({{"step_min", 0.5}, {"step_max", 0.25}}),
              ::testing::HasSubstr("step_max is 0.25"));
}

}  // namespace
}  // namespace eddy
