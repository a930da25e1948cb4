// Layer "delta" in float64, written from its page (kernels/layers/delta/delta.h) token by token and
// with no code of the layer; and the specs that its tests begin with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/layer_conformance.h"

namespace eddy::testing {

using Vector = std::vector<double>;

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The reference of one layer with its weights in float64.
class ReferenceDelta {
 public:
  ReferenceDelta(const LayerSpec& spec, const Weights& weights) : spec_(spec) {
    for (const auto& [name, values] : weights) w_[name] = Vector(values.begin(), values.end());
    heads_ = Size("heads"), value_heads_ = Size("value_heads");
    key_dim_ = Size("key_dim"), value_dim_ = Size("value_dim"), width_ = Size("conv_width");
    d_model_ = static_cast<size_t>(spec.d_model);
    if (Has("scale_init")) scale_ = w_["scale_init"];
    state_ = Has("state_init") ? w_["state_init"] : Vector(value_heads_ * key_dim_ * value_dim_);
  }

  // Rewrites one row.
  void Token(Vector& x);
  Trace Finish(Vector out) {
    Trace trace{.out = std::move(out)};
    trace.state["state"] = state_;
    trace.readouts = readouts_;
    if (!scale_.empty()) trace.state["scale"] = scale_;
    for (const auto& [name, inputs] : inputs_) {
      // The last W - 1 inputs, zeros before the first.
      const size_t channels = inputs.empty() ? 0 : inputs[0].size();
      Vector& field = trace.state["conv_" + name];
      for (size_t j = width_ - 1; j > 0; --j) {
        const Vector zeros(channels);
        const Vector& row = inputs.size() >= j ? inputs[inputs.size() - j] : zeros;
        field.insert(field.end(), row.begin(), row.end());
      }
    }
    return trace;
  }

 private:
  size_t Size(const char* name) const { return static_cast<size_t>(spec_.Int(name)); }
  bool Has(const std::string& name) const { return w_.count(name) > 0; }
  bool Is(const char* name, const char* word) const { return spec_.Word(name) == word; }

  Vector MatVec(const std::string& name, const Vector& x) {
    const Vector& w = w_.at(name);
    Vector y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }
  Vector Norm(const Vector& x, const Vector& w) const {
    double square = 0;
    for (double value : x) square += value * value;
    const double mean = square / static_cast<double>(x.size());
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(mean + spec_.norm_eps) * w[i];
    return y;
  }
  // q, k or v of the row: projection, convolution, activation.
  Vector Projected(const std::string& name, const std::string& activation, const Vector& normed) {
    Vector y = MatVec(name + ".weight", normed);
    if (width_ > 0) {
      std::vector<Vector>& inputs = inputs_[name];
      inputs.push_back(y);
      const Vector& taps = w_.at(name + "_conv.weight");
      for (size_t c = 0; c < y.size(); ++c) {
        y[c] = 0;
        for (size_t back = 0; back < width_ && back < inputs.size(); ++back) {
          y[c] += taps[c * width_ + width_ - 1 - back] * inputs[inputs.size() - 1 - back][c];
        }
      }
    }
    for (double& value : y) {
      if (activation == "silu") value *= Sigmoid(value);
      if (activation == "relu") value = std::max(value, 0.0);
      if (activation == "elu") value = value > 0 ? value + 1 : std::exp(value);
    }
    return y;
  }
  void Normalise(const std::string& norm, Vector& x) const {
    for (size_t h = 0; h < heads_; ++h) {
      double square = 1e-6, sum = 0;
      for (size_t i = 0; i < key_dim_; ++i) {
        square += x[h * key_dim_ + i] * x[h * key_dim_ + i];
        sum += x[h * key_dim_ + i];
      }
      for (size_t i = 0; i < key_dim_; ++i) {
        if (norm == "l2") x[h * key_dim_ + i] /= std::sqrt(square);
        if (norm == "sum") x[h * key_dim_ + i] /= sum;
      }
    }
  }
  double StepSize(size_t j, double logit, double square) const {
    const double s = static_cast<double>(spec_.Int("step_max")) * Sigmoid(logit);
    const double eps = spec_.IsNull("step_eps") ? 0 : spec_.Real("step_eps");
    if (Is("step", "sigmoid")) return s;
    if (Is("step", "one")) return 1;
    if (Is("step", "kaczmarz")) return s / (square + eps);
    if (Is("step", "kaczmarz_full")) return 1 / (square + eps);
    if (Is("step", "longhorn")) return s / (1 + s * square);
    return s / (Softplus(w_.at("step_scale_raw")[j]) * square + eps);
  }
  // e^g of value head j for each key channel.
  Vector Decay(size_t j, double logit, const Vector& f) const {
    Vector decay(key_dim_, 1.0);
    for (size_t i = 0; i < key_dim_; ++i) {
      if (Is("decay", "none")) continue;
      if (Is("decay", "tied")) {
        decay[i] = std::clamp(1 - Sigmoid(logit), 1e-6, 1.0);
        continue;
      }
      const size_t at = Is("decay", "head") ? j : j * key_dim_ + i;
      const double raw = f[at] + w_.at("decay_bias")[at];
      const double rate = std::exp(w_.at("decay_rate_log")[j]);
      decay[i] =
          std::exp(spec_.IsNull("decay_bound") ? -rate * Softplus(raw)
                                               : spec_.Real("decay_bound") * Sigmoid(rate * raw));
    }
    return decay;
  }
  double Retention(size_t j, const Vector& n) {
    if (Is("scale.retention", "constant")) return spec_.Real("scale.gamma");
    if (Is("scale.retention", "learned")) return Sigmoid(w_.at("retention_logit")[j]);
    if (Is("scale.retention", "none")) return 1;
    return Sigmoid(MatVec("retention.weight", n)[j] + w_.at("retention.bias")[j]);
  }
  // The write key of value head j, and the next scale.
  Vector WriteKey(size_t j, const double* k, double beta, const Vector& n) {
    Vector w(k, k + key_dim_);
    if (scale_.empty()) return w;
    double* d = scale_.data() + j * key_dim_;
    double inner = 0, square = 0;
    for (size_t i = 0; i < key_dim_; ++i) {
      w[i] = d[i] * k[i];
      inner += d[i] * k[i] * k[i];
      square += k[i] * k[i];
    }
    double step = Is("scale.gradient", "beta_aware") ? beta * (1 - beta * inner) : 1 - inner;
    step *= spec_.Real("scale.eta");
    if (spec_.Flag("scale.normalise")) step /= square + 1e-5;
    const double retention = Retention(j, n);
    for (size_t i = 0; i < key_dim_; ++i) {
      d[i] = retention * d[i] + step * k[i] * k[i];
      if (spec_.IsNull("scale.clip_min")) continue;
      d[i] = std::clamp(d[i], spec_.Real("scale.clip_min"), spec_.Real("scale.clip_max"));
    }
    return w;
  }
  // The rule for value head j; q, k of its head, w and v its own.
  Vector Rule(size_t j, const double* q, const double* k, const Vector& w, const double* v,
              double beta, const Vector& decay) {
    double* s = state_.data() + j * key_dim_ * value_dim_;
    Vector out(value_dim_);
    double missed = 0, length = 0, inner = 0, kept = 0;
    for (size_t i = 0; i < key_dim_; ++i) {
      inner += w[i] * k[i];
      kept += decay[i] / static_cast<double>(key_dim_);
    }
    for (size_t m = 0; m < value_dim_; ++m) {
      double error = v[m];
      for (size_t i = 0; i < key_dim_; ++i) {
        s[i * value_dim_ + m] *= decay[i];
        error -= s[i * value_dim_ + m] * k[i];
      }
      missed += error * error;
      length += v[m] * v[m];
      for (size_t i = 0; i < key_dim_; ++i) {
        s[i * value_dim_ + m] += w[i] * beta * error;
        out[m] += s[i * value_dim_ + m] * q[i] / std::sqrt(static_cast<double>(key_dim_));
      }
    }
    const double share = 1 / static_cast<double>(value_heads_), left = 1 - beta * inner;
    if (beta != 0 && length > 0) {
      readouts_[Readout::kResidual].back() += share * std::sqrt(missed / length);
    }
    readouts_[Readout::kContraction].back() += share * left * left;
    readouts_[Readout::kDecay].back() += share * kept;
    return out;
  }

  const LayerSpec spec_;
  std::map<std::string, Vector> w_;
  size_t heads_ = 0, value_heads_ = 0, key_dim_ = 0, value_dim_ = 0, width_ = 0, d_model_ = 0;
  Vector state_;
  std::map<Readout, Vector> readouts_;                 // of all rows so far
  Vector scale_;                                       // [HV, K]; empty: there is none
  std::map<std::string, std::vector<Vector>> inputs_;  // of the convolutions, all so far
};

inline void ReferenceDelta::Token(Vector& x) {
  const Vector n = Norm(x, w_.at("norm.weight"));
  Vector q = Projected("q", spec_.Word("qk_activation"), n);
  Vector k = Projected("k", spec_.Word("qk_activation"), n);
  const Vector v = Projected("v", "silu", n);
  Normalise(spec_.Word("query_norm"), q);
  Normalise(spec_.Word("key_norm"), k);
  Vector b(value_heads_), f, z;
  if (Has("step.weight")) b = MatVec("step.weight", n);
  if (Has("decay.weight")) f = MatVec("decay.weight", n);
  if (Has("decay_up.weight")) f = MatVec("decay_up.weight", MatVec("decay_down.weight", n));
  if (Has("gate.weight")) z = MatVec("gate.weight", n);
  if (Has("gate_up.weight")) {
    z = MatVec("gate_up.weight", MatVec("gate_down.weight", n));
    for (size_t i = 0; i < z.size(); ++i) z[i] += w_.at("gate_up.bias")[i];
  }
  Vector all;
  for (const Readout readout : {Readout::kResidual, Readout::kContraction, Readout::kDecay}) {
    readouts_[readout].push_back(0);
  }
  for (size_t j = 0; j < value_heads_; ++j) {
    const size_t h = j / (value_heads_ / heads_);
    const double logit = b[j] + (Has("step.bias") ? w_.at("step.bias")[j] : 0);
    double square = 0;
    for (size_t i = 0; i < key_dim_; ++i) square += k[h * key_dim_ + i] * k[h * key_dim_ + i];
    const double* const key = k.data() + h * key_dim_;
    const double beta = StepSize(j, logit, square);
    Vector o = Rule(j, q.data() + h * key_dim_, key, WriteKey(j, key, beta, n),
                    v.data() + j * value_dim_, beta, Decay(j, logit, f));
    o = Norm(o, w_.at("out_norm.weight"));
    for (size_t m = 0; m < value_dim_ && !z.empty(); ++m) {
      const double gate = z[j * value_dim_ + m];
      o[m] *= Is("gate", "silu") ? gate * Sigmoid(gate) : Sigmoid(gate);
    }
    all.insert(all.end(), o.begin(), o.end());
  }
  const Vector y = MatVec("out.weight", all);
  for (size_t i = 0; i < d_model_; ++i) x[i] += y[i];
}

inline Trace DeltaReference(const LayerSpec& spec, const Weights& weights, std::span<const float> x,
                            int64_t rows) {
  ReferenceDelta layer(spec, weights);
  Vector out;
  const auto d_model = static_cast<size_t>(spec.d_model);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    Vector row(x.begin() + static_cast<ptrdiff_t>(r * d_model),
               x.begin() + static_cast<ptrdiff_t>((r + 1) * d_model));
    layer.Token(row);
    out.insert(out.end(), row.begin(), row.end());
  }
  return layer.Finish(std::move(out));
}

using Params = std::vector<std::pair<std::string, LayerSpec::Value>>;
inline constexpr std::monostate kNull;

// Gated DeltaNet with odd sizes, changed by `changes`. A small norm_eps would magnify the rounding
// of a head whose query happens to miss all keys; a large one shows as well where it belongs.
inline LayerSpec DeltaTestSpec(const Params& changes) {
  LayerSpec spec = {
      .type = "delta",
      .d_model = 24,
      .norm_eps = 1e-2,
      .params = {
          {"heads", int64_t{2}},      {"value_heads", int64_t{2}}, {"key_dim", int64_t{7}},
          {"value_dim", int64_t{19}}, {"decay", "head"},           {"decay_rank", kNull},
          {"decay_bound", kNull},     {"query_norm", "l2"},        {"key_norm", "l2"},
          {"qk_activation", "silu"},  {"conv_width", int64_t{4}},  {"step", "sigmoid"},
          {"step_max", int64_t{1}},   {"step_bias", false},        {"step_eps", kNull},
          {"gate", "silu"},           {"gate_rank", int64_t{0}},   {"initial_state", "zero"},
          {"scale.gradient", kNull},  {"scale.eta", kNull},        {"scale.normalise", kNull},
          {"scale.clip_min", kNull},  {"scale.clip_max", kNull},   {"scale.retention", kNull},
          {"scale.gamma", kNull}}};
  for (const auto& change : changes) {
    const auto found = std::find_if(spec.params.begin(), spec.params.end(),
                                    [&](const auto& param) { return param.first == change.first; });
    EXPECT_NE(found, spec.params.end()) << change.first;
    found->second = change.second;
  }
  return spec;
}

}  // namespace eddy::testing
