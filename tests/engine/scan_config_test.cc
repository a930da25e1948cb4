// Proves that configs of GLA and Mamba2, and native layers of the types around the two scans, are
// read strictly: defaults of absent keys, the traps of real files (infinity as a limit, norms under
// two names, heads that follow from widths), and refusals that name key, value and what is served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/json_text.h"
#include "engine/model_config.h"
#include "engine/weights.h"
#include "tests/engine/config_json.h"

namespace eddy {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

LayerSpec FirstSpec(const json& config) {
  const auto read = Parse(config);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->blocks[0].spec : LayerSpec{};
}

// What is said of `good` with one key changed.
std::string Fault(json good, const std::string& pointer, const json& value) {
  good[json::json_pointer(pointer)] = value;
  const auto read = Parse(good);
  EXPECT_FALSE(read.ok()) << pointer << " " << value;
  return std::string(read.status().message());
}

json Native(const json& mixer) {
  return {
      {"model_type", "eddy"}, {"format", 1},
      {"vocab_size", 100},    {"hidden_size", 40},
      {"norm_eps", 1e-6},     {"tokens", {{"bos", nullptr}, {"eos", nullptr}, {"pad", nullptr}}},
      {"tokenizer", nullptr}, {"layers", json::array({{{"mixer", mixer}, {"mlp", nullptr}}})}};
}

TEST(ScanConfig, GivesAbsentKeysOfForeignFilesTheirDefaults) {
  const auto gla = Parse({{"model_type", "gla"}});
  ASSERT_TRUE(gla.ok()) << gla.status();
  EXPECT_EQ(gla->vocab_size, 32000);
  EXPECT_EQ(gla->hidden_size, 2048);
  EXPECT_EQ(gla->norm_eps, 1e-6);
  EXPECT_EQ(gla->blocks.size(), 48u);
  const LayerSpec& heads = gla->blocks[0].spec;
  EXPECT_EQ(heads.type, "gla");
  EXPECT_EQ(heads.Int("heads"), 4);
  EXPECT_EQ(heads.Int("kv_heads"), 4);
  EXPECT_EQ(heads.Int("key_dim"), 256);
  EXPECT_EQ(heads.Int("value_dim"), 512);
  EXPECT_EQ(heads.Int("decay_rank"), 16);
  EXPECT_EQ(heads.Real("decay_divisor"), 16);
  EXPECT_TRUE(heads.IsNull("decay_min"));

  const auto mamba2 = Parse({{"model_type", "mamba2"}});
  ASSERT_TRUE(mamba2.ok()) << mamba2.status();
  EXPECT_EQ(mamba2->norm_eps, 1e-5);
  EXPECT_EQ(mamba2->tokens.pad, 0);
  ASSERT_EQ(mamba2->blocks.size(), 48u);  // no MLPs
  EXPECT_EQ(mamba2->blocks[47].layer, 47);
  const LayerSpec& mixer = mamba2->blocks[0].spec;
  EXPECT_EQ(mixer.type, "mamba2");
  EXPECT_EQ(mixer.Int("heads"), 64);
  EXPECT_EQ(mixer.Int("head_dim"), 64);
  EXPECT_EQ(mixer.Int("state_dim"), 128);
  EXPECT_EQ(mixer.Int("groups"), 1);
  EXPECT_EQ(mixer.Int("conv_width"), 4);
  EXPECT_TRUE(mixer.Flag("conv_bias"));
  EXPECT_FALSE(mixer.Flag("bias"));
  EXPECT_EQ(mixer.Real("step_min"), 0);
  EXPECT_TRUE(mixer.IsNull("step_max"));
}

TEST(ScanConfig, TurnsTheOptionsOfForeignFilesIntoParameters) {
  json gla = Golden("gla_a");
  gla.update({{"num_heads", 4},
              {"num_kv_heads", 2},
              {"expand_k", 0.25},
              {"expand_v", 2},
              {"clamp_min", -3},
              {"rms_norm_eps", 1e-6}});
  const LayerSpec heads = FirstSpec(gla);
  EXPECT_EQ(heads.Int("heads"), 4);
  EXPECT_EQ(heads.Int("kv_heads"), 2);
  EXPECT_EQ(heads.Int("key_dim"), 4);
  EXPECT_EQ(heads.Int("value_dim"), 32);
  EXPECT_EQ(heads.Real("decay_min"), -3);

  json mamba2 = Golden("mamba2_a");
  mamba2.update({{"expand", 4},
                 {"num_heads", 8},
                 {"n_groups", 2},
                 {"conv_kernel", 3},
                 {"use_conv_bias", false},
                 {"use_bias", true},
                 {"state_size", 5},
                 {"dt_limit", {0.001, 0.1}},
                 {"time_step_limit", {0.001, 0.1}}});
  const LayerSpec mixer = FirstSpec(mamba2);
  EXPECT_EQ(mixer.Int("heads"), 8);
  EXPECT_EQ(mixer.Int("head_dim"), 32);
  EXPECT_EQ(mixer.Int("groups"), 2);
  EXPECT_EQ(mixer.Int("conv_width"), 3);
  EXPECT_FALSE(mixer.Flag("conv_bias"));
  EXPECT_TRUE(mixer.Flag("bias"));
  EXPECT_EQ(mixer.Int("state_dim"), 5);
  EXPECT_EQ(mixer.Real("step_min"), 0.001);
  EXPECT_EQ(mixer.Real("step_max"), 0.1);
}

TEST(ScanConfig, TakesWhatOldMamba2FilesCallOtherwise) {
  json old = Golden("mamba2_a");
  for (const char* key : {"norm_eps", "dt_limit", "rmsnorm"}) old.erase(key);
  old.update({{"layer_norm_epsilon", 1e-3},
              {"time_step_limit", {0.05, 0.4}},
              {"rms_norm", true},
              {"time_step_rank", 4},
              {"time_step_min", 0.001},
              {"time_step_max", 0.1},
              {"time_step_floor", 1e-4},
              {"time_step_init_scheme", "random"}});
  const auto config = Parse(old);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->norm_eps, 1e-3);
  EXPECT_EQ(config->blocks[0].spec.norm_eps, 1e-3);
  EXPECT_EQ(config->blocks[0].spec.Real("step_min"), 0.05);
  EXPECT_EQ(config->blocks[0].spec.Real("step_max"), 0.4);
  // Under both names, and alike.
  old.update({{"norm_eps", 1e-3}, {"dt_limit", {0.05, 0.4}}});
  const auto both = Parse(old);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->blocks[0].spec.params, config->blocks[0].spec.params);
}

TEST(ScanConfig, CallsTheNormOfTheHeadsWhatTheFileCallsIt) {
  for (const bool fused : {true, false}) {
    json gla = Golden("gla_a");
    gla["fuse_norm"] = fused;
    const auto config = Parse(gla);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(RuleFor(config->blocks[2].names, "out_norm.weight")->theirs,
              fused ? "model.layers.1.attn.g_norm_swish_gate." : "model.layers.1.attn.g_norm.");
  }
}

TEST(ScanConfig, TakesInfinityInBothSpellings) {
  std::string text = Golden("mamba2_a").dump();
  const std::string object = R"({"__float__":"Infinity"})";
  const size_t at = text.find(object);
  ASSERT_NE(at, std::string::npos);
  for (const char* spelling : {R"({"__float__":"Infinity"})", "Infinity", " Infinity\n", "null"}) {
    const std::string changed = std::string(text).replace(at, object.size(), spelling);
    const auto config = ParseModelConfig(changed, "dir/config.json");
    ASSERT_TRUE(config.ok()) << spelling << ": " << config.status();
    EXPECT_TRUE(config->blocks[0].spec.IsNull("step_max")) << spelling;
  }
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"-Infinity", "is not JSON"},
      {"+Infinity", "is not JSON"},
      {"Infinit", "is not JSON"},
      {"Infinityy", "is not JSON"},
      {"infinity", "is not JSON"},
      {"NaN", "is not JSON"},
      {"inf", "is not JSON"},
      {"1Infinity", "is not JSON"},
      {"Infinity Infinity", "is not JSON"},
      {R"("Infinity")", "dt_limit is [0.0,\"Infinity\"], must be a list of two numbers"},
      {R"({"__float__":"-Infinity"})", "dt_limit is"},
      {R"({"__float__":"Infinity","a":1})", "dt_limit is"}};
  for (const auto& [spelling, expected] : wrong) {
    const std::string changed = std::string(text).replace(at, object.size(), spelling);
    const auto config = ParseModelConfig(changed, "dir/config.json");
    ASSERT_FALSE(config.ok()) << spelling;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(expected)) << spelling;
  }
}

TEST(ScanConfig, LeavesTheWordInfinityInTextsAlone) {
  const auto parsed =
      ParseJson(R"({"a": "Infinity", "b\\": "\"Infinity, \\", "Infinity": [Infinity]})", "file");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->at("a"), "Infinity");
  EXPECT_EQ(parsed->at("b\\"), "\"Infinity, \\");
  EXPECT_TRUE(IsInfinity(parsed->at("Infinity").at(0)));
  EXPECT_FALSE(IsInfinity(parsed->at("a")));
  EXPECT_FALSE(ParseJson("{Infinity: 1}", "file").ok());
  EXPECT_FALSE(ParseJson("{\"a\": 1} Infinity", "file").ok());
}

TEST(ScanConfig, RefusesWhatIsNotServedInForeignFiles) {
  const json gla = Golden("gla_a"), mamba2 = Golden("mamba2_a");
  struct Case {
    const json& good;
    const char* pointer;
    json value;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {gla, "/rms_norm_eps", 1e-5, "rms_norm_eps is 1e-05, norm_eps is 1e-06: they must be equal"},
      {gla, "/feature_map", "relu", "feature_map is \"relu\", must be null"},
      {gla, "/use_short_conv", true, "use_short_conv is true, must be false"},
      {gla, "/use_gk", false, "use_gk is false, must be true"},
      {gla, "/use_gv", true, "use_gv is true, must be false"},
      {gla, "/use_output_gate", false, "use_output_gate is false, must be true"},
      {gla, "/elementwise_affine", false, "elementwise_affine is false, must be true"},
      {gla, "/attnres_block_size", 4, "attnres_block_size is 4, must be null"},
      {gla, "/hidden_act", "gelu", "hidden_act is \"gelu\", supported: swish, silu"},
      {gla, "/clamp_min", 0.5, "clamp_min is 0.5, must be a number from"},
      {gla, "/expand_k", 0.52, "expand_k is 0.52, hidden_size times it must be a multiple"},
      {gla, "/num_kv_heads", 4,
       "layer 0, mixer gla: heads is 2, it must be a multiple of kv_heads"},
      {gla, "/gate_logit_normalizer", 8, "unknown key gate_logit_normalizer with value 8"},
      {mamba2, "/norm_before_gate", true, "norm_before_gate is true, must be false"},
      {mamba2, "/rmsnorm", false, "rmsnorm is false, must be true"},
      {mamba2, "/rms_norm", false, "rms_norm is false, must be true"},
      {mamba2, "/D_has_hdim", true, "D_has_hdim is true, must be false"},
      {mamba2, "/hidden_act", "relu", "hidden_act is \"relu\""},
      {mamba2, "/num_heads", 3, "num_heads is 3, expand times hidden_size over head_dim is 4"},
      {mamba2, "/head_dim", 48, "head_dim is 48, must divide expand times hidden_size, 128"},
      {mamba2, "/n_groups", 3,
       "layer 0, mixer mamba2: heads is 4, it must be a multiple of groups"},
      {mamba2, "/dt_limit", {-1, 1}, "dt_limit is [-1,1], must be a list of two numbers from 0"},
      {mamba2, "/dt_limit", {0.5, 0.1}, "dt_limit is [0.5,0.1], the second number must not be"},
      {mamba2, "/time_step_limit", {0, 1}, "time_step_limit is [0,1], it must say the same"},
      {mamba2, "/layer_norm_epsilon", 1e-4, "layer_norm_epsilon is 0.0001, it must say the same"},
      {mamba2, "/layer_norm_epsilon", nullptr, "layer_norm_epsilon is null, must be a number"},
      {mamba2, "/intermediate_size", 128, "unknown key intermediate_size"},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(Fault(one.good, one.pointer, one.value), HasSubstr(one.expected));
  }
}

TEST(ScanConfig, ReadsNativeLayersWithTheirDefaults) {
  LayerSpec spec = FirstSpec(
      Native({{"type", "gla"}, {"heads", 6}, {"kv_heads", 3}, {"key_dim", 5}, {"value_dim", 7}}));
  EXPECT_EQ(spec.Int("kv_heads"), 3);
  EXPECT_EQ(spec.Int("decay_rank"), 16);
  EXPECT_TRUE(spec.IsNull("decay_min"));
  spec = FirstSpec(Native({{"type", "mamba2"},
                           {"heads", 6},
                           {"head_dim", 5},
                           {"state_dim", 7},
                           {"step_range", {0.5, nullptr}}}));
  EXPECT_EQ(spec.Int("groups"), 1);
  EXPECT_TRUE(spec.Flag("conv_bias"));
  EXPECT_EQ(spec.Real("step_min"), 0.5);
  EXPECT_TRUE(spec.IsNull("step_max"));
  for (const char* type : {"mamba", "longhorn"}) {
    spec = FirstSpec(Native({{"type", type}, {"channels", 80}}));
    EXPECT_EQ(spec.type, type);
    EXPECT_EQ(spec.Int("state_dim"), 16);
    EXPECT_EQ(spec.Int("step_rank"), 3);  // ceil(40 / 16)
    EXPECT_EQ(spec.Int("conv_width"), 4);
    EXPECT_FALSE(spec.Flag("bias"));
  }
  spec = FirstSpec(Native({{"type", "mlstm"}, {"heads", 2}, {"key_dim", 3}, {"value_dim", 4}}));
  EXPECT_EQ(spec.Word("forget_gate"), "sigmoid");
  EXPECT_TRUE(spec.IsNull("gate_softcap"));
}

TEST(ScanConfig, RefusesFaultsInNativeLayers) {
  const json gla = Native({{"type", "gla"}, {"heads", 2}, {"key_dim", 5}, {"value_dim", 7}});
  EXPECT_THAT(Fault(gla, "/layers/0/mixer/decay_min", 1),
              HasSubstr("layers[0].mixer.decay_min is 1"));
  EXPECT_THAT(Fault(gla, "/layers/0/mixer/kv_heads", 4),
              HasSubstr("layer 0, mixer gla: heads is 2, it must be a multiple of kv_heads, 4"));
  EXPECT_THAT(Fault(gla, "/layers/0/mixer/gate", "none"),
              HasSubstr("unknown key layers[0].mixer.gate"));
  EXPECT_THAT(Fault(gla, "/layers/0/mixer/type", 3),
              HasSubstr("layers[0].mixer.type is 3, must be a text"));
  EXPECT_THAT(Fault(gla, "/layers/0/mixer/type", "rwkv"),
              HasSubstr("layers[0].mixer.type is \"rwkv\", supported: delta, attention, gla, "
                        "kalman, longhorn, mamba, mamba2, mlstm"));
  const json mamba2 = Native({{"type", "mamba2"}, {"heads", 2}, {"head_dim", 5}, {"state_dim", 7}});
  EXPECT_THAT(Fault(mamba2, "/layers/0/mixer/conv_width", 1),
              HasSubstr("layers[0].mixer.conv_width is 1"));
  EXPECT_THAT(Fault(mamba2, "/layers/0/mixer/step_range", json::array({1})),
              HasSubstr("layers[0].mixer.step_range is [1], must be a list of two numbers"));
  const json mlstm = Native({{"type", "mlstm"}, {"heads", 2}, {"key_dim", 5}, {"value_dim", 7}});
  EXPECT_THAT(Fault(mlstm, "/layers/0/mixer/forget_gate", "linear"),
              HasSubstr("forget_gate is \"linear\", supported: sigmoid, exponential"));
  EXPECT_THAT(Fault(mlstm, "/layers/0/mixer/gate_softcap", 0), HasSubstr("gate_softcap is 0"));
  const json mamba = Native({{"type", "mamba"}, {"channels", 8}});
  EXPECT_THAT(Fault(mamba, "/layers/0/mixer/step_rank", 0),
              HasSubstr("layers[0].mixer.step_rank is 0"));
}

}  // namespace
}  // namespace eddy
