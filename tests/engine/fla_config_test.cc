// Proves that what versions of flash-linear-attention before and after 0.5.2 write into config.json
// is read for what it means: keys that came, went, may be null or say nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "engine/model_config.h"
#include "tests/engine/config_json.h"

namespace eddy {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(FlaConfig, ReadsWhatEveryVersionOfTheFamilyWrites) {
  const auto mixer = [](const std::string& set, const json& changes) {
    json config = Golden(set);
    config.update(changes);
    const auto read = Parse(config);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->blocks[0].spec : LayerSpec();
  };
  const auto gate = [&](const json& changes) {
    return mixer("gated_deltanet_a", changes).Word("gate");
  };
  EXPECT_EQ(gate({{"output_gate_activation", "swish"}}), "silu");
  EXPECT_EQ(gate({{"output_gate_activation", "silu"}}), "silu");
  EXPECT_EQ(gate({{"output_gate_activation", "sigmoid"}}), "sigmoid");
  EXPECT_EQ(gate({{"output_gate_activation", "sigmoid"}, {"use_gate", false}}), "none");
  // Without the convolution its size says nothing.
  EXPECT_EQ(mixer("kda_a", {{"use_short_conv", false}, {"conv_size", 0}}).Int("conv_width"), 0);
  for (const char* set : {"delta_net_a", "gla_a"}) {
    const LayerSpec plain = mixer(set, json::object());
    EXPECT_EQ(mixer(set, {{"_attn_implementation_autoset", true}, {"norm_first", true}}).params,
              plain.params);
    EXPECT_EQ(mixer(set, {{"rms_norm_eps", 1e-6}}).params, plain.params);
  }
  EXPECT_EQ(mixer("delta_net_a", {{"use_rope", false}}).Int("conv_width"), 4);

  json ratio = Golden("delta_net_a");
  ratio.update({{"hidden_ratio", nullptr}, {"intermediate_size", nullptr}, {"hidden_size", 128}});
  EXPECT_EQ(Parse(ratio)->blocks[1].spec.Int("size"), 512);
}

// 100 times 0.29 is 28.999999999999996: today's code makes 29 of it. 75.5 was 75 before.
TEST(FlaConfig, TakesAFactorOfAWidthForTheNumberThatIsMeant) {
  for (const auto& [factor, width] : {std::pair(0.29, 29), {0.755, 75}, {1.1, 110}, {0.5, 50}}) {
    for (const char* type : {"delta_net", "gla"}) {
      const auto config = Parse({{"model_type", type},
                                 {"hidden_size", 100},
                                 {"num_heads", 1},
                                 {"expand_k", factor},
                                 {"expand_v", 1}});
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->blocks[0].spec.Int("key_dim"), width) << type;
    }
  }
}

TEST(FlaConfig, RefusesWhatIsNotServedOfThem) {
  const auto refusal = [](const std::string& set, const json& changes) {
    json config = Golden(set);
    config.update(changes);
    const auto read = Parse(config);
    EXPECT_FALSE(read.ok()) << changes;
    return std::string(read.status().message());
  };
  EXPECT_THAT(refusal("gated_deltanet_a", {{"output_gate_activation", "tanh"}}),
              HasSubstr("output_gate_activation is \"tanh\", supported: swish, silu, sigmoid"));
  EXPECT_THAT(refusal("delta_net_a", {{"use_rope", true}}),
              HasSubstr("use_rope is true, must be false"));
  EXPECT_THAT(refusal("delta_net_a", {{"rms_norm_eps", 1e-5}}),
              HasSubstr("rms_norm_eps is 1e-05, norm_eps is 1e-06: they must be equal"));
  EXPECT_THAT(refusal("delta_net_a", {{"use_beta", false}, {"allow_neg_eigval", true}}),
              HasSubstr("use_beta is false, a step of 2 at every token"));
}

}  // namespace
}  // namespace eddy
