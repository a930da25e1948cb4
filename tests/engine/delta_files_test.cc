// Proves that files of older versions and with other names load as the same model: the same random
// weights, written in each of the ways, must score a text to the bit alike. What is ambiguous or
// contradicts config.json is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "engine/blueprint.h"
#include "tests/engine/model_runner.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHeads = 2, kValueHeads = 6, kKeyDim = 8;

nlohmann::json Kda() {
  return {{"model_type", "kda"},    {"vocab_size", 50},           {"hidden_size", 24},
          {"num_heads", kHeads},    {"num_v_heads", kValueHeads}, {"head_dim", kKeyDim},
          {"expand_v", 1.25},       {"num_hidden_layers", 2},     {"lower_bound", -4.0},
          {"intermediate_size", 20}};
}

nlohmann::json OsdnKda() {
  nlohmann::json config = Kda();
  config.update(
      {{"model_type", "os_kda"}, {"osgm_beta_aware", true}, {"osgm_decay_mode", "data_dependent"}});
  return config;
}

nlohmann::json OsdnGatedDeltaNet(const char* decay_mode) {
  nlohmann::json config = Kda();
  config.erase("lower_bound");
  config.update({{"model_type", "os_gated_deltanet"},
                 {"use_osgm", true},
                 {"osgm_beta_aware", true},
                 {"osgm_eta", 0.5},
                 {"osgm_use_denominator", false},
                 {"osgm_d_min", nullptr},
                 {"osgm_d_max", nullptr},
                 {"osgm_decay_mode", decay_mode},
                 {"osgm_decay_gamma", 0.9}});
  return config;
}

// Random tensors of all that `config` asks for, as today's files hold them. Those that old files
// hold per query head are the same for the value heads of each.
std::vector<TestTensor> TensorsOf(const nlohmann::json& config) {
  auto read = ParseModelConfig(config.dump(), "config.json");
  EXPECT_TRUE(read.ok()) << read.status();
  const Blueprint blueprint = MakeBlueprint(*std::move(read), DeviceTraits{});
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.3f);
  std::vector<TestTensor> tensors;
  for (const WeightGroup& group : blueprint.weights) {
    for (const Field& field : group.fields) {
      TestTensor tensor = {.name = TheirName(group.names, field.name)};
      tensor.shape.assign(field.shape.begin(), field.shape.end());
      while (tensor.shape.size() > 1 && tensor.shape.back() == 1) tensor.shape.pop_back();
      std::vector<float> values(static_cast<size_t>(tensor.bytes() / 4));
      for (float& value : values) value = normal(random);
      tensor.data = FloatBytes(values);
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

TestTensor& Find(std::vector<TestTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TestTensor& tensor) { return tensor.name == name; });
  EXPECT_NE(found, tensors.end()) << name;
  return *found;
}

const std::vector<std::string> kPerHead = {
    "A_log",           "dt_bias", "b_proj.weight", "f_proj.1.weight", "osgm_a_proj.weight",
    "osgm_a_proj.bias"};

bool IsPerHead(const TestTensor& tensor) {
  return std::any_of(kPerHead.begin(), kPerHead.end(), [&](const std::string& end) {
    return tensor.name.size() > end.size() &&
           tensor.name.compare(tensor.name.size() - end.size() - 1, std::string::npos, "." + end) ==
               0;
  });
}

// Makes the value heads of a query head alike (so that an old file can say it), or, if `old`,
// leaves but one of each.
void GroupHeads(bool old, std::vector<TestTensor>* tensors) {
  for (TestTensor& tensor : *tensors) {
    if (!IsPerHead(tensor)) continue;
    const size_t head = tensor.data.size() / kValueHeads;
    std::string data;
    for (size_t j = 0; j < kValueHeads; ++j) {
      const size_t group = kValueHeads / kHeads;
      if (old && j % group != 0) continue;
      data += tensor.data.substr(j / group * group * head, head);
    }
    tensor.data = data;
    if (old) tensor.shape[0] = tensor.shape[0] / kValueHeads * kHeads;
  }
}

void Write(const TempDir& dir, const nlohmann::json& config,
           const std::vector<TestTensor>& tensors) {
  WriteFile(dir / "config.json", config.dump());
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
}

std::vector<float> LogProbs(const nlohmann::json& config, const std::vector<TestTensor>& tensors) {
  TempDir dir;
  Write(dir, config, tensors);
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  ModelRunner runner(dir.path(), {.slots = 1, .rows = 16}, device.get());
  std::vector<float> all;
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 40; ++i) text.push_back(i * 7 % 50);
  for (const TokenReport& report : runner.Run(Score(text)).scored) all.push_back(report.logprob);
  EXPECT_EQ(all.size(), 39u);
  return all;
}

std::string Refusal(const nlohmann::json& config, const std::vector<TestTensor>& tensors) {
  TempDir dir;
  Write(dir, config, tensors);
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  const auto loaded = LoadModel(
      {.model_dir = dir.path(), .max_sequences = 1, .max_rows_per_step = 16}, device.get());
  EXPECT_FALSE(loaded.ok());
  return std::string(loaded.status().message());
}

TEST(DeltaFiles, OldFilesWithOneRowPerQueryHeadAreTheSameModel) {
  for (const nlohmann::json& config : {Kda(), OsdnKda()}) {
    SCOPED_TRACE(config.at("model_type"));
    std::vector<TestTensor> today = TensorsOf(config), old = today;
    GroupHeads(/*old=*/false, &today);
    GroupHeads(/*old=*/true, &old);
    EXPECT_EQ(Find(old, "model.layers.1.attn.A_log").shape, std::vector<int64_t>{kHeads});
    EXPECT_EQ(Find(old, "model.layers.1.attn.f_proj.1.weight").shape[0], kHeads * kKeyDim);
    EXPECT_EQ(LogProbs(config, today), LogProbs(config, old));
    EXPECT_NE(LogProbs(config, today), LogProbs(config, TensorsOf(config)));
    // Neither way.
    TestTensor& bias = Find(old, "model.layers.0.attn.dt_bias");
    bias.shape = {3 * kKeyDim};
    bias.data = FloatBytes(std::vector<float>(3 * kKeyDim));
    EXPECT_THAT(Refusal(config, old), HasSubstr("attn.dt_bias has shape [24], config.json makes it "
                                                "[48]"));
  }
}

// As early versions of the family wrote it.
TEST(DeltaFiles, GateAndUpOfAnMlpInOneTensorAreTheSameModel) {
  for (const char* type : {"delta_net", "gated_deltanet", "gla"}) {
    SCOPED_TRACE(type);
    const nlohmann::json config = {{"model_type", type},     {"vocab_size", 50},
                                   {"hidden_size", 24},      {"num_heads", 2},
                                   {"num_hidden_layers", 2}, {"intermediate_size", 20}};
    const std::vector<TestTensor> today = TensorsOf(config);
    std::vector<TestTensor> old = today;
    for (int layer : {0, 1}) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      TestTensor& gate = Find(old, mlp + "gate_proj.weight");
      gate.data += Find(old, mlp + "up_proj.weight").data;
      gate.shape[0] = 40;
      std::erase_if(
          old, [&](const TestTensor& tensor) { return tensor.name == mlp + "up_proj.weight"; });
    }
    EXPECT_EQ(LogProbs(config, today), LogProbs(config, old));
    // Rows that are neither.
    TestTensor& gate = Find(old, "model.layers.1.mlp.gate_proj.weight");
    gate.shape[0] = 41;
    gate.data += FloatBytes(std::vector<float>(24));
    EXPECT_THAT(Refusal(config, old),
                HasSubstr("1 unexpected (model.layers.1.mlp.gate_proj.weight)"));
  }
}

TEST(DeltaFiles, FilesWithTheNamesOfKimiAreTheSameModel) {
  const nlohmann::json config = Kda();
  std::vector<TestTensor> fla = TensorsOf(config), kimi;
  const std::map<std::string, std::string> renamed = {{"f_proj.0.", "f_a_proj."},
                                                      {"f_proj.1.", "f_b_proj."},
                                                      {"g_proj.0.", "g_a_proj."},
                                                      {"g_proj.1.", "g_b_proj."}};
  for (TestTensor& tensor : fla) {
    const bool bias = tensor.name.find("g_proj.1.bias") != std::string::npos;
    if (bias) tensor.data = FloatBytes(std::vector<float>(tensor.data.size() / 4));
    if (bias) continue;
    TestTensor copy = tensor;
    for (const auto& [theirs, kimis] : renamed) {
      const size_t at = copy.name.find(theirs);
      if (at != std::string::npos) copy.name.replace(at, theirs.size(), kimis);
    }
    if (copy.name.find("A_log") != std::string::npos) copy.shape = {1, 1, kValueHeads, 1};
    kimi.push_back(copy);
  }
  EXPECT_EQ(LogProbs(config, fla), LogProbs(config, kimi));
  // Without a bias only where Kimi's names are.
  std::erase_if(fla, [](const TestTensor& tensor) {
    return tensor.name == "model.layers.1.attn.g_proj.1.bias";
  });
  EXPECT_THAT(Refusal(config, fla), HasSubstr("1 missing (model.layers.1.attn.g_proj.1.bias)"));
}

TEST(DeltaFiles, AConstantRetentionThatIsStoredIsTheOneThatCounts) {
  const nlohmann::json learned = OsdnGatedDeltaNet("learnable");
  const nlohmann::json constant = OsdnGatedDeltaNet("constant");
  const std::vector<TestTensor> with = TensorsOf(learned), without = TensorsOf(constant);
  EXPECT_EQ(with.size(), without.size() + 2);
  EXPECT_EQ(LogProbs(learned, with), LogProbs(constant, with));
  // logit 0.9, as a file of one value for each query head.
  std::vector<TestTensor> stored = without;
  for (int layer : {0, 1}) {
    stored.push_back({.name = "model.layers." + std::to_string(layer) + ".attn.osgm_gamma_log",
                      .shape = {kHeads},
                      .data = FloatBytes(std::vector<float>(kHeads, std::log(9.0f)))});
  }
  const std::vector<float> a = LogProbs(constant, without), b = LogProbs(constant, stored);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
  EXPECT_NE(a, LogProbs(learned, with));
}

TEST(DeltaFiles, AScaleThatTheConfigTurnsOffIsRefused) {
  nlohmann::json config = OsdnGatedDeltaNet("none");
  const std::vector<TestTensor> tensors = TensorsOf(config);
  config["use_osgm"] = false;
  EXPECT_THAT(Refusal(config, tensors),
              HasSubstr("2 unexpected (model.layers.0.attn.initial_scale"));
  std::vector<TestTensor> plain = TensorsOf(config);
  EXPECT_EQ(plain.size() + 2, tensors.size());
  nlohmann::json gated = Kda();
  gated.erase("lower_bound");
  gated["model_type"] = "gated_deltanet";
  EXPECT_EQ(LogProbs(config, plain), LogProbs(gated, plain));
}

}  // namespace
}  // namespace eddy
