// Proves that the configs of published models and of training recipes ask for exactly the tensors
// that such files hold, and that families outside the served set are refused by name. The weights
// are holes in files: headers are all that is looked at. Needs ../shared/configs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/blueprint.h"
#include "tests/engine/model_files.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kConfigs = "../shared/configs";

std::vector<TestTensor> ReadTensorList(const fs::path& path) {
  std::vector<TestTensor> tensors;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);  // the heading
  while (std::getline(in, line)) {
    TestTensor tensor = {line.substr(0, line.find('\t')), "BF16", {}, {}};
    std::istringstream dims(line.substr(line.find('\t') + 1));
    for (std::string dim; std::getline(dims, dim, 'x');) tensor.shape.push_back(std::stoll(dim));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<WeightPlan> Plan(const nlohmann::json& config,
                                const std::vector<TestTensor>& tensors) {
  TempDir dir;
  WriteFile(dir / "config.json", config.dump());
  WriteHollowSafetensors(dir / "model.safetensors", tensors);
  auto read = ReadModelConfig(dir.path());
  if (!read.ok()) return read.status();
  const auto files = TensorFiles::Open(dir.path());
  if (!files.ok()) return files.status();
  FitToFiles(*files, &*read);
  const Blueprint blueprint = MakeBlueprint(*std::move(read), DeviceTraits{});
  return PlanWeights(*files, blueprint.weights, blueprint.config.unused_tensors);
}

TEST(Published, ModelsHaveExactlyTheTensorsThatTheirConfigsAskFor) {
  if (!fs::exists(kConfigs)) GTEST_SKIP() << kConfigs << " is not here";
  const std::set<std::string> served = {"delta_net", "gated_deltanet", "gla", "mamba2",
                                        "osla_delta_net"};
  int served_files = 0, refused_files = 0;
  for (const char* folder : {"published", "recipes"}) {
    for (const auto& entry : fs::directory_iterator(kConfigs / folder)) {
      if (entry.path().extension() != ".json") continue;
      SCOPED_TRACE(entry.path());
      fs::path list = entry.path();
      list.replace_extension(".tensors.tsv");
      std::vector<TestTensor> tensors = ReadTensorList(list);
      nlohmann::json config = nlohmann::json::parse(ReadFile(entry.path()));
      const nlohmann::json type = config.at("model_type");
      auto plan = Plan(config, tensors);
      if (!served.contains(type)) {
        ++refused_files;
        EXPECT_THAT(std::string(plan.status().message()),
                    HasSubstr("model_type is " + type.dump() + ", supported: eddy"));
        continue;
      }
      ++served_files;
      if (type == "osla_delta_net") {
        EXPECT_THAT(std::string(plan.status().message()),
                    HasSubstr("osgm_beta_aware is absent, must be true or false"));
        config["osgm_beta_aware"] = false;
        plan = Plan(config, tensors);
      }
      ASSERT_TRUE(plan.ok()) << plan.status();
      int64_t parameters = 0;
      for (const TestTensor& tensor : tensors) parameters += tensor.bytes() / 2;
      EXPECT_EQ(plan->parameters, parameters);

      const std::string dropped = tensors.back().name;
      tensors.pop_back();
      EXPECT_THAT(std::string(Plan(config, tensors).status().message()),
                  HasSubstr("1 missing (" + dropped + ")"));
    }
  }
  EXPECT_EQ(served_files, 12);
  EXPECT_EQ(refused_files, 1);
}

TEST(Published, FamiliesOutsideTheServedSetAreRefusedByName) {
  if (!fs::exists(kConfigs)) GTEST_SKIP() << kConfigs << " is not here";
  int files = 0;
  for (const auto& entry : fs::directory_iterator(kConfigs / "refuse")) {
    ++files;
    const std::string text = ReadFile(entry.path());
    const std::string type = nlohmann::json::parse(text).at("model_type");
    const auto config = ParseModelConfig(text, entry.path());
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(config.status().message()),
                HasSubstr("model_type is \"" + type + "\", supported: eddy, delta_net"));
  }
  EXPECT_EQ(files, 5);
}

TEST(Published, OldFilesMayHoldTheParametersThatNobodyUses) {
  const auto config = nlohmann::json::parse(ReadFile("tests/golden/gated_deltanet_a/config.json"));
  std::vector<TestTensor> tensors = ReadTensors("tests/golden/gated_deltanet_a/model.safetensors");
  tensors.push_back({"model.layers.1.attn.D", "F32", {2}, {}});
  EXPECT_TRUE(Plan(config, tensors).ok());
  tensors.back().name = "model.layers.2.attn.D";
  EXPECT_THAT(std::string(Plan(config, tensors).status().message()),
              HasSubstr("1 unexpected (model.layers.2.attn.D)"));
}

}  // namespace
}  // namespace eddy
