// Proves layer "delta" in all families of its options against float64 (delta_reference.h), and that
// it obeys the laws of every layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layers/delta/delta.h"
#include "tests/kernels/delta_reference.h"
#include "tests/testing/layer_rounding.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using testing::DeltaReference;
using testing::DeltaTestSpec;
using testing::LayerCase;
using testing::Params;

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

// A learned scale of the write key, as the authors train it, changed by `changes`.
Params Scaled(const Params& changes) {
  return With({{"scale.gradient", "beta_aware"},
               {"scale.eta", 1.0},
               {"scale.normalise", false},
               {"scale.clip_min", 0.0},
               {"scale.clip_max", 1e9},
               {"scale.retention", "none"}},
              changes);
}
// A box that most entries meet, all the time.
const Params kTightBox = {{"scale.eta", 0.5}, {"scale.clip_min", 2.0 / 3}, {"scale.clip_max", 1.5}};

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
      {"osdn_delta_net",
       Scaled({{"decay", "none"}, {"gate", "none"}, {"scale.gradient", "beta_unaware"}})},
      {"osdn_delta_net_normalised",
       Scaled({{"decay", "none"}, {"scale.normalise", true}, {"step_max", int64_t{2}}})},
      {"osdn_gated_delta_net", Scaled({{"scale.retention", "data"}})},
      {"osdn_gated_delta_net_grouped",
       Scaled({{"value_heads", int64_t{6}}, {"scale.retention", "learned"}})},
      {"osdn_without_clip",
       Scaled({{"scale.clip_min", testing::kNull}, {"scale.clip_max", testing::kNull}})},
      {"osdn_kda", With(kKda, Scaled({{"scale.retention", "data"}}))},
      {"osdn_kda_in_a_tight_box",
       With(With(kKda, Scaled(kTightBox)),
            {{"value_heads", int64_t{4}}, {"scale.retention", "constant"}, {"scale.gamma", 0.9}})},
  };
  return kFamilies;
}

// A rounding moves a number by at most 2^-8 of itself. Splits of the laws round a state up to
// twenty times, one row after another; the errors are independent, and writes and decays wear off
// those of the first ones: about sqrt(20) times the mean, 1.7e-3, and the worst of thousands of
// numbers.
constexpr double kHalfStateTolerance = 2e-2;

TEST(DeltaLayer, ObeysTheLawsInEveryFamilyOfOptions) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  for (const Family& family : Families()) {
    const LayerSpec spec = DeltaTestSpec(family.params);
    ASSERT_EQ(DeltaType().conflict(spec), std::nullopt) << family.name;
    const LayerCase test{.name = family.name, .spec = spec, .reference = DeltaReference};
    testing::CheckLayerLaws(*device, test, seed);
  }
}

// The same with a state of bfloat16.
TEST(DeltaLayer, ObeysTheLawsWithHalfStates) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice(DType::kF32, DType::kBF16);
  for (const Family& family : Families()) {
    const LayerSpec spec = DeltaTestSpec(family.params);
    const LayerCase test{.name = family.name,
                         .spec = spec,
                         .reference = DeltaReference,
                         .tolerance = kHalfStateTolerance};
    testing::CheckLayerLaws(*device, test, seed);
  }
}

// The laws' tolerance needs a large one; here it is that of trained models.
TEST(DeltaLayer, EqualsItsReferenceWithASmallNormEps) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  for (const Family& family : Families()) {
    LayerCase test{
        .name = family.name, .spec = DeltaTestSpec(family.params), .reference = DeltaReference};
    test.spec.norm_eps = 1e-5;
    testing::CheckLayerRounding(*device, test, seed);
  }
}

// Large enough for the chunk form.
TEST(DeltaLayer, ObeysTheLawsWithALargeState) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const Params large = {
      {"key_dim", int64_t{160}}, {"value_dim", int64_t{416}}, {"value_heads", int64_t{4}}};
  const std::vector<Family> families = {{"head", {}},
                                        {"scaled", With(Scaled(kTightBox), {{"decay", "none"}})}};
  for (const Family& family : families) {
    const LayerCase test{.name = family.name,
                         .spec = DeltaTestSpec(With(large, family.params)),
                         .reference = DeltaReference,
                         .rows = 150};
    testing::CheckLayerLaws(*device, test, seed);
  }
}

TEST(DeltaLayer, ObeysTheLawsForRandomShapes) {
  const uint32_t seed = testing::TestSeed();
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (uint32_t i = 0; i < 6; ++i) {
    const int64_t heads = draw(1, 3);
    Params params = draw(0, 2) == 0 ? kKaczmarz : (draw(0, 1) == 0 ? kKda : Params{});
    if (params != kKaczmarz && draw(0, 1) == 0) {
      const char* const retentions[] = {"none", "learned", "data"};
      params = With(params, Scaled(draw(0, 1) == 0 ? Params{} : kTightBox));
      params = With(params, {{"scale.retention", retentions[draw(0, 2)]}});
    }
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
    const LayerCase test{.name = name,
                         .spec = DeltaTestSpec(params),
                         .reference = DeltaReference,
                         .rows = static_cast<int>(draw(7, 200))};
    testing::CheckLayerLaws(*device, test, seed + i);
  }
}

TEST(DeltaLayer, NamesParametersThatDoNotFitTogether) {
  const auto conflict = [](const Params& changes) {
    return DeltaType().conflict(DeltaTestSpec(changes)).value_or("");
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

TEST(DeltaLayer, NamesParametersOfAScaleThatDoNotFitTogether) {
  const auto conflict = [](const Params& changes) {
    return DeltaType().conflict(DeltaTestSpec(changes)).value_or("");
  };
  using ::testing::HasSubstr;
  using testing::kNull;
  EXPECT_EQ(conflict(Scaled({})), "");
  for (const char* name : {"scale.eta", "scale.normalise", "scale.retention"}) {
    EXPECT_THAT(conflict(Scaled({{name, kNull}})), HasSubstr(std::string(name) + " is null"));
  }
  EXPECT_THAT(conflict({{"scale.eta", 1.0}}),
              HasSubstr("scale.eta is given, but scale.gradient is null"));
  EXPECT_THAT(conflict(Scaled({{"scale.eta", 0.0}})), HasSubstr("scale.eta is 0"));
  EXPECT_THAT(conflict(Scaled({{"scale.clip_max", kNull}})), HasSubstr("must both be"));
  EXPECT_THAT(conflict(Scaled({{"scale.clip_max", 0.0}})), HasSubstr("less than scale.clip_max"));
  EXPECT_THAT(conflict(Scaled({{"scale.retention", "constant"}})),
              HasSubstr("needs a scale.gamma"));
  EXPECT_THAT(conflict(Scaled({{"scale.gamma", 0.5}})), HasSubstr("takes no scale.gamma"));
  EXPECT_THAT(conflict(Scaled({{"key_norm", "sum"}})), HasSubstr("needs key_norm \"l2\""));
  EXPECT_THAT(conflict(Scaled({{"step", "one"}})), HasSubstr("needs step \"sigmoid\""));
}

}  // namespace
}  // namespace eddy
