// Proves layers "swiglu" and "gelu" against float64 and the laws of every layer.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/layer_conformance.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using testing::LayerCase;
using testing::Trace;
using testing::Weights;

Trace Reference(const LayerSpec& spec, const Weights& weights, std::span<const float> x,
                int64_t rows) {
  const auto d_model = static_cast<size_t>(spec.d_model);
  const auto size = static_cast<size_t>(spec.Int("size"));
  Trace trace{.out = {x.begin(), x.end()}};
  const auto dot = [](const std::vector<float>& w, size_t row, const std::vector<double>& v) {
    double sum = 0;
    for (size_t i = 0; i < v.size(); ++i) sum += static_cast<double>(w[row * v.size() + i]) * v[i];
    return sum;
  };
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    double* row = trace.out.data() + r * d_model;
    double square = 0;
    for (size_t i = 0; i < d_model; ++i) square += row[i] * row[i];
    const double scale = 1 / std::sqrt(square / static_cast<double>(d_model) + spec.norm_eps);
    std::vector<double> n(d_model), inner(size);
    for (size_t i = 0; i < d_model; ++i) {
      n[i] = row[i] * scale * static_cast<double>(weights.at("norm.weight")[i]);
    }
    for (size_t i = 0; i < size; ++i) {
      const double up = dot(weights.at("up.weight"), i, n);
      if (spec.type == "gelu") {
        inner[i] = up * 0.5 * std::erfc(-up / std::numbers::sqrt2);
      } else {
        const double gate = dot(weights.at("gate.weight"), i, n);
        inner[i] = gate / (1 + std::exp(-gate)) * up;
      }
    }
    for (size_t i = 0; i < d_model; ++i) row[i] += dot(weights.at("down.weight"), i, inner);
  }
  return trace;
}

TEST(MlpLayer, ObeysTheLaws) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  for (const char* type : {"swiglu", "gelu"}) {
    for (int64_t size : {1, 37, 128}) {
      const LayerCase test{
          .name = std::string(type) + " " + std::to_string(size),
          .spec = {.type = type, .d_model = 19, .norm_eps = 1e-6, .params = {{"size", size}}},
          .reference = Reference};
      testing::CheckLayerLaws(*device, test, seed);
    }
  }
}

TEST(MlpLayer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (uint32_t i = 0; i < 10; ++i) {
    const int64_t d_model = draw(1, 70), size = draw(1, 150);
    const char* const type = i % 2 == 0 ? "swiglu" : "gelu";
    const LayerCase test{
        .name = std::string(type) + ", d_model " + std::to_string(d_model) + ", size " +
                std::to_string(size),
        .spec = {.type = type, .d_model = d_model, .norm_eps = 1e-6, .params = {{"size", size}}},
        .reference = Reference,
        .rows = static_cast<int>(draw(7, 200))};
    testing::CheckLayerLaws(*device, test, seed + i);
  }
}

}  // namespace
}  // namespace eddy
