// Proves what config.json may say of softmax attention: the native mixer, and `attn` of the models
// of flash-linear-attention, an object or a list of them. What is absent gets its default, and
// every fault is refused with its key, its value and what is expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model_config.h"
#include "tests/engine/config_json.h"
#include "tests/engine/model_files.h"
#include "tests/engine/random_model.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

void ExpectRefused(const Json& config, const std::string& why) {
  const auto parsed = Parse(config);
  ASSERT_FALSE(parsed.ok()) << "expected: " << why;
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("dir/config.json: "));
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(why));
}
// The mixers, one word a layer.
std::string Mixers(const ModelConfig& config) {
  std::string all;
  for (const Block& block : config.blocks) {
    if (!block.mlp) all += block.spec.type + " ";
  }
  return all;
}

Json Native(const Json& mixer_changes) {
  Json mixer = {{"type", "attention"}, {"heads", 4}, {"head_dim", 8}};
  mixer.update(mixer_changes);
  Json config = NativeConfig({{{"mixer", mixer}, {"mlp", nullptr}}});
  config["max_positions"] = 100;
  return config;
}

// Four layers of width 24 of any model of the family.
Json Fla(const std::string& type, const Json& attn) {
  Json config = {{"model_type", type},     {"hidden_size", 24}, {"num_heads", 2},
                 {"num_hidden_layers", 4}, {"vocab_size", 64},  {"attn", attn}};
  return config;
}

TEST(AttentionConfig, ReadsTheNativeMixerWithItsDefaults) {
  const auto config = Parse(Native(Json::object()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_positions, 100);
  const LayerSpec& spec = config->blocks[0].spec;
  EXPECT_EQ(spec.Int("heads"), 4);
  EXPECT_EQ(spec.Int("kv_heads"), 4);
  EXPECT_EQ(spec.Int("head_dim"), 8);
  EXPECT_EQ(spec.Real("rope_theta"), 10000);
  EXPECT_TRUE(spec.IsNull("window"));
  EXPECT_FALSE(spec.Flag("bias"));
  const auto other = Parse(Native(
      {{"kv_heads", 2}, {"rope_theta", 500}, {"window", 7}, {"bias", true}, {"head_dim", 6}}));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->blocks[0].spec.Int("window"), 7);
}

TEST(AttentionConfig, RefusesFaultsOfTheNativeMixer) {
  ExpectRefused(Native({{"head_dim", 7}}),
                "layer 0, mixer attention: head_dim is 7, it must be even");
  ExpectRefused(Native({{"kv_heads", 3}}), "kv_heads is 3, it must divide heads, 4");
  ExpectRefused(Native({{"heads", 0}}), "layers[0].mixer.heads is 0");
  ExpectRefused(Native({{"heads", nullptr}}), "layers[0].mixer.heads is null");
  ExpectRefused(Native({{"window", 0}}), "layers[0].mixer.window is 0");
  ExpectRefused(Native({{"rope_theta", 0}}), "layers[0].mixer.rope_theta is 0");
  ExpectRefused(Native({{"rope_theta", nullptr}}), "layers[0].mixer.rope_theta is null");
  ExpectRefused(Native({{"decay", "head"}}), "unknown key layers[0].mixer.decay");
}

TEST(AttentionConfig, NeedsABoundOnPositionsWhereALayerReadsAll) {
  Json config = Native(Json::object());
  config["max_positions"] = nullptr;
  ExpectRefused(config,
                "max_positions is null, must be given: layer 0 has attention without a window");
  config.erase("max_positions");
  ExpectRefused(config, "max_positions is absent, must be given");
  config = Native({{"window", 16}});
  config["max_positions"] = nullptr;
  EXPECT_EQ(Parse(config)->max_positions, 0);
}

TEST(AttentionConfig, PutsSoftmaxLayersWhereAnObjectOrAListSays) {
  for (const char* type : {"delta_net", "gated_deltanet", "kda", "kaczmarz_gated_deltanet"}) {
    SCOPED_TRACE(type);
    const auto one = Parse(Fla(type, {{"layers", {1, 3}}, {"num_heads", 4}}));
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(Mixers(*one), "delta attention delta attention ");
    const LayerSpec& spec = one->blocks[2].spec;
    EXPECT_EQ(spec.Int("heads"), 4);
    EXPECT_EQ(spec.Int("kv_heads"), 4);
    EXPECT_EQ(spec.Int("head_dim"), 6);
    EXPECT_EQ(spec.Real("rope_theta"), 10000);
    EXPECT_TRUE(spec.IsNull("window"));
    EXPECT_FALSE(spec.Flag("bias"));
    EXPECT_EQ(one->max_positions, 2048);
    const Json list = {{{"layers", {0}},
                        {"num_heads", 6},
                        {"num_kv_heads", 3},
                        {"qkv_bias", true},
                        {"window_size", 32},
                        {"rope_theta", 1e6}},
                       {{"layers", {2}}, {"num_heads", 1}, {"num_kv_heads", nullptr}}};
    const auto two = Parse(Fla(type, list));
    ASSERT_TRUE(two.ok()) << two.status();
    EXPECT_EQ(Mixers(*two), "attention delta attention delta ");
    EXPECT_EQ(two->blocks[0].spec.Int("window"), 32);
    EXPECT_EQ(two->blocks[0].spec.Int("kv_heads"), 3);
    EXPECT_TRUE(two->blocks[0].spec.Flag("bias"));
    EXPECT_EQ(two->blocks[0].spec.Real("rope_theta"), 1e6);
    EXPECT_EQ(two->blocks[4].spec.Int("kv_heads"), 1);
  }
  EXPECT_EQ(Mixers(*Parse(Fla("delta_net", nullptr))), "delta delta delta delta ");
}

TEST(AttentionConfig, BoundsPositionsOnlyWhereALayerReadsAll) {
  const Json windowed = {{"layers", {1}}, {"num_heads", 4}, {"window_size", 8}};
  Json config = Fla("delta_net", windowed);
  config["max_position_embeddings"] = 77;
  EXPECT_EQ(Parse(config)->max_positions, 0);
  config["attn"]["window_size"] = nullptr;
  EXPECT_EQ(Parse(config)->max_positions, 77);
  config["max_position_embeddings"] = nullptr;
  ExpectRefused(config, "max_position_embeddings is null, must be a whole number");
  config["attn"] = nullptr;
  EXPECT_EQ(Parse(config)->max_positions, 0);
}

TEST(AttentionConfig, RefusesFaultsOfTheFamilysObject) {
  const auto refused = [](const Json& changes, const std::string& why) {
    Json attn = {{"layers", {1}}, {"num_heads", 4}};
    for (const auto& [key, value] : changes.items()) {
      attn[key] = value;
      if (value == "REMOVED") attn.erase(key);
    }
    ExpectRefused(Fla("gated_deltanet", attn), why);
    ExpectRefused(Fla("gated_deltanet", Json::array({attn})), why.substr(why.find('.') + 1));
  };
  refused({{"layers", {1, 4}}}, "attn.layers is [1,4], must be a whole number from 0 to 3");
  refused({{"layers", {-1}}}, "attn.layers is [-1]");
  refused({{"layers", {1, 2, 1}}}, "attn.layers is [1,2,1], layer 1 is listed twice");
  refused({{"layers", 1}}, "attn.layers is 1, must be a list");
  refused({{"layers", nullptr}}, "attn.layers is null, must be a list");
  refused({{"layers", "REMOVED"}}, "attn.layers is missing");
  refused({{"num_heads", "REMOVED"}}, "attn.num_heads is missing");
  refused({{"num_heads", 5}}, "attn.num_heads is 5, must divide hidden_size, 24");
  refused({{"num_heads", 8}},
          "attn.num_heads is 8, must divide hidden_size, 24, into heads of an even size");
  refused({{"num_kv_heads", 3}}, "attn.num_kv_heads is 3, must divide num_heads, 4");
  refused({{"window_size", 0}}, "attn.window_size is 0");
  refused({{"window_size", -1}}, "attn.window_size is -1");
  refused({{"qkv_bias", nullptr}}, "attn.qkv_bias is null, must be true or false");
  refused({{"rope_theta", nullptr}}, "attn.rope_theta is null, must be a number");
  refused({{"qk_norm", true}}, "unknown key attn.qk_norm with value true");
  const Json one = {{"layers", {1, 2}}, {"num_heads", 4}};
  ExpectRefused(Fla("kda", Json::array({one, one})),
                "attn[1].layers is [1,2], layer 1 is listed twice");
  ExpectRefused(Fla("kda", Json::array({one, 7})), "attn[1] is 7, must be an object");
  ExpectRefused(Fla("kda", "full"), "attn is \"full\", must be an object");
}

}  // namespace
}  // namespace eddy
