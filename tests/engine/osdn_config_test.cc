// Proves that the keys of OSDN models, and the native `scale`, become parameters as documented, and
// that whatever would change the function without being served is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model_config.h"
#include "tests/engine/model_files.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

nlohmann::json Golden(const std::string& name) {
  return nlohmann::json::parse(ReadFile("tests/golden/" + name + "/config.json"));
}

nlohmann::json Without(nlohmann::json json, const std::vector<const char*>& keys) {
  for (const char* key : keys) json.erase(key);
  return json;
}

// The first mixer; the test fails and ends if the config is refused.
LayerSpec Mixer(const nlohmann::json& json) {
  const auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->blocks[0].spec : LayerSpec{};
}

// `changes`: keys with their new values; null takes the key away.
std::string Refusal(nlohmann::json json, const nlohmann::json& changes = nlohmann::json::object()) {
  json.merge_patch(changes);
  const auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_FALSE(config.ok()) << changes;
  return std::string(config.status().message());
}

const std::vector<const char*> kScaleKeys = {"osgm_eta", "osgm_use_denominator", "osgm_d_min",
                                             "osgm_d_max", "osgm_decay_mode"};

void ExpectUsual(const LayerSpec& spec) {
  EXPECT_EQ(spec.Real("scale.eta"), 1.0);
  EXPECT_FALSE(spec.Flag("scale.normalise"));
  EXPECT_EQ(spec.Real("scale.clip_min"), 0.0);
  EXPECT_EQ(spec.Real("scale.clip_max"), 1e9);
}

TEST(OsdnConfig, ReadsTheThreeBackbones) {
  const LayerSpec delta = Mixer(Golden("osdn_delta_net_a"));
  EXPECT_EQ(delta.Word("decay"), "none");
  EXPECT_EQ(delta.Word("scale.gradient"), "beta_unaware");
  EXPECT_EQ(delta.Word("scale.retention"), "none");
  ExpectUsual(delta);
  const LayerSpec gated = Mixer(Golden("osdn_gated_deltanet_a"));
  EXPECT_EQ(gated.Word("decay"), "head");
  EXPECT_EQ(gated.Word("scale.gradient"), "beta_aware");
  EXPECT_EQ(gated.Word("scale.retention"), "data");
  const LayerSpec kda = Mixer(Golden("osdn_kda_a"));
  EXPECT_EQ(kda.Word("decay"), "channel");
  EXPECT_EQ(kda.Word("scale.gradient"), "beta_aware");
}

TEST(OsdnConfig, NeverGuessesTheGradient) {
  for (const char* set : {"osdn_delta_net_a", "osdn_gated_deltanet_a", "osdn_kda_a"}) {
    nlohmann::json null = Golden(set);
    null["osgm_beta_aware"] = nullptr;
    EXPECT_THAT(Refusal(null), HasSubstr("osgm_beta_aware is null, must be true or false"));
    EXPECT_THAT(Refusal(Without(null, {"osgm_beta_aware"})),
                HasSubstr("osgm_beta_aware is absent, must be true or false"));
    EXPECT_THAT(Refusal(Golden(set), {{"osgm_beta_aware", 1}}),
                HasSubstr("osgm_beta_aware is 1, must be true or false"));
  }
}

TEST(OsdnConfig, GivesAbsentAndNullKeysWhatTheirTypeMeans) {
  // The authors' DeltaNet: null and absent are the usual values, without retention.
  nlohmann::json delta = Without(Golden("osdn_delta_net_a"), kScaleKeys);
  ExpectUsual(Mixer(delta));
  EXPECT_EQ(Mixer(delta).Word("scale.retention"), "none");
  for (const char* key : {"osgm_eta", "osgm_use_denominator", "osgm_d_min", "osgm_d_max"}) {
    delta[key] = nullptr;
  }
  ExpectUsual(Mixer(delta));
  delta["osgm_d_max"] = 1.5;
  EXPECT_EQ(Mixer(delta).Real("scale.clip_max"), 1.5);
  EXPECT_TRUE(Mixer(Without(delta, {"use_osgm"})).IsNull("scale.gradient"));

  // KDA: the same, with a constant retention; but null bounds are none.
  nlohmann::json kda = Without(Golden("osdn_kda_a"), kScaleKeys);
  kda.erase("use_osgm");
  ExpectUsual(Mixer(kda));
  EXPECT_EQ(Mixer(kda).Word("scale.retention"), "constant");
  EXPECT_EQ(Mixer(kda).Real("scale.gamma"), 0.999);
  kda["osgm_d_min"] = nullptr;
  EXPECT_TRUE(Mixer(kda).IsNull("scale.clip_min"));
  EXPECT_TRUE(Mixer(kda).IsNull("scale.clip_max"));

  // Gated DeltaNet has no documented defaults: all must be said.
  const nlohmann::json gated = Golden("osdn_gated_deltanet_a");
  for (const char* key : {"use_osgm", "osgm_eta", "osgm_use_denominator", "osgm_d_min",
                          "osgm_d_max", "osgm_decay_mode"}) {
    EXPECT_THAT(Refusal(gated, {{key, nullptr}}), HasSubstr(std::string(key) + " is missing"));
  }
}

TEST(OsdnConfig, ReadsEveryRetention) {
  for (const auto& [mode, retention] : {std::pair("none", "none"),
                                        {"constant", "constant"},
                                        {"learnable", "learned"},
                                        {"data_dependent", "data"}}) {
    for (const char* set : {"osdn_delta_net_a", "osdn_gated_deltanet_a", "osdn_kda_a"}) {
      nlohmann::json json = Golden(set);
      json.update({{"osgm_decay_mode", mode}, {"osgm_decay_gamma", 0.75}});
      const LayerSpec spec = Mixer(json);
      EXPECT_EQ(spec.Word("scale.retention"), retention);
      const bool constant = mode == std::string("constant");
      EXPECT_EQ(spec.IsNull("scale.gamma"), !constant);
      EXPECT_EQ(constant ? spec.Real("scale.gamma") : 0.75, 0.75);
    }
  }
}

// The authors' class writes all the keys of its experiments, whether they are on or not.
TEST(OsdnConfig, ReadsPastExperimentsThatAreOff) {
  const nlohmann::json off = {
      {"gate_aware_hypergradient", false},      {"osgm_d_decay_source", "osgm"},
      {"osgm_post_gate_clamp_min", nullptr},    {"osgm_post_gate_regret", false},
      {"osgm_post_gate_regret_chunk_size", 64}, {"osgm_post_gate_residual", false},
      {"osgm_post_gate_use_remaining", false}};
  for (const bool frozen : {false, true}) {
    nlohmann::json json = Golden("osdn_gated_deltanet_a");
    const std::vector<std::pair<std::string, LayerSpec::Value>> params = Mixer(json).params;
    json.update(off);
    json["osgm_freeze"] = frozen;  // what training changes, not what the layer computes
    EXPECT_EQ(Mixer(json).params, params);
  }
}

TEST(OsdnConfig, RefusesWhatIsNotServed) {
  for (const char* set : {"osdn_delta_net_a", "osdn_gated_deltanet_a", "osdn_kda_a"}) {
    const nlohmann::json good = Golden(set);
    const auto refusal = [&](const nlohmann::json& changes) { return Refusal(good, changes); };
    for (const char* mode : {"ema", "ema_norm", "gate_aware", "post_gate_residual"}) {
      EXPECT_THAT(refusal({{"osgm_decay_mode", mode}}),
                  HasSubstr("osgm_decay_mode is \"" + std::string(mode) +
                            "\", supported: none, constant, learnable, data_dependent"));
    }
    EXPECT_THAT(refusal({{"osgm_d_decay_source", "gdn"}}),
                HasSubstr("osgm_d_decay_source is \"gdn\", must be \"osgm\""));
    for (const char* flag : {"gate_aware_hypergradient", "osgm_post_gate_regret",
                             "osgm_post_gate_residual", "osgm_post_gate_use_remaining"}) {
      EXPECT_THAT(refusal({{flag, true}}),
                  HasSubstr(std::string(flag) + " is true, must be false"));
    }
    EXPECT_THAT(refusal({{"osgm_post_gate_clamp_min", -2}}),
                HasSubstr("osgm_post_gate_clamp_min is -2, must be null"));
    EXPECT_THAT(refusal({{"osgm_new", 1}}), HasSubstr("unknown key osgm_new with value 1"));
    EXPECT_THAT(refusal({{"osgm_eta", 0}}), HasSubstr("osgm_eta is 0, must be a number from"));
    EXPECT_THAT(refusal({{"osgm_d_min", 2}, {"osgm_d_max", 1}}),
                HasSubstr("osgm_d_min is 2, must be below osgm_d_max"));
    EXPECT_THAT(refusal({{"osgm_decay_mode", "constant"}, {"osgm_decay_gamma", 1.5}}),
                HasSubstr("osgm_decay_gamma is 1.5"));
    EXPECT_THAT(refusal({{"osgm_decay_mode", "none"}, {"osgm_decay", true}}),
                HasSubstr("osgm_decay is true, but osgm_decay_mode is \"none\""));
  }
  const nlohmann::json delta = Golden("osdn_delta_net_a");
  EXPECT_THAT(Refusal(delta, {{"qk_norm", "sum"}}),
              HasSubstr("needs key_norm \"l2\", got \"sum\""));
  EXPECT_THAT(Refusal(delta, {{"use_beta", false}}), HasSubstr("needs step \"sigmoid\""));
  nlohmann::json kda = Golden("osdn_kda_a");
  kda["osgm_eta"] = "1";
  EXPECT_THAT(Refusal(kda), HasSubstr("osgm_eta is \"1\", must be a number from"));
}

constexpr char kNative[] = R"({"model_type": "eddy", "format": 1, "vocab_size": 100,
  "hidden_size": 64, "norm_eps": 1e-6, "tokens": {"bos": 1, "eos": [2], "pad": null},
  "tokenizer": null,
  "layers": [{"mlp": null, "mixer": {"type": "delta", "heads": 2, "key_dim": 16, "value_dim": 24,
    "decay": "channel", "decay_rank": 8, "step": "sigmoid", "gate": "sigmoid", "gate_rank": 8,
    "scale": {"gradient": "beta_aware", "clip": [0, 1e9], "eta": 1.0, "normalise": false,
              "retention": "data"}}}]})";

TEST(OsdnConfig, ReadsTheNativeScale) {
  const nlohmann::json native = nlohmann::json::parse(kNative);
  const nlohmann::json::json_pointer at("/layers/0/mixer/scale");
  const LayerSpec spec = Mixer(native);
  EXPECT_EQ(spec.Word("scale.gradient"), "beta_aware");
  EXPECT_EQ(spec.Word("scale.retention"), "data");
  EXPECT_TRUE(spec.IsNull("scale.gamma"));
  ExpectUsual(spec);

  nlohmann::json json = native;
  json[at]["clip"] = nullptr;
  json[at].update({{"retention", "constant"}, {"gamma", 1}});
  EXPECT_TRUE(Mixer(json).IsNull("scale.clip_min"));
  EXPECT_EQ(Mixer(json).Real("scale.gamma"), 1.0);
  json[at] = nullptr;
  EXPECT_TRUE(Mixer(json).IsNull("scale.gradient"));
}

TEST(OsdnConfig, RefusesFaultsInTheNativeScale) {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(kNative);
    json["layers"][0]["mixer"]["scale"][key] = value;
    return Refusal(json);
  };
  for (const char* key : {"gradient", "clip", "eta", "normalise", "retention"}) {
    nlohmann::json json = nlohmann::json::parse(kNative);
    json["layers"][0]["mixer"]["scale"].erase(key);
    EXPECT_THAT(Refusal(json),
                HasSubstr("layers[0].mixer.scale." + std::string(key) + " is missing"));
  }
  const char* const pair = "must be null or a list of two numbers";
  EXPECT_THAT(refusal("clip", {1}), HasSubstr(pair));
  EXPECT_THAT(refusal("clip", {1, 1}), HasSubstr(pair));
  EXPECT_THAT(refusal("clip", {0, "1"}), HasSubstr(pair));
  EXPECT_THAT(refusal("clip", {0, 1e31}), HasSubstr(pair));
  EXPECT_THAT(refusal("gradient", nullptr), HasSubstr("supported: beta_aware, beta_unaware"));
  EXPECT_THAT(refusal("retention", "constant"), HasSubstr("scale.gamma is missing"));
  EXPECT_THAT(refusal("gamma", 0.5), HasSubstr("unknown key layers[0].mixer.scale.gamma"));
  EXPECT_THAT(refusal("eta", -1), HasSubstr("scale.eta is -1"));
}

}  // namespace
}  // namespace eddy
