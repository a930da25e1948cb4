// What float64 references of layers are put together from. No code of the layers is used.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layer.h"
#include "tests/testing/layer_conformance.h"

namespace eddy::testing {

using Vector = std::vector<double>;

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }
inline double LogSigmoid(double x) { return -Softplus(-x); }
inline double Silu(double x) { return x * Sigmoid(x); }

inline double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// x / sqrt(mean(x^2) + eps) * w
inline Vector RmsNorm(std::span<const double> x, std::span<const double> w, double eps) {
  const double scale = 1 / std::sqrt(Dot(x, x) / static_cast<double>(x.size()) + eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
  return y;
}

inline std::span<const double> Part(const Vector& x, size_t first, size_t size) {
  return std::span(x).subspan(first, size);
}

// The weights of a layer in float64, and what layers do with them.
class Float64Layer {
 public:
  Float64Layer(const LayerSpec& spec, const Weights& weights) : spec_(spec) {
    for (const auto& [name, values] : weights) w_[name] = Vector(values.begin(), values.end());
  }

  size_t Size(const char* name) const { return static_cast<size_t>(spec_.Int(name)); }
  bool Has(const std::string& name) const { return w_.count(name) > 0; }
  const Vector& At(const std::string& name) const { return w_.at(name); }
  const LayerSpec& spec() const { return spec_; }

  Vector Norm(const Vector& x) const { return RmsNorm(x, At("norm.weight"), spec_.norm_eps); }
  // W x + bias, where there is one.
  Vector Linear(const std::string& name, std::span<const double> x) const {
    const Vector& w = At(name + ".weight");
    Vector y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      y[o] = Dot(Part(w, o * x.size(), x.size()), x);
      if (Has(name + ".bias")) y[o] += At(name + ".bias")[o];
    }
    return y;
  }
  // The convolution "conv" of all inputs so far, of which `inputs` keeps a list.
  Vector Conv(const Vector& input, std::vector<Vector>& inputs) const {
    inputs.push_back(input);
    const size_t width = Size("conv_width");
    Vector y(input.size());
    for (size_t c = 0; c < y.size(); ++c) {
      if (Has("conv.bias")) y[c] = At("conv.bias")[c];
      for (size_t back = 0; back < width && back < inputs.size(); ++back) {
        const double tap = At("conv.weight")[c * width + width - 1 - back];
        y[c] += tap * inputs[inputs.size() - 1 - back][c];
      }
    }
    return y;
  }
  // What the state field of that convolution holds: the last inputs, zeros before the first.
  Vector ConvState(const std::vector<Vector>& inputs) const {
    Vector state;
    for (size_t back = Size("conv_width") - 1; back > 0; --back) {
      const Vector zeros(inputs[0].size());
      const Vector& row = inputs.size() >= back ? inputs[inputs.size() - back] : zeros;
      state.insert(state.end(), row.begin(), row.end());
    }
    return state;
  }

 private:
  const LayerSpec& spec_;
  std::map<std::string, Vector> w_;
};

// Runs `add(row)`, which returns what the block adds to a row, over all rows.
template <typename Add>
Vector RunRows(std::span<const float> x, size_t d_model, Add add) {
  Vector out;
  for (size_t at = 0; at < x.size(); at += d_model) {
    Vector row(x.begin() + static_cast<std::ptrdiff_t>(at),
               x.begin() + static_cast<std::ptrdiff_t>(at + d_model));
    const Vector added = add(row);
    for (size_t i = 0; i < d_model; ++i) out.push_back(row[i] + added[i]);
  }
  return out;
}

// `spec` with some of its parameters changed.
using Params = std::vector<std::pair<std::string, LayerSpec::Value>>;
inline LayerSpec Changed(LayerSpec spec, const Params& changes) {
  for (const auto& [name, value] : changes) {
    bool found = false;
    for (auto& param : spec.params) {
      if (param.first == name) param.second = value, found = true;
    }
    EXPECT_TRUE(found) << name;
  }
  return spec;
}

}  // namespace eddy::testing
