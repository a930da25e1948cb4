// Proves that a checked device lets good layers pass, through joins, chunks, forks and ends of many
// sequences with every type of layer, and that it names a layer whose output or state is wrong.
// With EDDY_TEST_DEVICE=cuda the layers are those of the GPU; EDDY_TEST_MINUTES makes it go on with
// fresh requests for so long.
#include "kernels/checked_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "tests/engine/forwarding_device.h"
#include "tests/engine/mixed_models.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

std::vector<Request> RandomRequests(std::mt19937& random, int count,
                                    const std::shared_ptr<const Checkpoint>& start) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> prompt;
    for (int64_t t = random() % 40 + 1; t > 0; --t) {
      prompt.push_back(static_cast<int32_t>(random() % 60));
    }
    requests.push_back(Greedy(std::move(prompt), static_cast<int>(random() % 24)));
    if (requests.back().max_new_tokens == 0) requests.back().report = {.top = 1};
    requests.back().keep_state = random() % 4 == 0;
    if (start != nullptr && random() % 3 == 0) requests.back().start = start;  // a fork
  }
  return requests;
}

TEST(CheckedDevice, FindsNothingInGoodLayersHoweverSequencesComeAndGo) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const char* const minutes = std::getenv("EDDY_TEST_MINUTES");
  const absl::Time end = absl::Now() + absl::Minutes(minutes == nullptr ? 0 : std::atoi(minutes));
  int64_t answers = 0;
  do {
    for (const Mix& mix : {GptWithKalman(), WindowedAndWhole(), AllDeltas(), AllScans()}) {
      SCOPED_TRACE(mix.name);
      const RandomModel model(mix.config, static_cast<unsigned>(random()));
      const std::unique_ptr<Device> device = MakeCheckedDevice(testing::OpenTestDevice());
      ModelRunner runner(model.path(), {.slots = 5, .rows = 24}, device.get());
      std::shared_ptr<const Checkpoint> start;
      for (int round = 0; round < 2; ++round) {
        for (Answer& answer : runner.Run(RandomRequests(random, 8, start))) {
          ASSERT_TRUE(answer.end.why.ok()) << answer.end.why;
          if (answer.end.state != nullptr) start = answer.end.state;
          ++answers;
        }
      }
    }
  } while (absl::Now() < end);
  EXPECT_GE(answers, 64);
}

// Adds to a row, or to the state, what should not be there.
class SpoilingLayer : public Layer {
 public:
  SpoilingLayer(std::unique_ptr<Layer> real, FieldView state)
      : real_(std::move(real)), state_(state) {}
  void Forward(const Step& step, TensorView x) override {
    real_->Forward(step, x);
    if (state_.base == nullptr) {
      x.as<float>()[0] += 0.01f * static_cast<float>(1 + step.rows);
    } else {
      state_.at<float>(step.slots[0])[0] += 1.0f;
    }
  }

 private:
  const std::unique_ptr<Layer> real_;
  const FieldView state_;
};

class SpoilingDevice : public ForwardingDevice {
 public:
  SpoilingDevice(int layer, bool state)
      : ForwardingDevice(OpenCpuDevice({.threads = 1})), layer_(layer), state_(state) {}
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    std::unique_ptr<Layer> real = ForwardingDevice::Make(type, spec, parts);
    if (made_++ != layer_) return real;
    return std::make_unique<SpoilingLayer>(std::move(real), state_ ? parts.state[0] : FieldView{});
  }

 private:
  const int layer_;
  const bool state_;
  int made_ = 0;
};

absl::Status RunOnce(std::unique_ptr<Device> device) {
  auto loaded = LoadModel({.model_dir = "tests/golden/kaczmarz_a"}, device.get());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  StatePool slots(loaded->capacity.slots);
  PagePool pages(0, 0);
  Scheduler scheduler({.max_rows_per_step = loaded->capacity.max_rows_per_step}, &slots, &pages);
  Request request = Greedy({1, 2, 3}, 5);
  request.id = 1;
  scheduler.Add(std::move(request));
  const absl::Status status = loaded->executor->Run(scheduler.Plan(absl::UnixEpoch())).status();
  scheduler.EndAll(absl::UnavailableError("done"), absl::UnixEpoch());
  return status;
}

TEST(CheckedDevice, NamesTheLayerAndWhatIsWrongInIt) {
  const absl::Status output =
      RunOnce(MakeCheckedDevice(std::make_unique<SpoilingDevice>(2, /*state=*/false)));
  EXPECT_THAT(std::string(output.message()), HasSubstr("block 2 (delta): output differs"));
  const absl::Status state =
      RunOnce(MakeCheckedDevice(std::make_unique<SpoilingDevice>(0, /*state=*/true)));
  EXPECT_THAT(std::string(state.message()), HasSubstr("block 0 (delta): state state of slot"));
}

}  // namespace
}  // namespace eddy
