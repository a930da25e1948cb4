// Proves layer "leaky" against float64 and the laws of every layer.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/example_layer/leaky.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

testing::Trace Reference(const LayerSpec& spec, const testing::Weights& weights,
                         std::span<const float> x, int64_t rows) {
  const auto d_model = static_cast<size_t>(spec.d_model);
  const auto size = static_cast<size_t>(spec.Int("size"));
  const auto weight = [&](const char* name, size_t i) -> double { return weights.at(name)[i]; };
  testing::Trace trace{.out = {x.begin(), x.end()}};
  std::vector<double> h(size);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    double* row = trace.out.data() + r * d_model;
    double square = 0;
    for (size_t i = 0; i < d_model; ++i) square += row[i] * row[i];
    const double scale = 1 / std::sqrt(square / static_cast<double>(d_model) + spec.norm_eps);
    for (size_t c = 0; c < size; ++c) {
      h[c] /= 1 + std::exp(-weight("decay", c));
      for (size_t i = 0; i < d_model; ++i) {
        h[c] += weight("in.weight", c * d_model + i) * row[i] * scale * weight("norm.weight", i);
      }
    }
    for (size_t i = 0; i < d_model; ++i) {
      for (size_t c = 0; c < size; ++c) row[i] += weight("out.weight", i * size + c) * h[c];
    }
  }
  trace.state["h"] = h;
  return trace;
}

TEST(LeakyLayer, ObeysTheLaws) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  for (int64_t size : {1, 37}) {
    testing::CheckLayerLaws(
        *device,
        {.name = "leaky " + std::to_string(size),
         .spec = {.type = "leaky", .d_model = 19, .norm_eps = 1e-6, .params = {{"size", size}}},
         .reference = Reference,
         .type = &LeakyType()},
        seed);
  }
}

}  // namespace
}  // namespace eddy
