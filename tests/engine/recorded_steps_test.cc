// Proves that recorded steps are steps: with a device that records (the processor, told to), any
// number of sequences gets the tokens and the log-probabilities, to the bit, that it gets from
// steps that are enqueued one by one; what a recorded step cannot do is still done.
#include "engine/recorded_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/engine/forwarding_device.h"
#include "tests/engine/mixed_models.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

constexpr char kModel[] = "tests/golden/kaczmarz_a";

// Counts what is run again.
class CountedProgram : public Program {
 public:
  CountedProgram(std::unique_ptr<Program> real, int* runs) : real_(std::move(real)), runs_(runs) {}
  void Run() override {
    ++*runs_;
    real_->Run();
  }

 private:
  const std::unique_ptr<Program> real_;
  int* const runs_;
};

// The device under test, which records whatever it is.
class RecordingDevice : public ForwardingDevice {
 public:
  explicit RecordingDevice(bool records)
      : ForwardingDevice(testing::OpenTestDevice()), records_(records) {}
  DeviceTraits traits() const override {
    DeviceTraits traits = ForwardingDevice::traits();
    traits.records_steps = records_;
    return traits;
  }
  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    return std::make_unique<CountedProgram>(ForwardingDevice::Record(work), &runs);
  }

  int runs = 0;

 private:
  const bool records_;
};

std::vector<Request> SomeRequests() {
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    std::vector<int32_t> prompt;
    for (int t = 0; t < 3 + 2 * i; ++t) prompt.push_back((i * 53 + t * 17 + 1) % 60);
    requests.push_back(Greedy(std::move(prompt), 10 + 3 * i));
    // Every other one draws, and penalties look back.
    if (i % 2 == 0) continue;
    requests.back().sampling = {
        .temperature = 0.9f, .top_p = 0.9f, .seed = 5u + i, .repetition_penalty = 1.1f};
    requests.back().report.top = i;
  }
  // Not of the kind that is recorded.
  requests[3].report.uncertainty = true;
  requests[3].max_new_tokens = 4;
  return requests;
}

std::vector<Answer> AnswersOf(const std::string& model, bool records, int* runs) {
  RecordingDevice device(records);
  ModelRunner runner(model, {.slots = 7, .rows = 32}, &device);
  std::vector<Answer> answers = runner.Run(SomeRequests());
  *runs = device.runs;
  EXPECT_EQ(runner.recorded_steps(), device.runs);
  return answers;
}

void ExpectTheSame(const std::string& model) {
  int none = 0, some = 0;
  const std::vector<Answer> eager = AnswersOf(model, false, &none);
  const std::vector<Answer> recorded = AnswersOf(model, true, &some);
  EXPECT_EQ(none, 0);
  EXPECT_GT(some, 15);
  for (size_t i = 0; i < eager.size(); ++i) {
    ASSERT_TRUE(eager[i].end.why.ok()) << eager[i].end.why;
    EXPECT_EQ(eager[i].ids(), recorded[i].ids()) << "request " << i;
    for (size_t t = 0; t < eager[i].tokens.size(); ++t) {
      EXPECT_EQ(eager[i].tokens[t].logprob, recorded[i].tokens[t].logprob)
          << "request " << i << ", token " << t;
    }
  }
}

TEST(RecordedSteps, GiveTheSameBitsAsStepsThatAreEnqueued) { ExpectTheSame(kModel); }

TEST(RecordedSteps, GiveTheSameBitsWithPagesAndEveryTypeOfLayer) {
  for (const Mix& mix : {GptWithKalman(), WindowedAndWhole(), AllDeltas(), AllScans()}) {
    SCOPED_TRACE(mix.name);
    const RandomModel model(mix.config, 3);
    ExpectTheSame(model.path());
  }
}

TEST(RecordedSteps, HaveABucketForEveryNumberUpToTheMost) {
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  for (const int most : {1, 2, 3, 16, 17, 100, 1000, 1024}) {
    int recorded = 0;
    const RecordedSteps steps(
        device.get(), most, [&](int bucket) { EXPECT_LE(bucket, most); }, [&](int) { ++recorded; });
    for (int n = 1; n <= most; ++n) {
      EXPECT_GE(steps.BucketFor(n), n);
      EXPECT_LE(steps.BucketFor(n), std::max(n + 1, 2 * n - 1));
    }
    EXPECT_EQ(steps.BucketFor(most), most);
    EXPECT_EQ(steps.BucketFor(most + 1), 0);
    EXPECT_LE(recorded, 20);
  }
}

}  // namespace
}  // namespace eddy
