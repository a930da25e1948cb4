// Proves that recorded steps are steps: with a device that records (the processor, told to), any
// number of sequences gets the tokens and the log-probabilities, to the bit, that it gets from
// steps that are enqueued one by one; what a recorded step cannot do is still done.
#include "engine/recorded_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

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
class RecordingDevice : public Device {
 public:
  explicit RecordingDevice(bool records) : records_(records) {}
  std::string backend() const override { return real_->backend(); }
  std::string description() const override { return real_->description(); }
  DeviceTraits traits() const override {
    DeviceTraits traits = real_->traits();
    traits.records_steps = records_;
    return traits;
  }
  Stream stream() const override { return real_->stream(); }
  int64_t free_bytes() const override { return real_->free_bytes(); }
  Buffer Allocate(int64_t bytes) override { return real_->Allocate(bytes); }
  Buffer AllocateHost(int64_t bytes) override { return real_->AllocateHost(bytes); }
  void Upload(void* to, std::span<const std::byte> from) override { real_->Upload(to, from); }
  void Download(std::span<std::byte> to, const void* from) override { real_->Download(to, from); }
  void Copy(void* to, const void* from, int64_t bytes) override { real_->Copy(to, from, bytes); }
  void Amend(const LayerType& type, const LayerSpec& spec, LayerNeeds* needs) const override {
    real_->Amend(type, spec, needs);
  }
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    return real_->Make(type, spec, parts);
  }
  std::unique_ptr<Ends> MakeEnds(const EndsSpec& spec, const EndsParts& parts,
                                 int max_rows) override {
    return real_->MakeEnds(spec, parts, max_rows);
  }
  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    return std::make_unique<CountedProgram>(real_->Record(work), &runs);
  }
  std::optional<std::string> Finish() override { return real_->Finish(); }

  int runs = 0;

 private:
  const bool records_;
  const std::unique_ptr<Device> real_ = testing::OpenTestDevice();
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
