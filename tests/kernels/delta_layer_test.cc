// Proves layer "delta" in all families of its options against a float64 reference written here from
// the page of the layer (kernels/layers/delta/delta.h), token by token and with no code of the
// layer; and that it obeys the laws of every layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layers/delta/delta.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

using testing::LayerCase;
using testing::Trace;
using testing::Weights;
using Vector = std::vector<double>;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The reference of one layer with its weights in float64.
class ReferenceDelta {
 public:
  ReferenceDelta(const LayerSpec& spec, const Weights& weights) : spec_(spec) {
    for (const auto& [name, values] : weights) w_[name] = Vector(values.begin(), values.end());
    heads_ = Size("heads"), value_heads_ = Size("value_heads");
    key_dim_ = Size("key_dim"), value_dim_ = Size("value_dim"), width_ = Size("conv_width");
    d_model_ = static_cast<size_t>(spec.d_model);
    state_ = Has("state_init") ? w_["state_init"] : Vector(value_heads_ * key_dim_ * value_dim_);
  }

  // Rewrites one row.
  void Token(Vector& x);
  Trace Finish(Vector out) {
    Trace trace{.out = std::move(out)};
    trace.state["state"] = state_;
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
  // The rule for value head j; q, k of its head, v its own.
  Vector Rule(size_t j, const double* q, const double* k, const double* v, double beta,
              const Vector& decay) {
    double* s = state_.data() + j * key_dim_ * value_dim_;
    Vector out(value_dim_);
    for (size_t m = 0; m < value_dim_; ++m) {
      double error = v[m];
      for (size_t i = 0; i < key_dim_; ++i) {
        s[i * value_dim_ + m] *= decay[i];
        error -= s[i * value_dim_ + m] * k[i];
      }
      for (size_t i = 0; i < key_dim_; ++i) {
        s[i * value_dim_ + m] += k[i] * beta * error;
        out[m] += s[i * value_dim_ + m] * q[i] / std::sqrt(static_cast<double>(key_dim_));
      }
    }
    return out;
  }

  const LayerSpec spec_;
  std::map<std::string, Vector> w_;
  size_t heads_ = 0, value_heads_ = 0, key_dim_ = 0, value_dim_ = 0, width_ = 0, d_model_ = 0;
  Vector state_;
  std::map<std::string, std::vector<Vector>> inputs_;  // of the convolutions, all so far
};

void ReferenceDelta::Token(Vector& x) {
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
  for (size_t j = 0; j < value_heads_; ++j) {
    const size_t h = j / (value_heads_ / heads_);
    const double logit = b[j] + (Has("step.bias") ? w_.at("step.bias")[j] : 0);
    double square = 0;
    for (size_t i = 0; i < key_dim_; ++i) square += k[h * key_dim_ + i] * k[h * key_dim_ + i];
    Vector o = Rule(j, q.data() + h * key_dim_, k.data() + h * key_dim_, v.data() + j * value_dim_,
                    StepSize(j, logit, square), Decay(j, logit, f));
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

Trace Reference(const LayerSpec& spec, const Weights& weights, std::span<const float> x,
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
constexpr std::monostate kNull;

// Gated DeltaNet with odd sizes, changed by `changes`. A small norm_eps would magnify the rounding
// of a head whose query happens to miss all keys; a large one shows as well where it belongs.
LayerSpec Spec(const Params& changes) {
  LayerSpec spec = {.type = "delta",
                    .d_model = 24,
                    .norm_eps = 1e-2,
                    .params = {{"heads", int64_t{2}},
                               {"value_heads", int64_t{2}},
                               {"key_dim", int64_t{7}},
                               {"value_dim", int64_t{19}},
                               {"decay", "head"},
                               {"decay_rank", kNull},
                               {"decay_bound", kNull},
                               {"query_norm", "l2"},
                               {"key_norm", "l2"},
                               {"qk_activation", "silu"},
                               {"conv_width", int64_t{4}},
                               {"step", "sigmoid"},
                               {"step_max", int64_t{1}},
                               {"step_bias", false},
                               {"step_eps", kNull},
                               {"gate", "silu"},
                               {"gate_rank", int64_t{0}},
                               {"initial_state", "zero"}}};
  for (const auto& change : changes) {
    const auto found = std::find_if(spec.params.begin(), spec.params.end(),
                                    [&](const auto& param) { return param.first == change.first; });
    EXPECT_NE(found, spec.params.end()) << change.first;
    found->second = change.second;
  }
  return spec;
}

const Params kKda = {{"decay", "channel"},
                     {"decay_rank", int64_t{5}},
                     {"gate", "sigmoid"},
                     {"gate_rank", int64_t{3}}};
const Params kKaczmarz = {
    {"step", "kaczmarz"}, {"step_eps", 1e-6}, {"step_bias", true}, {"key_norm", "none"}};

Params With(Params params, const Params& more) {
  params.insert(params.end(), more.begin(), more.end());
  return params;
}

struct Family {
  const char* name;
  Params params;
};

const std::vector<Family>& Families() {
  static const std::vector<Family> kFamilies = {
      {"delta_net", {{"decay", "none"}, {"gate", "none"}}},
      {"delta_net_with_negative_eigenvalues", {{"decay", "none"}, {"step_max", int64_t{2}}}},
      {"delta_net_without_step_or_convolution",
       {{"decay", "none"}, {"step", "one"}, {"conv_width", int64_t{0}}}},
      {"gated_delta_net", {}},
      {"gated_delta_net_grouped",
       {{"value_heads", int64_t{6}}, {"conv_width", int64_t{2}}, {"key_dim", int64_t{16}}}},
      {"one_key_channel", {{"key_dim", int64_t{1}}, {"query_norm", "none"}, {"key_norm", "none"}}},
      {"wide_values", {{"key_dim", int64_t{33}}, {"value_dim", int64_t{130}}}},
      {"learned_state", {{"initial_state", "learned"}, {"conv_width", int64_t{3}}}},
      {"sum_norms_of_positive_keys",
       {{"query_norm", "sum"}, {"key_norm", "sum"}, {"qk_activation", "elu"}}},
      {"relu", {{"qk_activation", "relu"}}},
      {"identity", {{"qk_activation", "identity"}, {"gate", "sigmoid"}}},
      {"tied_decay", {{"decay", "tied"}, {"step_bias", true}}},
      {"kda", kKda},
      {"kda_bounded_grouped", With(kKda, {{"decay_bound", -5.0}, {"value_heads", int64_t{4}}})},
      {"kaczmarz", kKaczmarz},
      {"kaczmarz_grouped", With(kKaczmarz, {{"value_heads", int64_t{4}}})},
      {"relaxed_kaczmarz", With(kKaczmarz, {{"query_norm", "none"}})},
      {"kaczmarz_full", {{"step", "kaczmarz_full"}, {"step_eps", 1e-6}, {"key_norm", "none"}}},
      {"kaczmarz_learned",
       {{"step", "kaczmarz_learned"}, {"step_eps", 1e-6}, {"key_norm", "none"}}},
      {"longhorn", {{"step", "longhorn"}, {"key_norm", "none"}, {"query_norm", "none"}}},
  };
  return kFamilies;
}

TEST(DeltaLayer, ObeysTheLawsInEveryFamilyOfOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  for (const Family& family : Families()) {
    const LayerSpec spec = Spec(family.params);
    ASSERT_EQ(DeltaType().conflict(spec), std::nullopt) << family.name;
    const LayerCase test{.name = family.name, .spec = spec, .reference = Reference};
    testing::CheckLayerLaws(*device, test, seed);
  }
}

// Large enough for the chunk form.
TEST(DeltaLayer, ObeysTheLawsWithALargeState) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  for (const char* decay : {"head", "none"}) {
    const LayerCase test{.name = decay,
                         .spec = Spec({{"key_dim", int64_t{160}},
                                       {"value_dim", int64_t{416}},
                                       {"decay", decay},
                                       {"value_heads", int64_t{4}}}),
                         .reference = Reference,
                         .rows = 150};
    testing::CheckLayerLaws(*device, test, seed);
  }
}

TEST(DeltaLayer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (uint32_t i = 0; i < 6; ++i) {
    const int64_t heads = draw(1, 3);
    Params params = draw(0, 1) == 0 ? kKaczmarz : (draw(0, 1) == 0 ? kKda : Params{});
    params = With(params, {{"heads", heads},
                           {"value_heads", heads * draw(1, 3)},
                           {"key_dim", draw(2, 70)},
                           {"value_dim", draw(1, 140)},
                           {"conv_width", std::vector<int64_t>{0, 2, 3, 4}[draw(0, 3)]}});
    std::string name;
    for (const auto& [param, value] : params) {
      if (std::holds_alternative<int64_t>(value)) {
        name += param + " " + std::to_string(std::get<int64_t>(value)) + ", ";
      }
    }
    const LayerCase test{.name = name, .spec = Spec(params), .reference = Reference};
    testing::CheckLayerLaws(*device, test, seed + i);
  }
}

TEST(DeltaLayer, NamesParametersThatDoNotFitTogether) {
  const auto conflict = [](const Params& changes) {
    return DeltaType().conflict(Spec(changes)).value_or("");
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(conflict({}), "");
  EXPECT_THAT(conflict({{"value_heads", int64_t{3}}}),
              HasSubstr("value_heads is 3, it must be a multiple of heads, 2"));
  EXPECT_THAT(conflict({{"conv_width", int64_t{1}}}), HasSubstr("conv_width is 1"));
  EXPECT_THAT(conflict({{"step", "kaczmarz"}, {"key_norm", "none"}}),
              HasSubstr("needs a step_eps"));
  EXPECT_THAT(conflict({{"step", "kaczmarz"}, {"step_eps", 1e-6}}),
              HasSubstr("needs key_norm \"none\", got \"l2\""));
  EXPECT_THAT(conflict({{"step_eps", 1e-6}}), HasSubstr("takes no step_eps"));
  EXPECT_THAT(conflict({{"step", "one"}, {"step_max", int64_t{2}}}),
              HasSubstr("step_max 1, got 2"));
  EXPECT_THAT(conflict({{"step", "one"}, {"step_bias", true}}), HasSubstr("has no step_bias"));
  EXPECT_THAT(conflict({{"decay", "channel"}}), HasSubstr("needs a decay_rank"));
  EXPECT_THAT(conflict({{"decay_rank", int64_t{4}}}), HasSubstr("takes no decay_rank"));
  EXPECT_THAT(conflict({{"decay_bound", -1.0}}), HasSubstr("takes no decay_bound"));
  EXPECT_THAT(conflict(With(kKda, {{"decay_bound", 0.0}})), HasSubstr("decay_bound is 0"));
  EXPECT_THAT(conflict({{"decay", "tied"}, {"step", "one"}}), HasSubstr("a step with logits"));
  EXPECT_THAT(conflict({{"decay", "tied"}, {"step_max", int64_t{2}}}), HasSubstr("step_max 1"));
  EXPECT_THAT(conflict({{"gate", "none"}, {"gate_rank", int64_t{4}}}), HasSubstr("gate_rank 0"));
}

}  // namespace
}  // namespace eddy
