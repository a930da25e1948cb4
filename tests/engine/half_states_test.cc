// Proves what whole models do with states of bfloat16: token by token they are as far from the
// reference programs as rounding the states makes them, and a prompt that is read at once no
// further than with states of float32; they go on from a checkpoint to the bit as often as one
// likes, take less memory for a sequence, and tell such checkpoints from others; and that models
// without a state that can be held so are refused. What they cost in log-probabilities is printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/inspect.h"
#include "engine/model_config.h"
#include "tests/engine/forwarding_device.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A layer whose state is moved at every 16th token by up to 2^-8 of itself, as rounding to bfloat16
// moves it.
class MovedLayer : public Layer {
 public:
  MovedLayer(std::unique_ptr<Layer> real, FieldView state, std::mt19937* random)
      : real_(std::move(real)), state_(state), random_(*random) {}
  void Forward(const Step& step, TensorView x) override {
    real_->Forward(step, x);
    for (int i = 0; i < step.sequences; ++i) {
      if ((step.positions[i] + 1) % 16 == 0) Move(state_.at<float>(step.slots[i]));
    }
  }

 private:
  void Move(float* state) const {
    std::uniform_real_distribution<float> share(-0x1p-8f, 0x1p-8f);
    const int64_t count = state_.shape[0] * state_.shape[1] * state_.shape[2];
    for (int64_t i = 0; i < count; ++i) state[i] *= 1 + share(random_);
  }

  const std::unique_ptr<Layer> real_;
  const FieldView state_;
  std::mt19937& random_;
};

class MovedDevice : public ForwardingDevice {
 public:
  explicit MovedDevice(uint32_t seed)
      : ForwardingDevice(OpenCpuDevice({.threads = 1})), random_(seed) {}
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    std::unique_ptr<Layer> real = ForwardingDevice::Make(type, spec, parts);
    if (spec.type != "delta") return real;
    return std::make_unique<MovedLayer>(std::move(real), parts.state[0], &random_);
  }

 private:
  std::mt19937 random_;
};

class HalfStates : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    set_ = ReadGoldenSet(GetParam());
    if (!set_.found) GTEST_SKIP() << set_.dir << " is not here";
    device_ = testing::OpenTestDevice(DType::kF32, DType::kBF16);
  }

  // Of the log-probabilities of the tokens of both rows, fed one by one, in order of size.
  std::vector<double> Differences(Device* device) const {
    ModelRunner runner(set_.dir, {.slots = 2, .rows = 300}, device);
    runner.ChangePlans([](BatchPlan* plan) {
      for (BatchPlan::Entry& entry : plan->entries) {
        if (entry.rows == 1) continue;
        plan->rows -= entry.rows - 1;
        entry.rows = 1;
        entry.last = false;
      }
      // As if they were decoded.
      plan->single_row_sequences = static_cast<int>(plan->entries.size());
    });
    std::vector<double> differences;
    for (size_t row = 0; row < set_.input_ids.size(); ++row) {
      const Answer answer = runner.Run(Score(set_.input_ids[row]));
      for (size_t i = 0; i < answer.scored.size(); ++i) {
        const auto token = static_cast<size_t>(set_.input_ids[row][i + 1]);
        differences.push_back(std::abs(answer.scored[i].logprob - set_.logprobs[row][i][token]));
      }
    }
    std::sort(differences.begin(), differences.end());
    return differences;
  }

  GoldenSet set_;
  std::unique_ptr<Device> device_;
};

// How much these models, whose weights are random, enlarge what is rounded is measured: the same
// model in float whose states are moved at random where they would be rounded. One draw of it
// against another is within a factor of 1.5 in the median and of 2 in the hundredth-worst token.
TEST_P(HalfStates, AreOffByWhatRoundingThemAtEverySixteenthTokenMakes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  MovedDevice moved(seed);
  const std::vector<double> got = Differences(device_.get()), drawn = Differences(&moved);
  ASSERT_EQ(got.size(), 512u);
  constexpr size_t kMedian = 256, kHigh = 506;
  std::printf(
      "%s: log-probabilities differ by %.1e in the median, %.1e at most; moved %.1e, %.1e\n",
      GetParam(), got[kMedian], got.back(), drawn[kMedian], drawn.back());
  EXPECT_LE(got[kMedian], 2 * drawn[kMedian]);
  EXPECT_LE(got[kHigh], 3 * drawn[kHigh]);
  // Otherwise nothing was rounded, or less.
  EXPECT_GE(got[kMedian], drawn[kMedian] / 4);
}

// A prompt that one step reads meets no rounding before its end.
TEST_P(HalfStates, ChangeNothingInAPromptThatIsReadAtOnce) {
  ModelRunner runner(set_.dir, {.slots = 1, .rows = 300}, device_.get());
  const Answer answer = runner.Run(Score(set_.input_ids[0]));
  ASSERT_EQ(answer.scored.size(), set_.input_ids[0].size() - 1);
  for (size_t i = 0; i < answer.scored.size(); ++i) {
    const auto token = static_cast<size_t>(set_.input_ids[0][i + 1]);
    EXPECT_NEAR(answer.scored[i].logprob, set_.logprobs[0][i][token], 1e-3);
  }
}

// A checkpoint is what the record holds after its flush; so what goes on from it has the same bits
// each time, in any slot.
TEST_P(HalfStates, GoOnFromACheckpointToTheBit) {
  ModelRunner runner(set_.dir, {.slots = 3, .rows = 64}, device_.get());
  const std::vector<int32_t> prompt(set_.input_ids[0].begin(), set_.input_ids[0].begin() + 41);
  Request first = Greedy(prompt, 8);
  first.keep_state = true;
  const Answer half = runner.Run(std::move(first));
  ASSERT_NE(half.end.state, nullptr);
  Request second = Greedy({}, 40);
  second.start = half.end.state;
  const Answer alone = runner.Run(Request(second));
  ASSERT_EQ(alone.tokens.size(), 40u);
  for (const Answer& again : runner.Run(std::vector<Request>{second, second, second})) {
    ASSERT_EQ(again.tokens.size(), 40u);
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(again.tokens[i].token, alone.tokens[i].token);
      EXPECT_EQ(again.tokens[i].logprob, alone.tokens[i].logprob);
    }
  }
}

TEST_P(HalfStates, TakeLessOfACheckpointAndHaveALayoutOfTheirOwn) {
  ModelRunner halves(set_.dir, {.slots = 1, .rows = 64}, device_.get());
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  ModelRunner floats(set_.dir, {.slots = 1, .rows = 64}, device.get());
  EXPECT_EQ(halves.info().state_type, "bfloat16");
  EXPECT_EQ(floats.info().state_type, "float32");
  EXPECT_EQ(halves.info().fingerprint, floats.info().fingerprint);
  EXPECT_NE(halves.info().layout_fingerprint, floats.info().layout_fingerprint);
  const auto kept = [&](ModelRunner& runner) {
    return runner.Run({.prompt = {5, 6, 7}, .keep_state = true}).end.state;
  };
  const auto half = kept(halves), whole = kept(floats);
  EXPECT_LT(half->record.size(), whole->record.size());
  EXPECT_NE(half->model_hash, whole->model_hash);
}

INSTANTIATE_TEST_SUITE_P(Sets, HalfStates,
                         ::testing::Values("delta_net_a", "gated_deltanet_a",
                                           "gated_deltanet_hybrid_a", "kaczmarz_a", "kda_a",
                                           "osdn_delta_net_a", "osdn_gated_deltanet_a",
                                           "osdn_kda_a"),
                         [](const auto& set) { return std::string(set.param); });

TEST(HalfStatesOfOthers, AreRefusedWithFlagValueAndModelType) {
  const std::unique_ptr<Device> device = testing::OpenTestDevice(DType::kF32, DType::kBF16);
  for (const char* set : {"gla_a", "mamba2_a", "longhorn_a", "kalman_a"}) {
    const std::string dir = ReadGoldenSet(set).dir;
    const auto config = ReadModelConfig(dir);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto wanted = AllOf(HasSubstr("--state_type=bfloat16"), HasSubstr(config->model_type),
                              HasSubstr("float32"));
    const auto loaded = LoadModel({.model_dir = dir}, device.get());
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument) << set;
    EXPECT_THAT(std::string(loaded.status().message()), wanted);
    const Inspection found = Inspect({.load = {.model_dir = dir}, .states = DType::kBF16});
    ASSERT_EQ(found.problems.size(), 1u);
    EXPECT_THAT(found.problems[0], wanted);
  }
}

}  // namespace
}  // namespace eddy
