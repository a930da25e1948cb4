// Model folders in eddy's own form with random weights, for tests of what no golden set holds.
#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/blueprint.h"
#include "tests/engine/model_files.h"

namespace eddy {

// `layers` as in config.json.
inline nlohmann::json NativeConfig(nlohmann::json layers, int vocab_size = 64,
                                   int hidden_size = 32) {
  return {{"model_type", "eddy"},
          {"format", 1},
          {"vocab_size", vocab_size},
          {"hidden_size", hidden_size},
          {"norm_eps", 1e-6},
          {"tokens", {{"bos", nullptr}, {"eos", nullptr}, {"pad", nullptr}}},
          {"tokenizer", nullptr},
          {"layers", std::move(layers)}};
}

class RandomModel {
 public:
  using Change = std::function<void(TestTensor*)>;
  // `change` is called with each tensor before it is written.
  RandomModel(const nlohmann::json& config, unsigned seed, const Change& change = {}) {
    WriteFile(dir_ / "config.json", config.dump());
    auto read = ReadModelConfig(dir_.path());
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) std::abort();
    std::mt19937 random(seed);
    std::vector<TestTensor> tensors;
    for (const WeightGroup& group : MakeBlueprint(*std::move(read), DeviceTraits{}).weights) {
      for (const Field& field : group.fields) {
        tensors.push_back(Tensor(group, field, random));
        if (change) change(&tensors.back());
      }
    }
    WriteFile(dir_ / "model.safetensors", SafetensorsBytes(tensors));
  }
  std::string path() const { return dir_.path(); }

 private:
  static TestTensor Tensor(const WeightGroup& group, const Field& field, std::mt19937& random) {
    const NameRule* const rule = RuleFor(group.names, field.name);
    TestTensor tensor = {.name = rule->theirs + field.name.substr(rule->ours.size())};
    size_t dims = 4;
    while (dims > 1 && field.shape[dims - 1] == 1) --dims;
    tensor.shape.assign(field.shape.begin(), field.shape.begin() + static_cast<ptrdiff_t>(dims));
    const bool norm = field.name.find("norm") != std::string::npos;
    const auto fan_in = static_cast<float>(dims > 1 ? field.shape[1] : 1);
    std::normal_distribution<float> normal(norm ? 1.0f : 0.0f,
                                           norm ? 0.1f : 1.5f / std::sqrt(fan_in));
    std::vector<float> values(static_cast<size_t>(tensor.bytes() / 4));
    for (float& value : values) value = normal(random);
    // Step "kaczmarz_learned" divides by its softplus: below a half the steps overshoot, and the
    // memory grows without bound.
    if (field.name == "step_scale_raw") {
      for (float& value : values) value = std::abs(value);
    }
    tensor.data = FloatBytes(values);
    return tensor;
  }

  TempDir dir_;
};

}  // namespace eddy
