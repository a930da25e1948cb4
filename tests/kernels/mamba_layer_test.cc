// Proves layers "mamba" and "longhorn" in all families of their options against a float64 reference
// written here from the page of the layers (kernels/layers/mamba/mamba.h), token by token; and that
// they obey the laws of every layer.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/layers/mamba/mamba.h"
#include "tests/kernels/float64.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using testing::Float64Layer;
using testing::LayerCase;
using testing::Params;
using testing::Trace;
using testing::Vector;
using testing::Weights;

Trace Reference(const LayerSpec& spec, const Weights& weights, std::span<const float> x, int64_t) {
  const Float64Layer layer(spec, weights);
  const size_t channels = layer.Size("channels"), state_dim = layer.Size("state_dim");
  const size_t rank = layer.Size("step_rank");
  Vector state(state_dim * channels);
  std::vector<Vector> inputs;
  const auto token = [&](const Vector& row) {
    const Vector in = layer.Linear("in", layer.Norm(row));
    const auto before = testing::Part(in, 0, channels);
    Vector s = layer.Conv(Vector(before.begin(), before.end()), inputs);
    for (double& value : s) value = testing::Silu(value);
    const Vector select = layer.Linear("select", s);
    const Vector d = layer.Linear("step_up", testing::Part(select, 0, rank));
    const auto k = testing::Part(select, rank, state_dim);
    const auto q = testing::Part(select, rank + state_dim, state_dim);
    Vector out(channels);
    for (size_t c = 0; c < channels; ++c) {
      double step = 0;
      if (spec.type == "mamba") {
        step = testing::Softplus(d[c]);
      } else {
        const double b = testing::Sigmoid(d[c]);
        step = b / (1 + b * testing::Dot(k, k));
      }
      double o = layer.At("skip")[c] * s[c];
      for (size_t n = 0; n < state_dim; ++n) {
        const double decay =
            spec.type == "mamba"
                ? std::exp(-step * std::exp(layer.At("decay_rate_log")[c * state_dim + n]))
                : 1 - step * k[n] * k[n];
        double& h = state[n * channels + c];
        h = decay * h + k[n] * step * s[c];
        o += q[n] * h;
      }
      out[c] = o * testing::Silu(in[channels + c]);
    }
    return layer.Linear("out", out);
  };
  Trace trace{.out = testing::RunRows(x, static_cast<size_t>(spec.d_model), token)};
  trace.state = {{"state", state}, {"conv", layer.ConvState(inputs)}};
  return trace;
}

// Steps around 0.1, as trained ones are: see mamba2_layer_test.cc.
void SmallSteps(const LayerSpec&, Weights& weights) {
  for (float& value : weights.at("step_up.bias")) value -= 2;
}

LayerCase Case(const char* type, const std::string& name, const Params& changes) {
  LayerCase test{.name = std::string(type) + " " + name,
                 .spec = testing::Changed({.type = type,
                                           .d_model = 24,
                                           .norm_eps = 1e-5,
                                           .params = {{"channels", int64_t{37}},
                                                      {"state_dim", int64_t{7}},
                                                      {"step_rank", int64_t{3}},
                                                      {"conv_width", int64_t{4}},
                                                      {"conv_bias", true},
                                                      {"bias", false}}},
                                          changes),
                 .reference = Reference,
                 .prepare = SmallSteps};
  test.adds_nothing_without_rule = !test.spec.Flag("bias");
  return test;
}

TEST(MambaLayer, ObeysTheLawsInEveryFamilyOfOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const std::vector<std::pair<const char*, Params>> families = {
      {"plain", {}},
      {"no_bias_in_the_convolution", {{"conv_bias", false}, {"conv_width", int64_t{2}}}},
      {"bias_everywhere", {{"bias", true}, {"conv_width", int64_t{3}}}},
      {"one_state_channel", {{"state_dim", int64_t{1}}}},
      {"one_channel", {{"channels", int64_t{1}}}}};
  for (const char* type : {"mamba", "longhorn"}) {
    for (const auto& [name, changes] : families) {
      testing::CheckLayerLaws(*device, Case(type, name, changes), seed);
    }
  }
}

TEST(MambaLayer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const int64_t channels = draw(1, 90), state_dim = draw(1, 40), rank = draw(1, 9);
    const int64_t conv_width = draw(2, 4);
    const std::string name = "I " + std::to_string(channels) + ", N " + std::to_string(state_dim) +
                             ", R " + std::to_string(rank) + ", W " + std::to_string(conv_width);
    LayerCase test = Case(i % 2 == 0 ? "mamba" : "longhorn", name,
                          {{"channels", channels},
                           {"state_dim", state_dim},
                           {"step_rank", rank},
                           {"conv_width", conv_width}});
    test.rows = static_cast<int>(draw(7, 200));
    testing::CheckLayerLaws(*device, test, seed + i);
  }
}

}  // namespace
}  // namespace eddy
