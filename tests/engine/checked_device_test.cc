// Proves that a checked device lets good layers pass, while sequences of many models join, leave,
// are cancelled and go on from checkpoints, and that it names a layer whose output or state is
// wrong. With EDDY_TEST_DEVICE=cuda the layers are those of the GPU, in both types of weights;
// EDDY_TEST_MINUTES makes it go on with fresh models and requests for so long. Several programs may
// do so side by side; each has a seed of its own, which EDDY_TEST_SEED repeats.
#include "kernels/checked_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/engine/forwarding_device.h"
#include "tests/engine/mixed_models.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

struct Counts {
  int64_t steps = 0, joined = 0, answered = 0, cancelled = 0, forked = 0;
};

// Sequences that come and go at random, with a model and its scheduler to themselves.
class Crowd {
 public:
  // `device` and `random` outlive it.
  Crowd(const std::string& model_dir, Device* device, std::mt19937& random) : random_(random) {
    const int slots = Pick(2, 8);
    auto loaded = LoadModel({.model_dir = model_dir,
                             .max_sequences = slots,
                             .max_rows_per_step = slots + Pick(1, 120),
                             .kv_page_tokens = Pick(3, 16)},
                            device);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) std::abort();
    loaded_ = *std::move(loaded);
    slots_ = std::make_unique<StatePool>(loaded_.capacity.slots);
    pages_ = std::make_unique<PagePool>(loaded_.capacity.page_sizes());
    scheduler_ = std::make_unique<Scheduler>(
        Scheduler::Limits{.max_rows_per_step = loaded_.capacity.max_rows_per_step}, slots_.get(),
        pages_.get());
  }

  // So many steps in which others come, and then what it takes until nobody is left.
  void Run(int steps, Counts* counts) {
    for (int step = 0; step < steps || !scheduler_->idle(); ++step) {
      if (step < steps) ComeAndGo(counts);
      const BatchPlan plan = scheduler_->Plan(absl::UnixEpoch());
      StepResult result;
      if (!plan.empty()) {
        auto run = loaded_.executor->Run(plan);
        ASSERT_TRUE(run.ok()) << run.status();
        result = *std::move(run);
        ++counts->steps;
      }
      for (Event& event : scheduler_->Commit(plan, std::move(result), absl::UnixEpoch())) {
        if (event.end) End(event, counts);
      }
    }
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(slots_->free_slots(), slots_->slots());
    EXPECT_EQ(pages_->free_pages(), pages_->pages());
  }

 private:
  int Pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  void ComeAndGo(Counts* counts) {
    while (live_.size() < 14 && Pick(0, 2) == 0) Join(nullptr, counts);
    if (start_ != nullptr && Pick(0, 5) == 0) {  // two go on from where one was
      for (int i = 0; i < 2; ++i) Join(start_, counts);
      counts->forked += 2;
    }
    if (live_.empty() || Pick(0, 7) != 0) return;
    const auto victim = std::next(live_.begin(), Pick(0, static_cast<int>(live_.size()) - 1));
    victim->second = true;
    scheduler_->Cancel(victim->first, absl::CancelledError("by the test"));
  }
  void Join(const std::shared_ptr<const Checkpoint>& start, Counts* counts) {
    std::vector<int32_t> prompt;
    const int most = Pick(0, 3) == 0 ? 150 : 40;
    for (int t = Pick(start == nullptr ? 1 : 0, most); t > 0; --t) prompt.push_back(Pick(0, 59));
    Request request = Greedy(std::move(prompt), Pick(0, 24));
    request.id = ++last_id_;
    request.start = start;
    if (request.max_new_tokens == 0) request.report = {.top = 1};
    request.sampling.temperature = static_cast<float>(Pick(0, 1));
    request.keep_state = Pick(0, 3) == 0;
    live_[request.id] = false;
    scheduler_->Add(std::move(request));
    ++counts->joined;
  }
  void End(const Event& event, Counts* counts) {
    const auto found = live_.find(event.id);
    ASSERT_NE(found, live_.end()) << "ended twice";
    if (event.end->why.ok()) {
      ++counts->answered;
    } else {
      EXPECT_TRUE(found->second) << event.end->why;
      EXPECT_EQ(event.end->why.code(), absl::StatusCode::kCancelled) << event.end->why;
      ++counts->cancelled;
    }
    live_.erase(found);
    const auto& state = event.end->state;
    // A fork of it must fit the models with the fewest positions.
    if (state != nullptr && state->position < 60) start_ = state;
  }

  std::mt19937& random_;
  LoadedModel loaded_;
  std::unique_ptr<StatePool> slots_;
  std::unique_ptr<PagePool> pages_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<RequestId, bool> live_;  // and whether it was cancelled
  std::shared_ptr<const Checkpoint> start_;
  RequestId last_id_ = 0;
};

unsigned Seed() {
  const char* const given = std::getenv("EDDY_TEST_SEED");
  const unsigned seed = given == nullptr ? std::random_device{}()
                                         : static_cast<unsigned>(std::strtoul(given, nullptr, 10));
  std::printf("EDDY_TEST_SEED=%u\n", seed);
  std::fflush(stdout);
  return seed;
}

// The types in which the device under test can hold matrices.
std::vector<DType> WeightTypes() {
  if (testing::OpenTestDevice()->backend() == "cpu") return {DType::kF32};
  return {DType::kF32, DType::kBF16};
}

TEST(CheckedDevice, FindsNothingInGoodLayersHoweverSequencesComeAndGo) {
  const unsigned seed = Seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const char* const minutes = std::getenv("EDDY_TEST_MINUTES");
  const absl::Time begin = absl::Now();
  const absl::Time end = begin + absl::Minutes(minutes == nullptr ? 0 : std::atof(minutes));
  struct Choice {
    Mix mix;
    DType matrices, states = DType::kF32;
  };
  std::vector<Choice> choices;
  for (DType type : WeightTypes()) {
    for (const Mix& mix : {GptWithKalman(), WindowedAndWhole(), AllDeltas(), AllScans(), Tiles()}) {
      choices.push_back({mix, type});
    }
    choices.push_back({AllDeltas(), type, DType::kBF16});
  }
  Counts counts;
  int models = 0;
  do {
    // All in turn, each time in another order.
    if (models % static_cast<int>(choices.size()) == 0) {
      std::shuffle(choices.begin(), choices.end(), random);
    }
    const auto& [mix, type, states] = choices[static_cast<size_t>(models) % choices.size()];
    SCOPED_TRACE(::testing::Message() << "model " << models << ", " << mix.name
                                      << (type == DType::kBF16 ? " in bfloat16" : " in float")
                                      << (states == DType::kBF16 ? ", states in bfloat16" : ""));
    const RandomModel model(mix.config, static_cast<unsigned>(random()));
    const std::unique_ptr<Device> device = MakeCheckedDevice(testing::OpenTestDevice(type, states));
    Crowd crowd(model.path(), device.get(), random);
    ASSERT_NO_FATAL_FAILURE(crowd.Run(/*steps=*/40, &counts));
    ++models;
  } while (absl::Now() < end || models < static_cast<int>(choices.size()));
  std::printf(
      "%d models, %lld steps in %.0f s: %lld joined, %lld answered, %lld cancelled, %lld "
      "forked\n",
      models, static_cast<long long>(counts.steps), absl::ToDoubleSeconds(absl::Now() - begin),
      static_cast<long long>(counts.joined), static_cast<long long>(counts.answered),
      static_cast<long long>(counts.cancelled), static_cast<long long>(counts.forked));
  EXPECT_EQ(counts.joined, counts.answered + counts.cancelled);
  for (int64_t count : {counts.answered, counts.cancelled, counts.forked}) EXPECT_GT(count, 0);
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
  EXPECT_THAT(std::string(output.message()), HasSubstr("block 2 (delta): output of row 0 differs"));
  const absl::Status state =
      RunOnce(MakeCheckedDevice(std::make_unique<SpoilingDevice>(0, /*state=*/true)));
  EXPECT_THAT(std::string(state.message()), HasSubstr("block 0 (delta): state state of slot"));
}

}  // namespace
}  // namespace eddy
