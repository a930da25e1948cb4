// How fast a model decodes and reads prompts, without server and clients:
//
//   model_bench --model_dir=DIR --device=cuda --streams=1,64,256,1024 --prompt=131072
//               --positions=1000,1000000
//
// Prints a line for each number of streams, the median time of a step in which each stream gets one
// token, and one for the prompt. Streams start at different positions, as in a server, so that
// their write-back rings are not in phase. Then a line for each position: the same step for 64
// streams that go on from there, which must take equally long wherever that is. They go on from a
// state that says so, since time depends on no number in it; recurrent models alone can do that.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/flags.h"
#include "engine/open_device.h"
#include "tests/engine/forwarding_device.h"
#include "tests/engine/model_runner.h"

namespace eddy {
namespace {

constexpr int kStreamsAtPositions = 64;

struct Options {
  std::string model_dir;
  std::string device = "cuda";
  std::string weight_type = "stored";
  std::string state_type = "float32";
  std::string streams = "1,64,256,1024";
  int prompt = 131072;
  std::string positions = "1000,1000000";
  int rows = 8192;
  int steps = 160;  // ten periods of the write-back ring
};

// Tells how long the host waits for the device, and how long it takes to start a recorded step.
class TimedDevice : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    return std::make_unique<TimedProgram>(ForwardingDevice::Record(work), &starting);
  }
  std::optional<std::string> Finish() override {
    const absl::Time begin = absl::Now();
    std::optional<std::string> error = ForwardingDevice::Finish();
    waiting += absl::Now() - begin;
    return error;
  }
  absl::Duration waiting, starting;

 private:
  class TimedProgram : public Program {
   public:
    TimedProgram(std::unique_ptr<Program> real, absl::Duration* time)
        : real_(std::move(real)), time_(time) {}
    void Run() override {
      const absl::Time begin = absl::Now();
      real_->Run();
      *time_ += absl::Now() - begin;
    }

   private:
    const std::unique_ptr<Program> real_;
    absl::Duration* const time_;
  };
};

std::vector<int32_t> Tokens(int count, int salt, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < count; ++t) {
    tokens.push_back(static_cast<int32_t>((salt * 7919 + t * 104729 + 1) % vocab));
  }
  return tokens;
}

double Median(std::vector<double> values) {
  EDDY_CHECK(!values.empty());
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// Milliseconds between the beginnings of full decoding steps, of streams that go on from `start`,
// the initial state if it is null.
double DecodeStep(ModelRunner* runner, TimedDevice* device, int streams, int steps,
                  std::shared_ptr<const Checkpoint> start = nullptr) {
  std::vector<Request> requests;
  for (int i = 0; i < streams; ++i) {
    requests.push_back(Greedy(Tokens(8 + i % 16, i, runner->info().vocab_size), steps + 64));
    requests.back().report = {};
    requests.back().start = start;
  }
  std::vector<absl::Time> times;
  absl::Duration waited, started;
  runner->ChangePlans([&](BatchPlan* plan) {
    if (plan->single_row_sequences != streams || plan->rows != streams) return;
    if (times.empty()) device->waiting = device->starting = {};
    times.push_back(absl::Now());
    waited = device->waiting;
    started = device->starting;
  });
  for (const Answer& answer : runner->Run(std::move(requests))) EDDY_CHECK(answer.end.why.ok());
  std::vector<double> took;
  for (size_t i = 17; i < times.size(); ++i) {
    took.push_back(absl::ToDoubleMilliseconds(times[i] - times[i - 1]));
  }
  const auto count = static_cast<double>(times.size() - 1);
  const double all = absl::ToDoubleMicroseconds(times.back() - times.front()) / count;
  const double wait = absl::ToDoubleMicroseconds(waited) / count;
  const double enqueue = absl::ToDoubleMicroseconds(started) / count;
  std::printf("host %d: %.1f us a step, of them %.1f waiting, %.1f starting, %.1f else\n", streams,
              all, wait, enqueue, all - wait - enqueue);
  // A period of the ring at a time: the mean of it, since its steps differ.
  std::vector<double> periods;
  for (size_t at = 0; at + 16 <= took.size(); at += 16) {
    double sum = 0;
    for (size_t i = at; i < at + 16; ++i) sum += took[i];
    periods.push_back(sum / 16);
  }
  return Median(periods);
}

// Milliseconds from a prompt to the token after it.
double Prompt(ModelRunner* runner, int tokens) {
  std::vector<double> took;
  runner->ChangePlans({});
  for (int run = 0; run < 4; ++run) {
    Request request = Greedy(Tokens(tokens, run, runner->info().vocab_size), 1);
    const absl::Time begin = absl::Now();
    EDDY_CHECK(runner->Run(std::move(request)).end.why.ok());
    // The first run finds cold caches and clocks.
    if (run > 0) took.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
  }
  return Median(took);
}

// The line of each position: its least time of several turns that take the positions one by one, so
// that what else the machine does meets all.
void DecodeAt(ModelRunner* runner, TimedDevice* device, const std::vector<int>& positions,
              int streams, int steps) {
  Request request = Greedy(Tokens(8, 0, runner->info().vocab_size), 2);
  request.keep_state = true;
  runner->ChangePlans({});
  const Answer answer = runner->Run(std::move(request));
  EDDY_CHECK(answer.end.state != nullptr && answer.end.state->kv.empty());
  std::vector<double> least(positions.size(), 1e9);
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t i = 0; i < positions.size(); ++i) {
      auto start = std::make_shared<Checkpoint>(*answer.end.state);
      start->position = positions[i];
      least[i] = std::min(least[i], DecodeStep(runner, device, streams, steps, start));
    }
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    std::printf("decode %d at %d: %.3f ms a step, %+.2f %% of that at %d\n", streams, positions[i],
                least[i], (least[i] / least[0] - 1) * 100, positions[0]);
  }
}

std::vector<int> Numbers(const std::string& list) {
  std::vector<int> numbers;
  for (const auto text : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    EDDY_CHECK(absl::SimpleAtoi(text, &numbers.emplace_back()));
  }
  return numbers;
}

int Main(int argc, char** argv) {
  Options options;
  FlagSet flags;
  flags.Add("model_dir", &options.model_dir, flag::Text("folder"), "the model");
  flags.Add("device", &options.device, flag::OneOf({"cpu", "cuda"}), "where it runs");
  flags.Add("weight_type", &options.weight_type, flag::OneOf({"stored", "float32", "bfloat16"}),
            "on a GPU");
  flags.Add("state_type", &options.state_type, flag::OneOf({"float32", "bfloat16"}),
            "of delta rules");
  flags.Add("streams", &options.streams, flag::Text("numbers"), "how many decode at once");
  flags.Add("prompt", &options.prompt, flag::Number(0, 1 << 20), "tokens of the prompt; 0: none");
  flags.Add("positions", &options.positions, flag::Text("numbers"),
            "where streams go on; empty for models with attention");
  flags.Add("rows", &options.rows, flag::Number(64, 65536), "tokens per step");
  flags.Add("steps", &options.steps, flag::Number(32, 4096), "decoding steps");
  const FlagSet::Parsed parsed = flags.Parse({argv + 1, argv + argc}, "");
  for (const std::string& fault : parsed.faults) std::fprintf(stderr, "%s\n", fault.c_str());
  if (!parsed.faults.empty()) return 2;
  const std::vector<int> streams = Numbers(options.streams);
  const std::vector<int> positions = Numbers(options.positions);
  DeviceOptions device_options = {
      .matrices = DType::kF32,
      .states = options.state_type == "bfloat16" ? DType::kBF16 : DType::kF32};
  const absl::StatusOr<DType> stored = StoredWeightType(options.model_dir);
  EDDY_CHECK(stored.ok());
  device_options.matrices = options.weight_type == "stored"     ? *stored
                            : options.weight_type == "bfloat16" ? DType::kBF16
                                                                : DType::kF32;
  absl::StatusOr<OpenedDevice> opened = OpenDevice(options.device, device_options);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", std::string(opened.status().message()).c_str());
    return 2;
  }
  std::printf("%s\n", opened->device->description().c_str());
  const int most = streams.empty() ? 1 : *std::max_element(streams.begin(), streams.end());
  TimedDevice device(std::move(opened->device));
  ModelRunner runner(options.model_dir, {.slots = most, .rows = std::max(options.rows, most + 1)},
                     &device);
  std::printf("parameters %.1f M, record %.2f MB\n",
              static_cast<double>(runner.info().parameters) * 1e-6,
              static_cast<double>(runner.info().record_bytes) * 1e-6);
  for (const int count : streams) {
    const double ms = DecodeStep(&runner, &device, count, options.steps);
    std::printf("decode %d: %.3f ms a step, %.0f tokens/s\n", count, ms, count / ms * 1e3);
    std::fflush(stdout);
  }
  if (options.prompt > 0) {
    const double ms = Prompt(&runner, options.prompt);
    std::printf("prompt %d: %.1f ms, %.0f tokens/s\n", options.prompt, ms,
                options.prompt / ms * 1e3);
  }
  if (!positions.empty()) {
    DecodeAt(&runner, &device, positions, std::min(most, kStreamsAtPositions), options.steps);
  }
  return 0;
}

}  // namespace
}  // namespace eddy

int main(int argc, char** argv) { return eddy::Main(argc, argv); }
