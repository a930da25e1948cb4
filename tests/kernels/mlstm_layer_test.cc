// Proves layer "mlstm" in all families of its options against a float64 reference written here from
// the page of the layer (kernels/layers/mlstm/mlstm.h), token by token; that it obeys the laws of
// every layer; and that gates far outside the range of e^x do it no harm.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/layers/mlstm/mlstm.h"
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

// The state of one head, and one token of it.
struct Head {
  Vector memory, normaliser;
  double stabiliser = 0;

  Vector Token(std::span<const double> q, std::span<const double> k, std::span<const double> v,
               double input, double log_forget) {
    const double before = stabiliser;
    stabiliser = std::max(log_forget + before, input);
    const double keep = std::exp(log_forget + before - stabiliser);
    const double write = std::exp(input - stabiliser);
    const double root = std::sqrt(static_cast<double>(k.size()));
    Vector h(v.size());
    for (size_t i = 0; i < k.size(); ++i) {
      normaliser[i] = keep * normaliser[i] + write * k[i] / root;
      for (size_t m = 0; m < v.size(); ++m) {
        double& c = memory[i * v.size() + m];
        c = keep * c + write * k[i] / root * v[m];
        h[m] += c * q[i];
      }
    }
    const double divisor =
        std::max(std::abs(testing::Dot(normaliser, q)), std::exp(-stabiliser)) + 1e-6;
    for (double& value : h) value /= divisor;
    return h;
  }
};

Trace Reference(const LayerSpec& spec, const Weights& weights, std::span<const float> x, int64_t) {
  const Float64Layer layer(spec, weights);
  const size_t heads = layer.Size("heads");
  const size_t key_dim = layer.Size("key_dim"), value_dim = layer.Size("value_dim");
  const auto cap = [&](double a) {
    if (spec.IsNull("gate_softcap")) return a;
    return spec.Real("gate_softcap") * std::tanh(a / spec.Real("gate_softcap"));
  };
  std::vector<Head> states(heads, {Vector(key_dim * value_dim), Vector(key_dim)});
  const auto token = [&](const Vector& row) {
    const Vector n = layer.Norm(row);
    const Vector q = layer.Linear("q", n), k = layer.Linear("k", n), v = layer.Linear("v", n);
    const Vector input = layer.Linear("input_gate", n), forget = layer.Linear("forget_gate", n);
    const Vector z = layer.Linear("gate", n);
    Vector out;
    for (size_t j = 0; j < heads; ++j) {
      const double f = cap(forget[j]);
      Vector h = states[j].Token(
          testing::Part(q, j * key_dim, key_dim), testing::Part(k, j * key_dim, key_dim),
          testing::Part(v, j * value_dim, value_dim), cap(input[j]),
          spec.Word("forget_gate") == "sigmoid" ? testing::LogSigmoid(f) : f);
      double mean = 0;
      for (double value : h) mean += value / static_cast<double>(value_dim);
      for (double& value : h) value -= mean;
      h = testing::RmsNorm(h, testing::Part(layer.At("out_norm.weight"), j * value_dim, value_dim),
                           spec.norm_eps);
      for (size_t m = 0; m < value_dim; ++m) {
        out.push_back(h[m] * testing::Sigmoid(z[j * value_dim + m]));
      }
    }
    return layer.Linear("out", out);
  };
  Trace trace{.out = testing::RunRows(x, static_cast<size_t>(spec.d_model), token)};
  for (const Head& head : states) {
    const auto append = [](Vector& to, const Vector& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(trace.state["state"], head.memory);
    append(trace.state["normaliser"], head.normaliser);
    trace.state["stabiliser"].push_back(head.stabiliser);
  }
  return trace;
}

// A forget gate that keeps most, as trained ones do.
void LongMemory(const LayerSpec&, Weights& weights) {
  for (float& value : weights.at("forget_gate.bias")) value += 3;
}

// Where the forget gate is exponential it must not grow without end.
void ShrinkingMemory(const LayerSpec&, Weights& weights) {
  for (float& value : weights.at("forget_gate.bias")) value -= 1;
}

LayerCase Case(const std::string& name, const Params& changes) {
  LayerCase test{.name = name,
                 .spec = testing::Changed({.type = "mlstm",
                                           .d_model = 24,
                                           .norm_eps = 1e-2,
                                           .params = {{"heads", int64_t{2}},
                                                      {"key_dim", int64_t{7}},
                                                      {"value_dim", int64_t{19}},
                                                      {"forget_gate", "sigmoid"},
                                                      {"gate_softcap", kNull},
                                                      {"bias", false}}},
                                          changes),
                 .reference = Reference,
                 .prepare = LongMemory};
  if (test.spec.Word("forget_gate") == "exponential") test.prepare = ShrinkingMemory;
  test.adds_nothing_without_rule = !test.spec.Flag("bias");
  return test;
}

TEST(MlstmLayer, ObeysTheLawsInEveryFamilyOfOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const std::vector<std::pair<const char*, Params>> families = {
      {"plain", {}},
      {"exponential_forget_gate", {{"forget_gate", "exponential"}}},
      {"capped_gates", {{"gate_softcap", 1.5}}},
      {"bias_everywhere", {{"bias", true}}},
      {"one_key_channel", {{"key_dim", int64_t{1}}, {"value_dim", int64_t{33}}}},
      {"keys_wider_than_values", {{"key_dim", int64_t{40}}, {"value_dim", int64_t{5}}}}};
  for (const auto& [name, changes] : families) {
    testing::CheckLayerLaws(*device, Case(name, changes), seed);
  }
}

TEST(MlstmLayer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (uint32_t i = 0; i < 4; ++i) {
    const int64_t heads = draw(1, 4), key_dim = draw(1, 70), value_dim = draw(1, 140);
    const std::string name = std::to_string(heads) + " heads, K " + std::to_string(key_dim) +
                             ", V " + std::to_string(value_dim);
    LayerCase test = Case(name, {{"heads", heads}, {"key_dim", key_dim}, {"value_dim", value_dim}});
    test.rows = static_cast<int>(draw(7, 200));
    testing::CheckLayerLaws(*device, test, seed + i);
    test.spec.norm_eps = 1e-5;  // as trained models have it
    testing::CheckLayerRounding(*device, test, seed + i);
  }
}

TEST(MlstmLayer, SurvivesGatesFarOutsideTheRangeOfTheExponential) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  for (const float shift : {200.0f, -200.0f}) {
    const LayerCase test = Case("shift", {});
    Weights weights = testing::RandomWeights(test.spec, seed);
    for (float& value : weights.at("input_gate.bias")) value += shift;
    const std::vector<float> x = testing::RandomRows(30, test.spec.d_model, seed);
    testing::LayerRig rig(*device, test.spec, weights, 1);
    rig.Fill(1);
    const std::vector<float> out = rig.Run({{.slot = 1, .x = x}});
    testing::ExpectClose(out, Reference(test.spec, weights, x, 30).out, 1e-4,
                         "shift " + std::to_string(shift));
  }
}

}  // namespace
}  // namespace eddy
