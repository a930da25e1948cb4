// Proves that every option of the Kalman package's config arrives in the model: small random models
// with the package's tensor names, loaded and run by the engine, against a float64 model that is
// put together here from the words of the package.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_config.h"
#include "tests/engine/model_runner.h"
#include "tests/kernels/kalman_reference.h"

namespace eddy {
namespace {

using nlohmann::json;
using Row = std::vector<double>;
using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

constexpr int64_t kVocab = 11, kWidth = 6, kLayers = 2;
constexpr double kNormEps = 1e-3;

// What a mixer is, in the words of the layer; all that the package has no default for is given.
LayerSpec Spec(const std::map<std::string, LayerSpec::Value>& changes) {
  LayerSpec spec = {.type = "kalman",
                    .d_model = kWidth,
                    .norm_eps = kNormEps,
                    .params = {{"channels", int64_t{12}},
                               {"state_dim", int64_t{1}},
                               {"conv_width", int64_t{4}},
                               {"conv_activation", "silu"},
                               {"value", "full"},
                               {"value_rank", std::monostate()},
                               {"noise", "full"},
                               {"noise_rank", std::monostate()},
                               {"noise_min", 1e-4},
                               {"noise_max", std::monostate()},
                               {"discretization", "ou"},
                               {"process_noise", "floor"},
                               {"qk_norm", true},
                               {"clip", std::monostate()},
                               {"readout", "posterior"},
                               {"gate", "silu"},
                               {"skip", "scalar"},
                               {"bias", false},
                               {"prior", "unit"}}};
  for (auto& [name, value] : spec.params) {
    if (changes.count(name) > 0) value = changes.at(name);
  }
  return spec;
}

// A config of the package, what it means, and the tensors that the package has for it.
struct Package {
  json config = {};
  LayerSpec spec = {};
  Shapes mixer = {};  // of blocks.{i}.mixer.
  Shapes mlp = {};    // of blocks.{i}.mlp.
};

// Everything away from its default that can be, at once.
Package Strange() {
  return {.config = {{"expand", 1.5},
                     {"d_state", 3},
                     {"discretization", "zoh"},
                     {"obs_var_min", 0.01},
                     {"obs_var_max", 0.8},
                     {"value_rank", "dt"},
                     {"var_rank", 2},
                     {"bias", true},
                     {"conv_kernel_size", 3},
                     {"conv_activation", "gelu"},
                     {"gating_activation", "relu"},
                     {"lambda_skip_mode", "vector"},
                     {"decode_from_prior", true},
                     {"clip_value", 0.6},
                     {"qk_norm", false},
                     {"mlp", "gelu"},
                     {"mlp_ratio", 1.6},
                     {"tie_embeddings", true},
                     {"logit_softcap", 3}},
          .spec = Spec({{"channels", int64_t{9}},
                        {"state_dim", int64_t{3}},
                        {"conv_width", int64_t{3}},
                        {"conv_activation", "gelu"},
                        {"value", "low"},
                        {"value_rank", int64_t{1}},  // ceil(6 / 8)
                        {"noise", "low"},
                        {"noise_rank", int64_t{2}},
                        {"noise_min", 0.01},
                        {"noise_max", 0.8},
                        {"discretization", "zoh"},
                        {"qk_norm", false},
                        {"clip", 0.6},
                        {"readout", "prior"},
                        {"gate", "relu"},
                        {"skip", "channel"},
                        {"bias", true}}),
          .mixer = {{"in_proj.weight", {18, 6}},
                    {"in_proj.bias", {18}},
                    {"conv.weight", {9, 1, 3}},
                    {"conv.bias", {9}},
                    {"sensor_proj.weight", {9, 9}},
                    {"sensor_proj.bias", {9}},
                    {"value_expand.weight", {9, 1}},
                    {"value_expand.bias", {9}},
                    {"var_expand.weight", {9, 2}},
                    {"var_expand.bias", {9}},
                    {"out_proj.weight", {6, 9}},
                    {"out_proj.bias", {6}},
                    {"lambda_skip", {9}},
                    {"delta", {9, 3}},
                    {"lambda_log", {9, 3}},
                    {"process_noise", {9, 3}}},
          .mlp = {{"w1.weight", {9, 6}}, {"w2.weight", {6, 9}}}};  // int(6 * 1.6)
}

// All that can be left out is.
Package Bare() {
  return {.config = {{"value_rank", "conv"},
                     {"var_rank", "dt"},
                     {"dt_rank", 3},
                     {"d_state", 1},
                     {"use_conv", false},
                     {"use_gating", false},
                     {"use_lambda_skip", false},
                     {"zero_process_noise", true},
                     {"mlp", "none"}},
          .spec = Spec({{"conv_width", int64_t{0}},
                        {"value", "conv"},
                        {"noise", "low"},
                        {"noise_rank", int64_t{3}},
                        {"process_noise", "zero"},
                        {"gate", "none"},
                        {"skip", "none"}}),
          .mixer = {{"in_proj.weight", {12, 6}},
                    {"sensor_proj.weight", {5, 12}},
                    {"var_expand.weight", {12, 3}},
                    {"out_proj.weight", {6, 12}},
                    {"delta", {12, 1}},
                    {"lambda_log", {12, 1}},
                    {"process_noise", {12, 1}}}};
}

// A low rank of the value, other activations, and the fused MLP.
Package Ranked() {
  return {.config = {{"value_rank", 2},
                     {"d_state", 4},
                     {"conv_activation", "relu"},
                     {"conv_kernel_size", 1},
                     {"gating_activation", "gelu"},
                     {"mlp_ratio", 2.4}},
          .spec = Spec({{"state_dim", int64_t{4}},
                        {"conv_width", int64_t{1}},
                        {"conv_activation", "relu"},
                        {"value", "low"},
                        {"value_rank", int64_t{2}},
                        {"gate", "gelu"}}),
          .mixer = {{"in_proj.weight", {24, 6}},
                    {"conv.weight", {12, 1, 1}},
                    {"conv.bias", {12}},
                    {"sensor_proj.weight", {22, 12}},
                    {"value_expand.weight", {12, 2}},
                    {"out_proj.weight", {6, 12}},
                    {"lambda_skip", {}},
                    {"delta", {12, 4}},
                    {"lambda_log", {12, 4}},
                    {"process_noise", {12, 4}}},
          // int(2 * int(6 * 2.4) / 3) = 9, twice.
          .mlp = {{"w12.weight", {18, 6}}, {"w3.weight", {6, 9}}}};
}

class Model {
 public:
  Model(Package package, std::mt19937_64& random) : package_(std::move(package)) {
    json config = {{"model_type", "kalman_linear_attention"},
                   {"vocab_size", kVocab},
                   {"d_model", kWidth},
                   {"n_layers", kLayers},
                   {"norm_eps", kNormEps}};
    config.update(package_.config);
    tied_ = config.value("tie_embeddings", false);
    softcap_ = config.value("logit_softcap", 0.0);
    Add({{"embedding.weight", {kVocab, kWidth}}, {"norm_f.weight", {kWidth}}}, "", random);
    if (!tied_) Add({{"lm_head.weight", {kVocab, kWidth}}}, "", random);
    for (int64_t i = 0; i < kLayers; ++i) {
      Add({{"mixer_norm.weight", {kWidth}}}, Block(i), random);
      Add(package_.mixer, Block(i) + "mixer.", random);
      if (package_.mlp.empty()) continue;
      Add({{"mlp_norm.weight", {kWidth}}}, Block(i), random);
      Add(package_.mlp, Block(i) + "mlp.", random);
    }
    WriteFile(dir_ / "config.json", config.dump());
    WriteFile(dir_ / "model.safetensors", SafetensorsBytes(tensors_));
  }

  std::string dir() const { return dir_.path(); }
  const LayerSpec& spec() const { return package_.spec; }

  // Log-probabilities of all tokens after each of `tokens`.
  std::vector<Row> Logprobs(const std::vector<int32_t>& tokens) const {
    Row x;
    for (int32_t token : tokens) {
      const auto row = At("embedding.weight").begin() + token * kWidth;
      x.insert(x.end(), row, row + kWidth);
    }
    for (int64_t i = 0; i < kLayers; ++i) {
      x = KalmanLayerReference(package_.spec, MixerWeights(i), x).out;
      if (package_.mlp.empty()) continue;
      for (size_t at = 0; at < x.size(); at += kWidth) Mlp(i, &x[at]);
    }
    std::vector<Row> all;
    for (size_t at = 0; at < x.size(); at += kWidth) all.push_back(Head(&x[at]));
    return all;
  }

 private:
  static std::string Block(int64_t i) { return "blocks." + std::to_string(i) + "."; }
  const Row& At(const std::string& name) const { return values_.at(name); }

  void Add(const Shapes& shapes, const std::string& prefix, std::mt19937_64& random) {
    for (const auto& [name, shape] : shapes) {
      int64_t count = 1;
      for (int64_t dim : shape) count *= dim;
      std::vector<float> values;
      for (int64_t i = 0; i < count; ++i) {
        float value = std::uniform_real_distribution<float>(-0.7f, 0.7f)(random);
        if (name.find("norm") != std::string::npos) value = 1 + value / 4;
        if (name == "delta") value -= 2;
        // Files with zero_process_noise hold zeros.
        if (name == "process_noise") {
          value = package_.spec.Word("process_noise") == "zero" ? 0 : value / 4;
        }
        values.push_back(value);
      }
      tensors_.push_back({prefix + name, "F32", shape, FloatBytes(values)});
      values_[prefix + name] = {values.begin(), values.end()};
    }
  }

  // The package's names as the reference has them.
  Weights64 MixerWeights(int64_t i) const {
    const std::pair<std::string, std::string> names[] = {
        {"in_proj.", "in."},          {"conv.", "conv."},
        {"sensor_proj.", "sensor."},  {"value_expand.", "value_up."},
        {"var_expand.", "noise_up."}, {"out_proj.", "out."},
        {"delta", "step_raw"},        {"lambda_log", "rate_log"},
        {"lambda_skip", "skip"},      {"process_noise", "process_noise"}};
    Weights64 weights = {{"norm.weight", At(Block(i) + "mixer_norm.weight")}};
    for (const auto& [name, shape] : package_.mixer) {
      for (const auto& [theirs, ours] : names) {
        if (name.compare(0, theirs.size(), theirs) != 0) continue;
        weights[ours + name.substr(theirs.size())] = At(Block(i) + "mixer." + name);
      }
    }
    return weights;
  }

  static Row Norm(const double* x, const Row& weight) {
    double square = 0;
    for (int64_t i = 0; i < kWidth; ++i) square += x[i] * x[i];
    Row y(x, x + kWidth);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= weight[i] / std::sqrt(square / kWidth + kNormEps);
    return y;
  }

  Row Times(const std::string& name, const Row& x) const {
    const Row& weight = At(name);
    Row y(weight.size() / x.size(), 0.0);
    for (size_t i = 0; i < weight.size(); ++i) y[i / x.size()] += weight[i] * x[i % x.size()];
    return y;
  }

  // Rewrites one row.
  void Mlp(int64_t i, double* x) const {
    const std::string mlp = Block(i) + "mlp.";
    const Row normed = Norm(x, At(Block(i) + "mlp_norm.weight"));
    const bool gelu = values_.count(mlp + "w1.weight") > 0;
    Row inner = Times(mlp + (gelu ? "w1.weight" : "w12.weight"), normed);
    if (gelu) {
      for (double& a : inner) a *= 0.5 * std::erfc(-a / std::sqrt(2.0));
    } else {
      const size_t half = inner.size() / 2;
      for (size_t j = 0; j < half; ++j) inner[j] *= inner[half + j] / (1 + std::exp(-inner[j]));
      inner.resize(half);
    }
    const Row out = Times(mlp + (gelu ? "w2.weight" : "w3.weight"), inner);
    for (size_t j = 0; j < out.size(); ++j) x[j] += out[j];
  }

  Row Head(const double* x) const {
    Row logits = Times(tied_ ? "embedding.weight" : "lm_head.weight", Norm(x, At("norm_f.weight")));
    double sum = 0;
    for (double& logit : logits) {
      if (softcap_ > 0) logit = softcap_ * std::tanh(logit / softcap_);
      sum += std::exp(logit);
    }
    for (double& logit : logits) logit -= std::log(sum);
    return logits;
  }

  Package package_;
  bool tied_ = false;
  double softcap_ = 0;
  TempDir dir_;
  std::vector<TestTensor> tensors_;
  std::map<std::string, Row> values_;
};

class KalmanPackage : public ::testing::TestWithParam<Package (*)()> {};

TEST_P(KalmanPackage, ScoresAsTheFloat64ModelOfTheSameConfig) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  const Model model(GetParam()(), random);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 60; ++i) tokens.push_back(static_cast<int32_t>(random() % kVocab));
  const std::vector<Row> want = model.Logprobs(tokens);
  const auto config = ReadModelConfig(model.dir());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->blocks[0].spec.params, model.spec().params);

  ModelRunner runner(model.dir(), {.slots = 1, .rows = 13}, device.get());
  const Answer answer = runner.Run(Score(tokens));

  ASSERT_EQ(answer.scored.size(), tokens.size() - 1);
  for (size_t i = 0; i < answer.scored.size(); ++i) {
    // Float rounding of sums of magnitude one over a memory of a hundred tokens.
    EXPECT_NEAR(answer.scored[i].logprob, want[i][static_cast<size_t>(tokens[i + 1])], 5e-5) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, KalmanPackage, ::testing::Values(Strange, Bare, Ranked));

}  // namespace
}  // namespace eddy
