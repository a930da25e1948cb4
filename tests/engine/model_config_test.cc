// Proves that config.json is read strictly: what a file leaves out gets its documented default, and
// whatever is unknown, missing, out of range, of the wrong type or not served is refused with one
// line that names file, key, value and what is supported. The tables hold one fault each; then
// thousands of mutations of good configs, of which none may crash and each refusal must say
// something.
#include "engine/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/json_text.h"
#include "engine/weights.h"
#include "tests/engine/config_json.h"
#include "tests/engine/model_files.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

constexpr char kNative[] = R"({"model_type": "eddy", "format": 1, "vocab_size": 100,
  "hidden_size": 64, "norm_eps": 1e-6, "tie_embeddings": true,
  "tokens": {"bos": 1, "eos": [2, 3], "pad": null},
  "tokenizer": {"kind": "sentencepiece", "file": "tokenizer.model"},
  "layers": [{"repeat": 2, "mlp": {"type": "swiglu", "size": 96},
    "mixer": {"type": "delta", "heads": 2, "key_dim": 16, "value_dim": 24, "decay": "head",
              "gate": "silu", "key_norm": "none", "step": "kaczmarz", "step_eps": 1e-6,
              "step_bias": true}},
   {"mlp": null, "mixer": {"type": "delta", "heads": 1, "value_heads": 2, "key_dim": 8,
    "value_dim": 8, "decay": "channel", "gate": "none", "step": "one"}}]})";

nlohmann::json Native() { return nlohmann::json::parse(kNative); }
nlohmann::json Golden(const std::string& name) {
  return nlohmann::json::parse(ReadFile("tests/golden/" + name + "/config.json"));
}

TEST(ModelConfig, ReadsTheNativeForm) {
  const auto config = Parse(Native());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_type, "eddy");
  EXPECT_EQ(config->vocab_size, 100);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_TRUE(config->tie_embeddings);
  EXPECT_EQ(config->tokens.bos, 1);
  EXPECT_EQ(config->tokens.eos, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(config->tokens.pad, std::nullopt);
  EXPECT_EQ(config->tokenizer_kind, "sentencepiece");
  EXPECT_EQ(config->tokenizer_file, "tokenizer.model");
  ASSERT_EQ(config->blocks.size(), 5u);  // twice mixer and MLP, then a mixer alone
  const LayerSpec& kaczmarz = config->blocks[2].spec;
  EXPECT_EQ(kaczmarz.type, "delta");
  EXPECT_EQ(kaczmarz.Int("value_heads"), 2);
  EXPECT_EQ(kaczmarz.Int("conv_width"), 4);
  EXPECT_EQ(kaczmarz.Word("query_norm"), "l2");
  EXPECT_EQ(kaczmarz.Word("key_norm"), "none");
  EXPECT_EQ(kaczmarz.Real("step_eps"), 1e-6);
  EXPECT_TRUE(kaczmarz.IsNull("decay_rank"));
  EXPECT_EQ(config->blocks[3].spec.type, "swiglu");
  EXPECT_TRUE(config->blocks[3].mlp);
  EXPECT_EQ(config->blocks[3].layer, 1);
  EXPECT_EQ(config->blocks[4].layer, 2);
  EXPECT_EQ(config->blocks[4].spec.Int("decay_rank"), 8);  // value_dim, if it is not given
}

TEST(ModelConfig, NamesNativeTensorsAsTheFormatSays) {
  const auto config = Parse(Native());
  ASSERT_TRUE(config.ok());
  const auto name = [&](size_t block, const std::string& ours) {
    const NameRule* rule = RuleFor(config->blocks[block].names, ours);
    return rule->theirs + ours.substr(rule->ours.size());
  };
  EXPECT_EQ(name(2, "norm.weight"), "layers.1.mixer_norm.weight");
  EXPECT_EQ(name(2, "q.weight"), "layers.1.mixer.q.weight");
  EXPECT_EQ(name(2, "decay_rate_log"), "layers.1.mixer.decay_rate_log");
  EXPECT_EQ(name(3, "norm.weight"), "layers.1.mlp_norm.weight");
  EXPECT_EQ(name(3, "down.weight"), "layers.1.mlp.down.weight");
}

TEST(ModelConfig, GivesAbsentKeysTheirDefaults) {
  // What flash-linear-attention 0.5.2 assumes where a file says nothing.
  const auto delta = Parse({{"model_type", "delta_net"}});
  ASSERT_TRUE(delta.ok()) << delta.status();
  EXPECT_EQ(delta->vocab_size, 32000);
  EXPECT_EQ(delta->hidden_size, 2048);
  EXPECT_EQ(delta->norm_eps, 1e-6);
  EXPECT_FALSE(delta->tie_embeddings);
  EXPECT_EQ(delta->tokens.bos, 1);
  EXPECT_EQ(delta->tokens.eos, std::vector<int32_t>{2});
  EXPECT_EQ(delta->blocks.size(), 48u);
  EXPECT_EQ(delta->blocks[0].spec.Int("heads"), 16);
  EXPECT_EQ(delta->blocks[0].spec.Int("key_dim"), 128);
  EXPECT_EQ(delta->blocks[0].spec.Int("value_dim"), 128);
  EXPECT_EQ(delta->blocks[0].spec.Word("gate"), "none");
  EXPECT_EQ(delta->blocks[1].spec.Int("size"), 5632);

  const auto gated = Parse({{"model_type", "gated_deltanet"}});
  ASSERT_TRUE(gated.ok()) << gated.status();
  EXPECT_EQ(gated->blocks.size(), 42u);
  EXPECT_EQ(gated->blocks[0].spec.Int("heads"), 6);
  EXPECT_EQ(gated->blocks[0].spec.Int("key_dim"), 256);
  EXPECT_EQ(gated->blocks[0].spec.Int("value_dim"), 512);
  EXPECT_EQ(gated->blocks[0].spec.Word("gate"), "silu");

  const auto kda = Parse({{"model_type", "kda"}});
  ASSERT_TRUE(kda.ok()) << kda.status();
  EXPECT_EQ(kda->blocks.size(), 48u);
  EXPECT_EQ(kda->blocks[0].spec.Word("decay"), "channel");
  EXPECT_EQ(kda->blocks[0].spec.Int("gate_rank"), 128);
  EXPECT_EQ(kda->blocks[0].spec.Word("gate"), "sigmoid");
}

TEST(ModelConfig, RoundsTheWidthOfAnMlpAsTheFamilyDoes) {
  for (const auto& [hidden, size] :
       {std::pair(1024, 2816), {2048, 5632}, {2560, 6912}, {64, 256}}) {
    const auto config =
        Parse({{"model_type", "delta_net"}, {"hidden_size", hidden}, {"num_heads", 16}});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->blocks[1].spec.Int("size"), size);
  }
}

TEST(ModelConfig, TakesTheStepOptionsOfTheKaczmarzCode) {
  const std::vector<std::array<const char*, 4>> options = {
      {"relaxed_kaczmarz_q_norm", "l2", "none", "kaczmarz"},
      {"relaxed_kaczmarz", "none", "none", "kaczmarz"},
      {"kaczmarz", "none", "none", "kaczmarz_full"},
      {"k_norm_only", "none", "none", "kaczmarz_full"},
      {"longhorn", "none", "none", "longhorn"},
      {"learned_scalar", "none", "none", "kaczmarz_learned"},
      {"no_norm", "none", "none", "sigmoid"},
      {"l2", "l2", "l2", "sigmoid"}};
  for (const auto& [qk_norm, query_norm, key_norm, step] : options) {
    nlohmann::json json = Golden("kaczmarz_a");
    json["qk_norm"] = qk_norm;
    const auto config = Parse(json);
    ASSERT_TRUE(config.ok()) << config.status();
    const LayerSpec& spec = config->blocks[0].spec;
    EXPECT_EQ(spec.Word("query_norm"), query_norm);
    EXPECT_EQ(spec.Word("key_norm"), key_norm);
    EXPECT_EQ(spec.Word("step"), step);
  }
}

TEST(ModelConfig, TurnsTheOptionsOfTheFamilyIntoParameters) {
  nlohmann::json json = Golden("delta_net_a");
  json.update({{"use_short_conv", false},
               {"allow_neg_eigval", true},
               {"use_gate", true},
               {"qk_norm", "sum"},
               {"qk_activation", "elu"},
               {"expand_v", 2},
               {"expand_k", 0.5},
               {"eos_token_id", {7, 8}},
               {"bos_token_id", nullptr},
               {"tie_word_embeddings", true},
               {"intermediate_size", 100}});
  const auto config = Parse(json);
  ASSERT_TRUE(config.ok()) << config.status();
  const LayerSpec& spec = config->blocks[0].spec;
  EXPECT_EQ(spec.Int("conv_width"), 0);
  EXPECT_EQ(spec.Int("step_max"), 2);
  EXPECT_EQ(spec.Word("gate"), "silu");
  EXPECT_EQ(spec.Word("key_norm"), "sum");
  EXPECT_EQ(spec.Word("qk_activation"), "elu");
  EXPECT_EQ(spec.Int("key_dim"), 16);
  EXPECT_EQ(spec.Int("value_dim"), 64);
  EXPECT_EQ(config->tokens.bos, std::nullopt);
  EXPECT_EQ(config->tokens.eos, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(config->blocks[1].spec.Int("size"), 100);
  EXPECT_EQ(config->unused_tensors, std::vector<std::string>{"lm_head.weight"});
}

struct BadKey {
  std::string pointer;  // into the JSON
  nlohmann::json value;
  std::string expected;
};

void ExpectRefused(const nlohmann::json& good, const std::vector<BadKey>& cases) {
  ASSERT_TRUE(Parse(good).ok()) << Parse(good).status();
  for (const BadKey& bad : cases) {
    nlohmann::json json = good;
    const nlohmann::json::json_pointer pointer(bad.pointer);
    if (bad.value == "REMOVED") {
      json[pointer.parent_pointer()].erase(pointer.back());
    } else {
      json[pointer] = bad.value;
    }
    const auto config = Parse(json);
    ASSERT_FALSE(config.ok()) << bad.pointer << " " << bad.value;
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(config.status().message()).rfind("dir/config.json: ", 0), 0u);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(bad.expected));
  }
}

TEST(ModelConfig, RefusesFaultsInNativeFiles) {
  ExpectRefused(
      Native(),
      {{"/format", 2, "format is 2, must be a whole number from 1 to 1"},
       {"/format", "REMOVED", "format is missing"},
       {"/vocab_size", 1, "vocab_size is 1, must be a whole number from 2"},
       {"/vocab_size", 100.5, "vocab_size is 100.5, must be a whole number"},
       {"/vocab_size", "100", "vocab_size is \"100\", must be a whole number"},
       {"/vocab_size", 18446744073709551615u, "vocab_size is 18446744073709551615"},
       {"/hidden_size", 0, "hidden_size is 0"},
       {"/hidden_size", nullptr, "hidden_size is null"},
       {"/norm_eps", 0, "norm_eps is 0, must be a number from"},
       {"/norm_eps", nullptr, "norm_eps is null"},
       {"/tie_embeddings", 1, "tie_embeddings is 1, must be true or false"},
       {"/logit_softcap", 0, "logit_softcap is 0"},
       {"/colour", "red", "unknown key colour with value \"red\""},
       {"/readout_stats", nlohmann::json::object(), "readout_stats is {}, must be null"},
       {"/tokens", "REMOVED", "tokens is missing"},
       {"/tokens", 3, "tokens is 3, must be an object"},
       {"/tokens/bos", 100, "tokens.bos is 100, must be a whole number from 0 to 99"},
       {"/tokens/eos", "REMOVED", "tokens.eos is missing"},
       {"/tokens/eos/0", -1, "must be a whole number from 0 to 99"},
       {"/tokens/unk", 1, "unknown key tokens.unk"},
       {"/tokenizer", "REMOVED", "tokenizer is missing"},
       {"/tokenizer", "bytes", "tokenizer is \"bytes\", must be an object"},
       {"/tokenizer/kind", "wordpiece", "supported: tokenizer.json, sentencepiece, bytes"},
       {"/tokenizer/file", "../x", "tokenizer.file is \"../x\", must be a name in the folder"},
       {"/tokenizer/file", "..", "tokenizer.file is \"..\", must be a name in the folder"},
       {"/tokenizer/file", "", "tokenizer.file is \"\""},
       {"/tokenizer/kind", "bytes", "tokenizer.file is \"tokenizer.model\", must be null"},
       {"/layers", nlohmann::json::array(), "layers is [], must be a list of 1 to 4096 objects"},
       {"/layers/0", 7, "layers[0] is 7, must be an object"},
       {"/layers/0/repeat", 0, "layers[0].repeat is 0"},
       {"/layers/0/repeat", 4096, "layers[1].repeat is absent, the model has more than 4096"},
       {"/layers/0/mlp", "REMOVED", "layers[0].mlp is missing"},
       {"/layers/0/mlp/type", "moe", "layers[0].mlp.type is \"moe\", supported: swiglu, gelu"},
       {"/layers/0/mlp/size", 0, "layers[0].mlp.size is 0"},
       {"/layers/0/mlp/bias", true, "unknown key layers[0].mlp.bias with value true"},
       {"/layers/1/mixer/type", "hyena", "layers[1].mixer.type is \"hyena\", supported: delta, "},
       {"/layers/1/mixer/heads", "REMOVED", "layers[1].mixer.heads is missing"},
       {"/layers/1/mixer/decay", "slow",
        "layers[1].mixer.decay is \"slow\", supported: none, head"},
       {"/layers/1/mixer/decay", 1, "layers[1].mixer.decay is 1, supported"},
       {"/layers/1/mixer/decay_bound", -6, "layers[1].mixer.decay_bound is -6"},
       {"/layers/0/mixer/decay_rank", 4, "unknown key layers[0].mixer.decay_rank"},
       {"/layers/0/mixer/key_dim", 257, "layers[0].mixer.key_dim is 257"},
       {"/layers/0/mixer/scale", {{"eta", 1}}, "layers[0].mixer.scale.gradient is missing"},
       {"/layers/0/mixer/value_heads", 3, "layer 0, mixer delta: value_heads is 3"},
       {"/layers/0/mixer/conv_width", 1, "layer 0, mixer delta: conv_width is 1"},
       {"/layers/0/mixer/step_eps", nullptr, "layer 0, mixer delta: step \"kaczmarz\" needs"},
       {"/layers/0/mixer/key_norm", "l2", "layer 0, mixer delta: step \"kaczmarz\" needs key_norm"},
       {"/layers/1/mixer/step_max", 2, "layer 2, mixer delta: step \"one\" needs step_max 1"}});
}

TEST(ModelConfig, RefusesFaultsInForeignFiles) {
  const std::vector<BadKey> common = {
      {"/model_type", "rwkv7",
       "model_type is \"rwkv7\", supported: eddy, delta_net, gated_deltanet"},
      {"/model_type", 7, "model_type is 7"},
      {"/model_type", "REMOVED", "model_type is missing"},
      {"/num_experts", 8, "unknown key num_experts with value 8"},
      {"/attnres_block_size", 4, "attnres_block_size is 4, must be null"},
      {"/hidden_act", "relu", "hidden_act is \"relu\", supported: swish, silu"},
      {"/conv_size", 1, "conv_size is 1"},
      {"/conv_size", 9, "conv_size is 9"},
      {"/use_short_conv", "yes", "use_short_conv is \"yes\", must be true or false"},
      {"/num_heads", 0, "num_heads is 0"},
      {"/num_hidden_layers", 5000, "num_hidden_layers is 5000"},
      {"/bos_token_id", 256, "bos_token_id is 256, must be a whole number from 0 to 255"},
      {"/eos_token_id", {1, "2"}, "eos_token_id is [1,\"2\"]"},
      {"/eos_token_id", std::vector<int>(65, 1), "eos_token_id has 65 entries, at most 64"},
      {"/intermediate_size", 0, "intermediate_size is 0"},
      {"/hidden_ratio", "4", "hidden_ratio is \"4\""}};
  for (const char* set : {"delta_net_a", "gated_deltanet_a", "kaczmarz_a"}) {
    SCOPED_TRACE(set);
    ExpectRefused(Golden(set), common);
  }
  ExpectRefused(Golden("delta_net_a"),
                {{"/use_output_norm", false, "use_output_norm is false, must be true"},
                 {"/qk_norm", "softmax", "qk_norm is \"softmax\", supported: l2, sum"},
                 {"/qk_activation", "tanh", "qk_activation is \"tanh\", supported: silu"},
                 {"/expand_k", 0.52, "expand_k is 0.52, hidden_size times it must be a multiple"},
                 {"/num_heads", 3, "must be a multiple of num_heads"},
                 {"/expand_v", 64, "layer 0, mixer delta: value_dim is 2048"},
                 {"/head_dim", 32, "unknown key head_dim"}});
  ExpectRefused(Golden("gated_deltanet_a"),
                {{"/num_v_heads", 3, "layer 0, mixer delta: value_heads is 3"},
                 {"/head_dim", 257, "layer 0, mixer delta: key_dim is 257"},
                 {"/qk_norm", "l2", "unknown key qk_norm"}});
  ExpectRefused(Golden("kaczmarz_a"),
                {{"/qk_norm", "seq_only", "qk_norm is \"seq_only\", supported: relaxed_kaczmarz"},
                 {"/qk_norm", "softmax", "qk_norm is \"softmax\", supported: relaxed_kaczmarz"},
                 {"/kaczmarz_eps", 0, "kaczmarz_eps is 0"},
                 {"/gate_mode", "single", "unknown key gate_mode with value \"single\""}});
}

TEST(ModelConfig, RefusesTextThatIsNotOneCleanObject) {
  const auto refused = [](const std::string& text) {
    const auto config = ParseModelConfig(text, "dir/config.json");
    EXPECT_FALSE(config.ok()) << text.substr(0, 100);
    return std::string(config.status().message());
  };
  EXPECT_THAT(refused(""), HasSubstr("dir/config.json: is not JSON"));
  EXPECT_THAT(refused("{\"model_type\": \"eddy\""), HasSubstr("is not JSON"));
  EXPECT_THAT(refused("{\"model_type\": \"\xFF\"}"), HasSubstr("is not JSON"));
  EXPECT_THAT(refused("{\"norm_eps\": 1e999}"), HasSubstr("is not JSON"));
  EXPECT_THAT(refused("[1, 2]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refused("null"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refused("{\"format\": 1, \"format\": 1}"),
              HasSubstr("the key \"format\" stands twice"));
  EXPECT_THAT(refused("{\"a\": [{\"b\": {\"c\": 1, \"c\": 2}}]}"), HasSubstr("\"c\" stands twice"));
  EXPECT_THAT(refused(std::string(1000000, '[')), HasSubstr("nested deeper than 32 levels"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  EXPECT_THAT(refused(deep), HasSubstr("nested deeper than 32 levels"));
  EXPECT_THAT(refused(std::string(kMaxJsonBytes + 1, ' ')), HasSubstr("at most 16777216"));
}

TEST(ModelConfig, LooksForTheTokenizerBesideTheConfig) {
  TempDir dir;
  EXPECT_EQ(ReadModelConfig(dir.path()).status().code(), absl::StatusCode::kNotFound);
  WriteFile(dir / "config.json", Golden("delta_net_a").dump());
  EXPECT_EQ(ReadModelConfig(dir.path())->tokenizer_kind, "");
  WriteFile(dir / "tokenizer.model", "");
  EXPECT_EQ(ReadModelConfig(dir.path())->tokenizer_kind, "sentencepiece");
  WriteFile(dir / "tokenizer.json", "");
  EXPECT_EQ(ReadModelConfig(dir.path())->tokenizer_kind, "tokenizer.json");

  nlohmann::json native = Native();
  WriteFile(dir / "config.json", native.dump());
  EXPECT_EQ(ReadModelConfig(dir.path())->tokenizer_file, "tokenizer.model");
  native["tokenizer"]["file"] = "other.model";
  WriteFile(dir / "config.json", native.dump());
  EXPECT_THAT(std::string(ReadModelConfig(dir.path()).status().message()),
              HasSubstr("tokenizer.file is \"other.model\", there is no such file"));
}

TEST(ModelConfig, SurvivesMutatedFiles) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<nlohmann::json> goods = {Native(),
                                             Golden("delta_net_a"),
                                             Golden("gated_deltanet_a"),
                                             Golden("kaczmarz_a"),
                                             Golden("gla_a"),
                                             Golden("mamba2_a"),
                                             Golden("osdn_kda_a"),
                                             {{"model_type", "mamba"}, {"expand", 2}},
                                             {{"model_type", "xlstm"}, {"num_heads", 2}}};
  const std::vector<nlohmann::json> values = {nullptr,
                                              true,
                                              false,
                                              0,
                                              1,
                                              -1,
                                              7,
                                              1e300,
                                              -0.5,
                                              4096,
                                              65536,
                                              INT64_MIN,
                                              UINT64_MAX,
                                              "",
                                              "x",
                                              "silu",
                                              nlohmann::json::array(),
                                              nlohmann::json::object(),
                                              {1, 2}};
  int accepted = 0;
  for (int i = 0; i < 6000; ++i) {
    nlohmann::json json = goods[below(goods.size())].flatten();
    auto it = json.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(json.size())));
    if (below(8) == 0) {
      json.erase(it);
    } else {
      it.value() = values[below(values.size())];
    }
    // Values that are neither plain nor empty cannot be unflattened: they stay as they are.
    nlohmann::json whole = nlohmann::json::object();
    for (const auto& item : json.items()) {
      whole[nlohmann::json::json_pointer(item.key())] = item.value();
    }
    std::string text = whole.dump();
    if (below(3) == 0) text[below(text.size())] = static_cast<char>(random());
    const auto config = ParseModelConfig(text, "dir/config.json");
    accepted += config.ok() ? 1 : 0;
    if (!config.ok()) {
      EXPECT_THAT(std::string(config.status().message()), HasSubstr("dir/config.json: "));
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 6000);
}

}  // namespace
}  // namespace eddy
