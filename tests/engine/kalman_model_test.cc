// Proves that Kalman models load and run: the reference package's own model with the states it left
// behind, the same tensors in eddy's native form to the bit, and learned priors; and that configs
// and files which mean something else are refused by name. Options that the reference model leaves
// at their defaults: kalman_options_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/blueprint.h"
#include "kernels/state_layout.h"
#include "tests/engine/config_json.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/kalman_a";

// A field of a checkpoint's record, by name.
std::vector<float> StateOf(const Blueprint& blueprint, const Checkpoint& checkpoint, size_t block,
                           const std::string& name) {
  const StateLayout layout(blueprint.needs);
  const std::vector<Field>& fields = blueprint.needs[block].state;
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].name != name) continue;
    std::vector<float> values(static_cast<size_t>(FieldBytes(fields[f]) / 4));
    std::memcpy(values.data(), checkpoint.record.data() + layout.offset(block, f),
                values.size() * 4);
    return values;
  }
  ADD_FAILURE() << "no state field " << name;
  return {};
}

Blueprint BlueprintOf(const std::string& dir, const Device& device) {
  auto config = ReadModelConfig(dir);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) std::abort();
  return MakeBlueprint(*std::move(config), device.traits());
}

TEST(KalmanModel, LeavesTheStateOfTheReferenceBehind) {
  const GoldenSet set = ReadGoldenSet("kalman_a");
  ASSERT_TRUE(set.found);
  std::map<std::string, std::vector<float>> golden;
  for (const TestTensor& tensor : ReadTensors(set.dir + "/golden.safetensors")) {
    if (tensor.dtype == "F32") golden[tensor.name] = Floats(tensor);
  }
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const Blueprint blueprint = BlueprintOf(set.dir, *device);
  ModelRunner runner(set.dir, {.slots = 2, .rows = 40}, device.get());
  for (size_t row = 0; row < 2; ++row) {
    // The last token of a kept prompt is not fed.
    std::vector<int32_t> prompt = set.input_ids[row];
    prompt.push_back(set.continuation[row][0]);
    const Answer answer = runner.Run({.prompt = prompt, .keep_state = true});
    ASSERT_NE(answer.end.state, nullptr);
    EXPECT_EQ(answer.end.state->position, 257);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string prefix = "final_state." + std::to_string(layer) + ".";
      const auto block = static_cast<size_t>(2 * layer);
      const auto state = [&](const char* name) {
        return StateOf(blueprint, *answer.end.state, block, name);
      };
      const auto compare = [&](const std::vector<float>& ours, const std::string& theirs) {
        const std::vector<float>& all = golden.at(prefix + theirs);
        ASSERT_EQ(all.size(), 2 * ours.size());
        for (size_t i = 0; i < ours.size(); ++i) {
          const double want = all[row * ours.size() + i];
          ASSERT_NEAR(ours[i], want, 2e-3 * (1 + std::abs(want))) << theirs << " " << i;
        }
      };
      compare(state("precision"), "ssm.lam");
      compare(state("information"), "ssm.eta");
      // Ours is [3, M], theirs [M, 3].
      const std::vector<float> conv = state("conv");
      std::vector<float> turned;
      for (size_t m = 0; m < conv.size() / 3; ++m) {
        for (size_t j = 0; j < 3; ++j) turned.push_back(conv[j * conv.size() / 3 + m]);
      }
      compare(turned, "conv");
    }
  }
}

TEST(KalmanConfig, WritesDownTheDefaultsOfThePackage) {
  const auto config = Parse({{"model_type", "kalman_linear_attention"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 50304);
  EXPECT_EQ(config->hidden_size, 512);
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_FALSE(config->tie_embeddings);
  EXPECT_EQ(config->logit_softcap, 0);
  EXPECT_TRUE(config->tokens.eos.empty());
  ASSERT_EQ(config->blocks.size(), 12u);
  const LayerSpec& mixer = config->blocks[0].spec;
  EXPECT_EQ(mixer.Int("channels"), 1024);
  EXPECT_EQ(mixer.Int("state_dim"), 16);
  EXPECT_EQ(mixer.Int("conv_width"), 4);
  EXPECT_EQ(mixer.Word("value"), "full");
  EXPECT_EQ(mixer.Word("noise"), "full");
  EXPECT_EQ(mixer.Real("noise_min"), 1e-4);
  EXPECT_TRUE(mixer.IsNull("noise_max"));
  EXPECT_EQ(mixer.Word("discretization"), "ou");
  EXPECT_EQ(mixer.Word("process_noise"), "floor");
  EXPECT_TRUE(mixer.Flag("qk_norm"));
  EXPECT_EQ(mixer.Word("readout"), "posterior");
  EXPECT_EQ(mixer.Word("gate"), "silu");
  EXPECT_EQ(mixer.Word("skip"), "scalar");
  EXPECT_FALSE(mixer.Flag("bias"));
  EXPECT_EQ(mixer.Word("prior"), "unit");
  EXPECT_EQ(config->blocks[1].spec.type, "swiglu");
  EXPECT_EQ(config->blocks[1].spec.Int("size"), 1365);  // int(2 * 2048 / 3)
}

TEST(KalmanConfig, RefusesWhatItDoesNotKnowByName) {
  struct Fault {
    const char* key;
    json value;
    const char* says;
  };
  const Fault faults[] = {
      {"var_rank", "auto", "var_rank is \"auto\", supported: full, dt"},
      {"value_rank", "auto", "value_rank is \"auto\", supported: full, conv, dt"},
      {"var_rank", 0, "var_rank is 0, must be a whole number from 1"},
      {"value_rank", 2.5, "value_rank is 2.5, must be a whole number from 1"},
      {"process_noise_mode", "log", "unknown key process_noise_mode with value \"log\""},
      {"discretization", "euler", "discretization is \"euler\", supported: ou, zoh"},
      {"mlp", "geglu", "mlp is \"geglu\", supported: swiglu, gelu, none"},
      {"mlp_ratio", 0.001, "mlp_ratio is 0.001, it leaves the MLP no width"},
      {"lambda_skip_mode", "matrix", "supported: scalar, vector"},
      {"obs_var_min", 0, "obs_var_min is 0, must be a number from 1e-12"},
      {"obs_var_max", 1e-5, "obs_var_max is 1e-05, must be at least obs_var_min"},
      {"expand", 0.001, "expand is 0.001, times d_model it must be at least 1"},
      {"conv_kernel_size", 9, "conv_kernel_size is 9, must be a whole number from 1 to 8"},
      {"dt_rank", 0, "dt_rank is 0"},
      {"clip_value", -1, "clip_value is -1"},
  };
  for (const Fault& fault : faults) {
    const auto config =
        Parse({{"model_type", "kalman_linear_attention"}, {fault.key, fault.value}});
    ASSERT_FALSE(config.ok()) << fault.key;
    EXPECT_THAT(config.status().message(), HasSubstr("dir/config.json"));
    EXPECT_THAT(config.status().message(), HasSubstr(fault.says));
  }
}

json NativeConfig(const json& mixer) {
  return {{"model_type", "eddy"},
          {"format", 1},
          {"vocab_size", 256},
          {"hidden_size", 48},
          {"norm_eps", 1e-5},
          {"tokens", {{"bos", 1}, {"eos", {2}}, {"pad", nullptr}}},
          {"tokenizer", nullptr},
          {"layers",
           {{{"repeat", 2}, {"mixer", mixer}, {"mlp", {{"type", "swiglu"}, {"size", 128}}}}}}};
}

TEST(KalmanConfig, ReadsTheNativeMixerWithItsDefaultsAndUnions) {
  const json least = {{"type", "kalman"}, {"channels", 96}, {"state_dim", 8}};
  const auto plain = Parse(NativeConfig(least));
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto foreign = ReadModelConfig(kGolden);
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  EXPECT_EQ(plain->blocks[0].spec.params, foreign->blocks[0].spec.params);

  json full = least;
  full.update({{"value_rank", "conv"}, {"noise_rank", 3}, {"noise_range", {0.01, 5}}, {"clip", 2}});
  const auto changed = Parse(NativeConfig(full));
  ASSERT_TRUE(changed.ok()) << changed.status();
  const LayerSpec& spec = changed->blocks[2].spec;
  EXPECT_EQ(spec.Word("value"), "conv");
  EXPECT_TRUE(spec.IsNull("value_rank"));
  EXPECT_EQ(spec.Word("noise"), "low");
  EXPECT_EQ(spec.Int("noise_rank"), 3);
  EXPECT_EQ(spec.Real("noise_min"), 0.01);
  EXPECT_EQ(spec.Real("noise_max"), 5);
  EXPECT_EQ(spec.Real("clip"), 2);

  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"noise_rank", "conv"},
                                                 {"noise_range", 1},
                                                 {"noise_range", {1}},
                                                 {"noise_range", {nullptr, 1}},
                                                 {"noise_range", {0, 1}},
                                                 {"noise_range", {1, 1e-3}},
                                                 {"state_dim", 0},
                                                 {"prior", "zero"}}) {
    json wrong = least;
    wrong[key] = value;
    const auto refused = Parse(NativeConfig(wrong));
    ASSERT_FALSE(refused.ok()) << key << value;
    EXPECT_THAT(refused.status().message(), HasSubstr(std::string("mixer.") + key));
  }
}

// The native name of one of the package's tensors; empty for the fused one.
std::string NativeName(std::string name) {
  const std::pair<const char*, const char*> parts[] = {{"blocks.", "layers."},
                                                       {"in_proj.", "in."},
                                                       {"sensor_proj.", "sensor."},
                                                       {"out_proj.", "out."},
                                                       {"mixer.delta", "mixer.step_raw"},
                                                       {"lambda_log", "rate_log"},
                                                       {"lambda_skip", "skip"},
                                                       {"w3.", "down."},
                                                       {"norm_f.", "final_norm."},
                                                       {"lm_head.", "head."}};
  for (const auto& [theirs, ours] : parts) {
    const size_t at = name.find(theirs);
    if (at != std::string::npos) name.replace(at, std::string(theirs).size(), ours);
  }
  return name;
}

// kalman_a in eddy's own names.
std::vector<TestTensor> NativeTensors() {
  std::vector<TestTensor> tensors;
  for (TestTensor& tensor : ReadTensors(std::string(kGolden) + "/model.safetensors")) {
    const size_t fused = tensor.name.find("w12.");
    if (fused == std::string::npos) {
      tensor.name = NativeName(tensor.name);
      tensors.push_back(std::move(tensor));
      continue;
    }
    const std::string prefix = NativeName(tensor.name.substr(0, fused));
    const size_t half = tensor.data.size() / 2;
    tensors.push_back({prefix + "gate.weight", "F32", {128, 48}, tensor.data.substr(0, half)});
    tensors.push_back({prefix + "up.weight", "F32", {128, 48}, tensor.data.substr(half)});
  }
  return tensors;
}

void WriteModel(const TempDir& dir, const json& config, const std::vector<TestTensor>& tensors) {
  WriteFile(dir / "config.json", config.dump());
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
}

TEST(KalmanModel, SaysTheSameInTheNativeForm) {
  const GoldenSet set = ReadGoldenSet("kalman_a");
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  TempDir dir;
  WriteModel(dir, NativeConfig({{"type", "kalman"}, {"channels", 96}, {"state_dim", 8}}),
             NativeTensors());
  ModelRunner theirs(set.dir, {.slots = 1, .rows = 64}, device.get());
  ModelRunner ours(dir.path(), {.slots = 1, .rows = 64}, device.get());
  const Answer a = theirs.Run(Score(set.input_ids[0])), b = ours.Run(Score(set.input_ids[0]));
  ASSERT_EQ(a.scored.size(), 256u);
  for (size_t i = 0; i < a.scored.size(); ++i) {
    ASSERT_EQ(a.scored[i].logprob, b.scored[i].logprob) << i;
  }
}

TEST(KalmanModel, StartsFromALearnedPrior) {
  const json config =
      NativeConfig({{"type", "kalman"}, {"channels", 96}, {"state_dim", 8}, {"prior", "learned"}});
  std::vector<TestTensor> tensors = NativeTensors();
  std::vector<float> log_precision(96 * 8), information(96 * 8);
  for (size_t i = 0; i < log_precision.size(); ++i) {
    log_precision[i] = static_cast<float>(i % 7) - 3.0f;
    information[i] = 0.25f * static_cast<float>(i % 5);
  }
  for (const char* layer : {"layers.0.mixer.", "layers.1.mixer."}) {
    const std::string prefix = layer;
    tensors.push_back({prefix + "prior_log_precision", "F32", {96, 8}, FloatBytes(log_precision)});
    tensors.push_back({prefix + "prior_information", "F32", {96, 8}, FloatBytes(information)});
  }
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  TempDir dir;
  WriteModel(dir, config, tensors);
  const Blueprint blueprint = BlueprintOf(dir.path(), *device);
  ModelRunner runner(dir.path(), {.slots = 1, .rows = 8}, device.get());
  // The one token of a kept prompt is not fed: the state is the fresh one.
  const Answer answer = runner.Run({.prompt = {5}, .keep_state = true});
  ASSERT_NE(answer.end.state, nullptr);
  EXPECT_EQ(answer.end.state->position, 0);
  const auto precision = StateOf(blueprint, *answer.end.state, 2, "precision");
  for (size_t i = 0; i < precision.size(); ++i) {
    ASSERT_FLOAT_EQ(precision[i], std::exp(log_precision[i])) << i;
  }
  EXPECT_EQ(StateOf(blueprint, *answer.end.state, 2, "information"), information);

  tensors[tensors.size() - 2].data = FloatBytes({89.0f});
  TempDir infinite;
  WriteModel(infinite, config, tensors);
  const auto refused = LoadModel({.model_dir = infinite.path(), .max_sequences = 1}, device.get());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("prior_log_precision"));
}

TEST(KalmanModel, RefusesFilesOfNewerVersionsOfThePackage) {
  // They store the logarithm of the process noise, and a bias of the noise head.
  std::vector<TestTensor> tensors = ReadTensors(std::string(kGolden) + "/model.safetensors");
  for (TestTensor& tensor : tensors) {
    if (tensor.name == "blocks.1.mixer.process_noise") tensor.name = "blocks.1.mixer.p_log";
  }
  TempDir dir;
  WriteFile(dir / "config.json", ReadFile(std::string(kGolden) + "/config.json"));
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  const auto refused = LoadModel({.model_dir = dir.path(), .max_sequences = 1}, device.get());
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("1 missing (blocks.1.mixer.process_noise)"));
  EXPECT_THAT(refused.status().message(), HasSubstr("1 unexpected (blocks.1.mixer.p_log)"));
}

}  // namespace
}  // namespace eddy
