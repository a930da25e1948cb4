// Proves that the Kalman layer computes the block of its page: with every option at random, on
// random shapes, against the float64 reference, whatever the sequence is cut into; that it obeys
// the laws of every layer; and that the parameters which do not fit together are named.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layers/kalman/kalman.h"
#include "tests/kernels/kalman_reference.h"
#include "tests/testing/layer_rounding.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using Floats = std::vector<float>;
using Value = LayerSpec::Value;

LayerSpec BaseSpec() {
  return {.type = "kalman",
          .d_model = 7,
          .norm_eps = 1e-5,
          .params = {{"channels", int64_t{9}},
                     {"state_dim", int64_t{5}},
                     {"conv_width", int64_t{4}},
                     {"conv_activation", "silu"},
                     {"value", "full"},
                     {"value_rank", Value()},
                     {"noise", "full"},
                     {"noise_rank", Value()},
                     {"noise_min", 1e-4},
                     {"noise_max", Value()},
                     {"discretization", "ou"},
                     {"process_noise", "floor"},
                     {"qk_norm", true},
                     {"clip", Value()},
                     {"readout", "posterior"},
                     {"gate", "silu"},
                     {"skip", "scalar"},
                     {"bias", false},
                     {"prior", "unit"}}};
}

void Set(LayerSpec* spec, const std::string& name, Value value) {
  for (auto& [key, held] : spec->params) {
    if (key == name) held = std::move(value);
  }
}

LayerSpec RandomSpec(std::mt19937_64& random) {
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  const auto word = [&](std::vector<const char*> words) {
    return std::string(words[static_cast<size_t>(number(0, std::ssize(words) - 1))]);
  };
  LayerSpec spec = BaseSpec();
  spec.d_model = number(1, 24);
  Set(&spec, "channels", number(1, 33));
  Set(&spec, "state_dim", number(0, 3) == 0 ? 1 : number(2, 19));
  Set(&spec, "conv_width", number(0, 5));
  Set(&spec, "conv_activation", word({"silu", "gelu", "relu"}));
  const std::string value = word({"full", "conv", "low"}), noise = word({"full", "low"});
  Set(&spec, "value", value);
  if (value == "low") Set(&spec, "value_rank", number(1, 9));
  Set(&spec, "noise", noise);
  if (noise == "low") Set(&spec, "noise_rank", number(1, 9));
  Set(&spec, "noise_min", number(0, 1) == 0 ? 1e-2 : 0.3);
  if (number(0, 1) == 0) Set(&spec, "noise_max", 0.7);
  Set(&spec, "discretization", word({"ou", "zoh"}));
  Set(&spec, "process_noise", word({"floor", "floor", "zero"}));
  Set(&spec, "qk_norm", number(0, 2) > 0);
  if (number(0, 2) == 0) Set(&spec, "clip", 0.4);
  Set(&spec, "readout", word({"posterior", "prior"}));
  Set(&spec, "gate", word({"none", "silu", "gelu", "relu"}));
  Set(&spec, "skip", word({"none", "scalar", "channel"}));
  Set(&spec, "bias", number(0, 1) == 0);
  Set(&spec, "prior", word({"unit", "learned"}));
  return spec;
}

struct Family {
  const char* name;
  std::vector<std::pair<std::string, Value>> changes;
};

// The blocks that the package names, and each option away from its default.
const std::vector<Family>& Families() {
  static const std::vector<Family> kFamilies = {
      {"plain", {}},
      {"mamba", {{"value", "conv"}, {"noise", "low"}, {"noise_rank", int64_t{2}}}},
      {"low_value", {{"value", "low"}, {"value_rank", int64_t{3}}}},
      {"bare", {{"conv_width", int64_t{0}}, {"gate", "none"}, {"skip", "none"}}},
      {"one_tap", {{"conv_width", int64_t{1}}, {"conv_activation", "gelu"}}},
      {"raw_keys", {{"qk_norm", false}, {"clip", 0.4}, {"conv_activation", "relu"}}},
      {"zero_order_hold", {{"discretization", "zoh"}, {"readout", "prior"}}},
      {"no_process_noise", {{"process_noise", "zero"}, {"skip", "channel"}}},
      {"bounded_noise", {{"noise_min", 0.2}, {"noise_max", 0.9}, {"gate", "gelu"}}},
      {"biases", {{"bias", true}, {"gate", "relu"}}},
      {"learned_prior", {{"prior", "learned"}, {"conv_width", int64_t{2}}}},
      {"wide", {{"channels", int64_t{70}}, {"state_dim", int64_t{16}}, {"skip", "none"}}},
  };
  return kFamilies;
}

std::string Describe(const LayerSpec& spec) {
  std::string text = "d_model " + std::to_string(spec.d_model);
  for (const auto& [name, value] : spec.params) {
    text += " " + name + " ";
    if (const auto* whole = std::get_if<int64_t>(&value)) text += std::to_string(*whole);
    if (const auto* real = std::get_if<double>(&value)) text += std::to_string(*real);
    if (const auto* flag = std::get_if<bool>(&value)) text += *flag ? "true" : "false";
    if (const auto* said = std::get_if<std::string>(&value)) text += *said;
  }
  return text;
}

// Rates, steps and noises as trained models have them, memories of a token to some hundreds.
void Prepare(const LayerSpec& spec, testing::Weights& weights) {
  for (float& value : weights.at("step_raw")) value -= 2.0f;
  for (float& value : weights.at("process_noise")) {
    // Files with "zero" hold zeros; only "floor" makes sense of negative ones.
    value *= spec.Word("process_noise") == "zero" ? 0.0f : 0.3f;
  }
}

Weights64 Exact(const testing::Weights& weights) {
  Weights64 exact;
  for (const auto& [name, values] : weights) exact[name] = {values.begin(), values.end()};
  return exact;
}

testing::Trace Reference(const LayerSpec& spec, const testing::Weights& weights,
                         std::span<const float> x, int64_t rows) {
  EXPECT_EQ(rows * spec.d_model, std::ssize(x));
  return KalmanLayerReference(spec, Exact(weights), {x.begin(), x.end()});
}

TEST(KalmanLayer, EqualsItsReferenceWithAnyOptionsAndHoweverTheRowsAreSplit) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937_64 random(seed);
  for (uint32_t round = 0; round < 60; ++round) {
    const LayerSpec spec = RandomSpec(random);
    testing::CheckLayerRounding(*device,
                                {.name = "round " + std::to_string(round) + ": " + Describe(spec),
                                 .spec = spec,
                                 .reference = Reference,
                                 .prepare = Prepare},
                                seed + round);
  }
}

TEST(KalmanLayer, ObeysTheLawsInEveryFamilyOfOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  for (const Family& family : Families()) {
    LayerSpec spec = BaseSpec();
    for (const auto& [name, value] : family.changes) Set(&spec, name, value);
    ASSERT_EQ(KalmanType().conflict(spec), std::nullopt) << family.name;
    const bool silent = spec.Word("skip") == "none" && !spec.Flag("bias");
    testing::CheckLayerLaws(*device,
                            {.name = family.name,
                             .spec = spec,
                             .reference = Reference,
                             .prepare = Prepare,
                             .adds_nothing_without_rule = silent},
                            seed);
  }
}

TEST(KalmanLayer, MakesNothingOfNothing) {
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  LayerSpec spec = BaseSpec();
  Set(&spec, "conv_width", int64_t{0});
  testing::LayerRig rig(*device, spec, testing::RandomWeights(spec, 1), /*slots=*/1);
  rig.Fill(1);
  // Keys and queries of length zero have no direction, and are left as they are.
  const Floats zeros(static_cast<size_t>(3 * spec.d_model), 0.0f);
  EXPECT_EQ(rig.Run({{.slot = 1, .x = zeros}}), zeros);
}

std::optional<std::string> ConflictWith(const std::string& name, Value value) {
  LayerSpec spec = BaseSpec();
  Set(&spec, name, std::move(value));
  return KalmanType().conflict(spec);
}

TEST(KalmanLayer, NamesParametersThatDoNotFitTogether) {
  EXPECT_EQ(KalmanType().conflict(BaseSpec()), std::nullopt);
  EXPECT_EQ(ConflictWith("value", "low"), "value \"low\" needs a value_rank");
  EXPECT_EQ(ConflictWith("value_rank", int64_t{3}), "value \"full\" takes no value_rank, got 3");
  EXPECT_EQ(ConflictWith("noise", "low"), "noise \"low\" needs a noise_rank");
  EXPECT_EQ(ConflictWith("noise_rank", int64_t{3}), "noise \"full\" takes no noise_rank, got 3");
  EXPECT_THAT(*ConflictWith("noise_max", 1e-5), ::testing::HasSubstr("at least noise_min"));
}

TEST(KalmanLayer, KeepsItsFiltersInFloatAndStartsThemFromThePrior) {
  LayerSpec spec = BaseSpec();
  const DeviceTraits half = {.matrices = DType::kBF16};
  const LayerNeeds unit = KalmanNeeds(spec, half);
  EXPECT_EQ(unit.state[0].dtype, DType::kF32);
  EXPECT_EQ(unit.state[0].initial, 1.0f);
  EXPECT_EQ(unit.state[1].initial, 0.0f);
  EXPECT_TRUE(unit.state[0].initial_weight.empty());
  Set(&spec, "prior", "learned");
  const LayerNeeds learned = KalmanNeeds(spec, half);
  EXPECT_EQ(learned.state[0].initial_weight, "prior_log_precision");
  EXPECT_TRUE(learned.state[0].initial_is_log);
  EXPECT_EQ(learned.state[1].initial_weight, "prior_information");
  EXPECT_FALSE(learned.state[1].initial_is_log);
  for (const Field& field : learned.weights) {
    const bool of_filters = field.shape[1] == spec.Int("state_dim");
    EXPECT_EQ(field.dtype == DType::kBF16, field.shape[1] > 1 && !of_filters) << field.name;
  }
}

}  // namespace
}  // namespace eddy
