// Proves that the config.json and the tensors of Mamba and xLSTM, as flash-linear-attention and
// transformers write them, are the models that they are in eddy's own form: one set of random
// weights, written under the names of each, must score a text to the bit alike. The native layers
// are proven by their golden sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/engine/model_runner.h"
#include "tests/engine/random_model.h"

namespace eddy {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Renames = std::vector<std::pair<std::string, std::string>>;

constexpr int kVocab = 50, kWidth = 24;

std::vector<float> LogProbs(const std::string& model_dir) {
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  ModelRunner runner(model_dir, {.slots = 1, .rows = 16}, device.get());
  std::vector<float> all;
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 40; ++i) text.push_back(i * 7 % kVocab);
  for (const TokenReport& report : runner.Run(Score(text)).scored) all.push_back(report.logprob);
  EXPECT_EQ(all.size(), 39u);
  return all;
}
std::vector<float> LogProbs(const json& config, const std::vector<TestTensor>& tensors) {
  TempDir dir;
  WriteFile(dir / "config.json", config.dump());
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
  return LogProbs(dir.path());
}
std::string Refusal(const json& config, const std::vector<TestTensor>& tensors) {
  TempDir dir;
  WriteFile(dir / "config.json", config.dump());
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  const auto loaded = LoadModel(
      {.model_dir = dir.path(), .max_sequences = 1, .max_rows_per_step = 16}, device.get());
  EXPECT_FALSE(loaded.ok());
  return std::string(loaded.status().message());
}
std::string Refusal(json config, const std::string& key, const json& value) {
  config[key] = value;
  const auto read = ParseModelConfig(config.dump(), "config.json");
  EXPECT_FALSE(read.ok()) << key << " " << value;
  return std::string(read.status().message());
}

// The tensors of a native model with each first part that is listed put in other words.
std::vector<TestTensor> Renamed(const std::string& model_dir, const Renames& renames) {
  std::vector<TestTensor> tensors = ReadTensors(model_dir + "/model.safetensors");
  for (TestTensor& tensor : tensors) {
    const auto found = std::find_if(renames.begin(), renames.end(), [&](const auto& rename) {
      return tensor.name.rfind(rename.first, 0) == 0;
    });
    EXPECT_NE(found, renames.end()) << tensor.name;
    tensor.name.replace(0, found->first.size(), found->second);
    if (tensor.name.find("conv1d.weight") != std::string::npos) {
      tensor.shape.insert(tensor.shape.begin() + 1, 1);
    }
  }
  return tensors;
}

Renames MambaNames(int layers) {
  Renames names = {{"embedding.", "backbone.embeddings."},
                   {"final_norm.", "backbone.norm_f."},
                   {"head.", "lm_head."}};
  for (int i = 0; i < layers; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = "backbone." + ours;
    names.insert(names.end(), {{ours + "mixer_norm.", theirs + "norm."},
                               {ours + "mixer.in.", theirs + "mixer.in_proj."},
                               {ours + "mixer.conv.", theirs + "mixer.conv1d."},
                               {ours + "mixer.select.", theirs + "mixer.x_proj."},
                               {ours + "mixer.step_up.", theirs + "mixer.dt_proj."},
                               {ours + "mixer.decay_rate_log", theirs + "mixer.A_log"},
                               {ours + "mixer.skip", theirs + "mixer.D"},
                               {ours + "mixer.out.", theirs + "mixer.out_proj."}});
  }
  return names;
}

// In the words of flash-linear-attention, of width 36 inside.
json Mamba() {
  return {{"model_type", "mamba"},
          {"vocab_size", kVocab},
          {"hidden_size", kWidth},
          {"num_hidden_layers", 2},
          {"expand", 1.5},
          {"state_size", 5},
          {"dt_rank", 3},
          {"norm_eps", 1e-6},
          {"intermediate_size", 36},
          {"tie_word_embeddings", false}};
}

TEST(ScanFiles, MambaUnderItsPublishedNamesIsTheSameModel) {
  for (const bool bias : {false, true}) {
    const json mixer = {{"type", "mamba"}, {"channels", 36},     {"state_dim", 5}, {"step_rank", 3},
                        {"conv_width", 3}, {"conv_bias", !bias}, {"bias", bias}};
    const RandomModel native(
        NativeConfig({{{"repeat", 2}, {"mixer", mixer}, {"mlp", nullptr}}}, kVocab, kWidth), 3);
    const std::vector<TestTensor> tensors = Renamed(native.path(), MambaNames(2));
    const std::vector<float> expected = LogProbs(native.path());

    json config = Mamba();
    config.update({{"conv_kernel", 3}, {"use_conv_bias", !bias}, {"use_bias", bias}});
    EXPECT_EQ(LogProbs(config, tensors), expected);
    // In the words of older versions and of transformers.
    config.erase("norm_eps");
    config.erase("dt_rank");
    config.update({{"layer_norm_epsilon", 1e-6},
                   {"time_step_rank", 3},
                   {"time_step_scale", 1.0},
                   {"time_step_init_scheme", "random"},
                   {"use_mambapy", false},
                   {"rms_norm", true},
                   {"ssm_cfg", json::object()},
                   {"n_layer", 2},
                   {"d_model", kWidth}});
    EXPECT_EQ(LogProbs(config, tensors), expected);
  }
}

// transformers leaves tie_word_embeddings out where it is true.
TEST(ScanFiles, AMambaThatDoesNotSayItTiesItsEndsTiesThem) {
  const json mixer = {{"type", "mamba"}, {"channels", 36}, {"state_dim", 5}, {"step_rank", 3}};
  json form = NativeConfig({{{"mixer", mixer}, {"mlp", nullptr}}}, kVocab, kWidth);
  form["tie_embeddings"] = true;
  const RandomModel native(form, 4);
  std::vector<TestTensor> tensors = Renamed(native.path(), MambaNames(1));
  json config = Mamba();
  config["num_hidden_layers"] = 1;
  config.erase("tie_word_embeddings");
  EXPECT_EQ(LogProbs(config, tensors), LogProbs(native.path()));
  // A head is then another one, and which of them counts nobody knows.
  tensors.push_back({.name = "lm_head.weight", .shape = {kVocab, kWidth}});
  EXPECT_THAT(Refusal(config, tensors), HasSubstr("1 unexpected (lm_head.weight)"));
  config["tie_word_embeddings"] = true;
  EXPECT_EQ(LogProbs(config, tensors), LogProbs(native.path()));
}

TEST(ScanFiles, RefusesWhatAMambaMayNotSay) {
  EXPECT_THAT(Refusal(Mamba(), "intermediate_size", 48),
              HasSubstr("intermediate_size is 48, expand times hidden_size is 36: they must be"));
  EXPECT_THAT(Refusal(Mamba(), "ssm_cfg", {{"layer", "Mamba2"}}),
              HasSubstr("ssm_cfg is {\"layer\":\"Mamba2\"}, must be {}"));
  EXPECT_THAT(Refusal(Mamba(), "rms_norm", false), HasSubstr("rms_norm is false, must be true"));
  EXPECT_THAT(Refusal(Mamba(), "hidden_act", "gelu"), HasSubstr("hidden_act is \"gelu\""));
  EXPECT_THAT(Refusal(Mamba(), "dt_rank", "large"), HasSubstr("supported: auto"));
  EXPECT_THAT(Refusal(Mamba(), "dt_rank", 0), HasSubstr("dt_rank is 0, must be a whole number"));
  EXPECT_THAT(Refusal(Mamba(), "conv_kernel", 1), HasSubstr("conv_kernel is 1"));
  EXPECT_THAT(Refusal(Mamba(), "layer_norm_epsilon", 1e-4),
              HasSubstr("layer_norm_epsilon is 0.0001, it must say the same as norm_eps"));
  EXPECT_THAT(Refusal(Mamba(), "expand", 0.01), HasSubstr("times hidden_size it must be at least"));
  EXPECT_THAT(Refusal(Mamba(), "mixer_rms_eps", 1e-6), HasSubstr("unknown key mixer_rms_eps"));
}

TEST(ScanFiles, GivesAbsentKeysOfMambaAndXlstmTheirDefaults) {
  const auto mamba = ParseModelConfig(R"({"model_type": "mamba"})", "config.json");
  ASSERT_TRUE(mamba.ok()) << mamba.status();
  EXPECT_EQ(mamba->norm_eps, 1e-5);
  EXPECT_EQ(mamba->tokens.pad, 0);
  ASSERT_EQ(mamba->blocks.size(), 48u);
  EXPECT_EQ(mamba->blocks[0].spec.Int("channels"), 4096);
  EXPECT_EQ(mamba->blocks[0].spec.Int("state_dim"), 16);
  EXPECT_EQ(mamba->blocks[0].spec.Int("step_rank"), 128);

  const auto xlstm = ParseModelConfig(R"({"model_type": "xlstm"})", "config.json");
  ASSERT_TRUE(xlstm.ok()) << xlstm.status();
  EXPECT_EQ(xlstm->vocab_size, 50304);
  EXPECT_EQ(xlstm->logit_softcap, 30);
  EXPECT_EQ(xlstm->tokens.bos, 0);
  ASSERT_EQ(xlstm->blocks.size(), 64u);
  EXPECT_EQ(xlstm->blocks[0].spec.Int("key_dim"), 256);
  EXPECT_EQ(xlstm->blocks[0].spec.Int("value_dim"), 512);
  EXPECT_EQ(xlstm->blocks[0].spec.Real("gate_softcap"), 15);
  EXPECT_EQ(xlstm->blocks[1].spec.Int("size"), 10944);
}

Renames XlstmNames(int layers) {
  Renames names = {{"embedding.", "backbone.embeddings."},
                   {"final_norm.", "backbone.out_norm."},
                   {"head.", "lm_head."}};
  for (int i = 0; i < layers; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = "backbone.blocks." + std::to_string(i) + ".";
    const std::string mixer = theirs + "mlstm_layer.";
    names.insert(names.end(), {{ours + "mixer_norm.", theirs + "norm_mlstm."},
                               {ours + "mixer.q.", mixer + "q."},
                               {ours + "mixer.k.", mixer + "k."},
                               {ours + "mixer.v.", mixer + "v."},
                               {ours + "mixer.gate.", mixer + "ogate_preact."},
                               {ours + "mixer.input_gate.", mixer + "igate_preact."},
                               {ours + "mixer.forget_gate.", mixer + "fgate_preact."},
                               {ours + "mixer.out_norm.", mixer + "multihead_norm."},
                               {ours + "mixer.out.", mixer + "out_proj."},
                               {ours + "mlp_norm.", theirs + "norm_ffn."},
                               {ours + "mlp.gate.", theirs + "ffn.proj_up_gate."},
                               {ours + "mlp.up.", theirs + "ffn.proj_up."},
                               {ours + "mlp.down.", theirs + "ffn.proj_down."}});
  }
  return names;
}

json Xlstm() {
  return {{"model_type", "xlstm"},
          {"vocab_size", kVocab},
          {"embedding_dim", kWidth},
          {"num_blocks", 2},
          {"num_heads", 2},
          {"qk_dim_factor", 0.75},
          {"v_dim_factor", 1.5},
          {"gate_soft_cap", 4.0},
          {"output_logit_soft_cap", 9.0},
          {"ffn_proj_factor", 1.3},
          {"ffn_round_up_to_multiple_of", 5}};
}

// Its heads are 9 and 18 wide, its MLP 35: 31.2, rounded up.
json NativeXlstm() {
  json form = NativeConfig({{{"repeat", 2},
                             {"mixer",
                              {{"type", "mlstm"},
                               {"heads", 2},
                               {"key_dim", 9},
                               {"value_dim", 18},
                               {"gate_softcap", 4.0}}},
                             {"mlp", {{"type", "swiglu"}, {"size", 35}}}}},
                           kVocab, kWidth);
  form["logit_softcap"] = 9.0;
  return form;
}

// Puts tensors one below the other under the name of the first, and calls that `all`.
void Fuse(const std::vector<std::string>& names, const std::string& all,
          std::vector<TestTensor>* tensors) {
  TestTensor fused = {.name = all};
  for (const std::string& name : names) {
    const auto found = std::find_if(tensors->begin(), tensors->end(),
                                    [&](const TestTensor& one) { return one.name == name; });
    ASSERT_NE(found, tensors->end()) << name;
    const int64_t rows = fused.shape.empty() ? 0 : fused.shape[0];
    fused.shape = found->shape;
    fused.shape[0] += rows;
    fused.data += found->data;
    tensors->erase(found);
  }
  tensors->push_back(std::move(fused));
}

TEST(ScanFiles, XlstmUnderItsPublishedNamesIsTheSameModel) {
  const RandomModel native(NativeXlstm(), 5);
  std::vector<TestTensor> tensors = Renamed(native.path(), XlstmNames(2));
  const std::vector<float> expected = LogProbs(native.path());
  json config = Xlstm();
  EXPECT_EQ(LogProbs(config, tensors), expected);
  config.update({{"hidden_size", kWidth}, {"num_hidden_layers", 2}, {"weight_mode", "fused"}});
  for (int i = 0; i < 2; ++i) {
    const std::string block = "backbone.blocks." + std::to_string(i) + ".";
    const std::string mixer = block + "mlstm_layer.";
    Fuse(
        {mixer + "q.weight", mixer + "k.weight", mixer + "v.weight", mixer + "ogate_preact.weight"},
        mixer + "qkv_opreact.weight", &tensors);
    for (const char* part : {"weight", "bias"}) {
      Fuse({mixer + "igate_preact." + part, mixer + "fgate_preact." + part},
           mixer + "ifgate_preact." + part, &tensors);
    }
    Fuse({block + "ffn.proj_up_gate.weight", block + "ffn.proj_up.weight"},
         block + "ffn.proj_up_gate_z.weight", &tensors);
  }
  EXPECT_EQ(LogProbs(config, tensors), expected);
  config["weight_mode"] = "single";
  EXPECT_THAT(Refusal(config, tensors), HasSubstr("tensors do not match config.json: 20 missing"));
}

TEST(ScanFiles, RefusesWhatAnXlstmMayNotSay) {
  EXPECT_THAT(Refusal(Xlstm(), "use_bias", true), HasSubstr("use_bias is true, must be false"));
  EXPECT_THAT(Refusal(Xlstm(), "add_out_norm", false), HasSubstr("add_out_norm is false, must be"));
  EXPECT_THAT(Refusal(Xlstm(), "eps", 1e-5), HasSubstr("eps is 1e-05, must be 1e-06"));
  EXPECT_THAT(Refusal(Xlstm(), "hidden_size", 48),
              HasSubstr("embedding_dim is 24, it must say the same as hidden_size, 48"));
  EXPECT_THAT(Refusal(Xlstm(), "num_hidden_layers", 3), HasSubstr("num_blocks is 2, it must say"));
  EXPECT_THAT(Refusal(Xlstm(), "num_heads", 4), HasSubstr("a multiple of num_heads"));
  EXPECT_THAT(Refusal(Xlstm(), "weight_mode", "split"), HasSubstr("supported: single, fused"));
  EXPECT_THAT(Refusal(Xlstm(), "gate_soft_cap", 0), HasSubstr("gate_soft_cap is 0"));
  EXPECT_THAT(Refusal(Xlstm(), "slstm_at", {1}), HasSubstr("unknown key slstm_at"));
}

}  // namespace
}  // namespace eddy
