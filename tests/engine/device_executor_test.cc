// Proves what the executor and the loader do around a model: numbers that are lost are found by
// layer and field, parameters that bar every token end their request and no other, slots start from
// the model's initial values, learned ones too, freed slots are poisoned, nothing is allocated
// while running, a native file is the same model, and the fingerprints follow what they should.
#include "engine/device_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/blueprint.h"
#include "kernels/bf16.h"
#include "kernels/state_layout.h"
#include "tests/engine/model_runner.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "tests/golden/kaczmarz_a";

// The CPU, which counts what is allocated and says how much memory is free.
class WatchedDevice : public Device {
 public:
  std::string backend() const override { return real_->backend(); }
  std::string description() const override { return real_->description(); }
  DeviceTraits traits() const override { return real_->traits(); }
  int64_t free_bytes() const override { return free_bytes_; }
  Buffer Allocate(int64_t bytes) override {
    ++allocations;
    allocated_bytes += bytes;
    return real_->Allocate(bytes);
  }
  Buffer AllocateHost(int64_t bytes) override {
    ++allocations;
    return real_->AllocateHost(bytes);
  }
  void Upload(void* to, std::span<const std::byte> from) override { real_->Upload(to, from); }
  void Download(std::span<std::byte> to, const void* from) override { real_->Download(to, from); }
  void Copy(void* to, const void* from, int64_t bytes) override { real_->Copy(to, from, bytes); }
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    return makes_layers ? real_->Make(type, spec, parts) : nullptr;
  }
  std::unique_ptr<Ends> MakeEnds(const EndsSpec& spec, const EndsParts& parts,
                                 int max_rows) override {
    return real_->MakeEnds(spec, parts, max_rows);
  }
  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    return real_->Record(work);
  }
  std::optional<std::string> Finish() override { return std::exchange(error, std::nullopt); }

  int allocations = 0;
  int64_t allocated_bytes = 0;
  int64_t free_bytes_ = int64_t{1} << 30;
  bool makes_layers = true;
  std::optional<std::string> error;

 private:
  std::unique_ptr<Device> real_ = OpenCpuDevice({.threads = 1});
};

std::vector<int32_t> Prompt(int n) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < n; ++i) prompt.push_back((37 * i + 11) % 256);
  return prompt;
}

TEST(DeviceExecutor, FindsTheFieldInWhichTheNumbersWereLost) {
  WatchedDevice device;
  ModelRunner runner(kModel, {}, &device);
  const Answer good = runner.Run({.prompt = Prompt(30), .keep_state = true});
  const Blueprint blueprint = MakeBlueprint(*ReadModelConfig(kModel), device.traits());
  const StateLayout layout(blueprint.needs);
  // Block 2 is the second mixer; field 2 of a delta layer is the history of its keys.
  auto spoilt = std::make_shared<Checkpoint>(*good.end.state);
  const float nan = NAN;
  std::memcpy(spoilt->record.data() + layout.offset(2, 2), &nan, 4);
  Request victim = Greedy({}, 5);
  victim.start = spoilt;
  Request neighbour = Greedy({}, 5);
  neighbour.start = good.end.state;
  const std::vector<Answer> answers = runner.Run(std::vector<Request>{victim, neighbour});
  EXPECT_EQ(answers[0].end.why.code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(answers[0].end.not_finite.has_value());
  EXPECT_EQ(answers[0].end.not_finite->layer, 2);
  EXPECT_EQ(answers[0].end.not_finite->field, "state");  // the first field that it reached
  EXPECT_EQ(answers[0].end.not_finite->position, 29);
  EXPECT_TRUE(answers[0].tokens.empty());
  EXPECT_TRUE(answers[1].end.why.ok());
  EXPECT_EQ(answers[1].tokens.size(), 5u);
  // Whoever gets the slot next is none the worse.
  EXPECT_EQ(runner.Run(std::move(neighbour)).ids(), answers[1].ids());
}

TEST(DeviceExecutor, EndsOnlyTheRequestWhoseParametersBarEveryToken) {
  WatchedDevice device;
  ModelRunner runner(kModel, {}, &device);
  Request barred = Greedy(Prompt(3), 5);
  barred.sampling.allowed = {7};
  barred.sampling.banned = {7};
  const std::vector<Answer> answers =
      runner.Run(std::vector<Request>{barred, Greedy(Prompt(3), 5)});
  EXPECT_EQ(answers[0].end.why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answers[0].end.why.message()), HasSubstr("leave no token to generate"));
  EXPECT_TRUE(answers[1].end.why.ok());
  EXPECT_EQ(answers[1].tokens.size(), 5u);
}

TEST(DeviceExecutor, ReportsAnErrorOfTheDevice) {
  WatchedDevice device;
  auto loaded = LoadModel({.model_dir = kModel}, &device);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  StatePool slots(loaded->capacity.slots);
  PagePool pages(0, 0);
  Scheduler scheduler({.max_rows_per_step = loaded->capacity.max_rows_per_step}, &slots, &pages);
  Request request = Greedy(Prompt(3), 5);
  request.id = 1;
  scheduler.Add(std::move(request));
  const BatchPlan plan = scheduler.Plan(absl::UnixEpoch());
  device.error = "the device has burnt down";
  const auto result = loaded->executor->Run(plan);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("burnt down"));
  scheduler.EndAll(absl::UnavailableError("lost"), absl::UnixEpoch());
}

TEST(DeviceExecutor, AllocatesNothingWhileItRuns) {
  WatchedDevice device;
  ModelRunner runner(kModel, {.slots = 3, .rows = 16}, &device);
  const int before = device.allocations;
  Request kept = Greedy(Prompt(50), 10);
  kept.keep_state = true;
  kept.report.uncertainty = kept.report.state_stats = true;
  runner.Run(std::vector<Request>{Score(Prompt(200)), kept, Greedy(Prompt(20), 20), kept});
  EXPECT_EQ(device.allocations, before);
}

TEST(DeviceExecutor, DrawsTheSameTokensInAnyCompany) {
  WatchedDevice device;
  ModelRunner runner(kModel, {.slots = 6, .rows = 32}, &device);
  Request drawn = Greedy(Prompt(20), 25);
  drawn.sampling = {.temperature = 1, .seed = 42};
  const Answer alone = runner.Run(drawn);
  std::vector<Request> crowd(5, Greedy(Prompt(90), 40));
  crowd.insert(crowd.begin() + 2, drawn);
  const std::vector<Answer> answers = runner.Run(std::move(crowd));
  EXPECT_EQ(answers[2].ids(), alone.ids());
  for (size_t i = 0; i < alone.tokens.size(); ++i) {
    EXPECT_NEAR(answers[2].tokens[i].logprob, alone.tokens[i].logprob, 1e-4);
  }
}

// The golden model in eddy's own form, with a learned initial state.
class NativeModel {
 public:
  explicit NativeModel(bool learned) {
    nlohmann::json mixer = {{"type", "delta"},    {"heads", 2},         {"key_dim", 24},
                            {"value_dim", 48},    {"decay", "head"},    {"gate", "silu"},
                            {"key_norm", "none"}, {"step", "kaczmarz"}, {"step_eps", 1e-6},
                            {"step_bias", true}};
    if (learned) mixer["initial_state"] = "learned";
    const nlohmann::json config = {
        {"model_type", "eddy"},
        {"format", 1},
        {"vocab_size", 256},
        {"hidden_size", 64},
        {"norm_eps", 1e-6},
        {"tokens", {{"bos", 1}, {"eos", {2}}, {"pad", nullptr}}},
        {"tokenizer", {{"kind", "bytes"}}},
        {"layers",
         {{{"repeat", 2}, {"mixer", mixer}, {"mlp", {{"type", "swiglu"}, {"size", 256}}}}}}};
    WriteFile(dir_ / "config.json", config.dump());
    const DeviceTraits traits;
    const Blueprint foreign = MakeBlueprint(*ReadModelConfig(kModel), traits);
    const Blueprint native = MakeBlueprint(*ReadModelConfig(dir_.path()), traits);
    std::map<std::string, TestTensor> stored;
    for (TestTensor& tensor : ReadTensors(std::string(kModel) + "/model.safetensors")) {
      stored[tensor.name] = tensor;
    }
    std::vector<TestTensor> tensors;
    for (size_t group = 0; group < native.weights.size(); ++group) {
      for (const Field& field : native.weights[group].fields) {
        const auto name = [&](const WeightGroup& of) {
          const NameRule* rule = RuleFor(of.names, field.name);
          return rule->theirs + field.name.substr(rule->ours.size());
        };
        TestTensor tensor =
            field.name == "state_init" ? InitialState() : stored[name(foreign.weights[group])];
        // Natively a convolution has two dimensions.
        if (tensor.shape.size() == 3 && tensor.shape[1] == 1)
          tensor.shape.erase(tensor.shape.begin() + 1);
        tensor.name = name(native.weights[group]);
        tensors.push_back(std::move(tensor));
      }
    }
    WriteFile(dir_ / "model.safetensors", SafetensorsBytes(tensors));
  }
  std::string path() const { return dir_.path(); }
  // Of each layer.
  static std::vector<float> Initial() {
    std::vector<float> values;
    for (int i = 0; i < 2 * 24 * 48; ++i) values.push_back(0.01f * static_cast<float>(i % 100));
    return values;
  }

 private:
  static TestTensor InitialState() { return {"", "F32", {2, 24, 48}, FloatBytes(Initial())}; }

  TempDir dir_;
};

TEST(DeviceExecutor, TakesANativeFileForTheModelItIs) {
  const NativeModel native(/*learned=*/false);
  WatchedDevice device;
  ModelRunner ours(native.path(), {}, &device);
  ModelRunner theirs(kModel, {}, &device);
  const Answer a = ours.Run(Score(Prompt(100)));
  const Answer b = theirs.Run(Score(Prompt(100)));
  ASSERT_EQ(a.scored.size(), 99u);
  for (size_t i = 0; i < 99; ++i) EXPECT_EQ(a.scored[i].logprob, b.scored[i].logprob);
  EXPECT_EQ(ours.info().tokenizer_kind, "bytes");
  EXPECT_EQ(ours.info().layout_fingerprint, theirs.info().layout_fingerprint);
  EXPECT_NE(ours.info().fingerprint, theirs.info().fingerprint);
}

TEST(DeviceExecutor, StartsEverySlotFromTheModelsInitialState) {
  const NativeModel native(/*learned=*/true);
  WatchedDevice device;
  ModelRunner runner(native.path(), {.slots = 1, .rows = 8}, &device);
  const Blueprint blueprint = MakeBlueprint(*ReadModelConfig(native.path()), device.traits());
  const StateLayout layout(blueprint.needs);
  for (int i = 0; i < 2; ++i) {
    // One token that is kept and not fed: what comes back is a slot just filled.
    const Answer fresh = runner.Run({.prompt = {5}, .keep_state = true});
    ASSERT_EQ(fresh.end.state->record.size(), static_cast<size_t>(layout.persistent_bytes()));
    for (size_t block : {0, 2}) {
      std::vector<float> state(2 * 24 * 48);
      std::memcpy(state.data(), fresh.end.state->record.data() + layout.offset(block, 0),
                  state.size() * 4);
      EXPECT_EQ(state, NativeModel::Initial());
    }
    runner.Run(Greedy(Prompt(20), 5));  // leaves the only slot changed
  }
}

TEST(DeviceExecutor, StartsEverySlotFromTheInitialStateAsItsTypeHoldsIt) {
  const NativeModel native(/*learned=*/true);
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1, .states = DType::kBF16});
  ModelRunner runner(native.path(), {.slots = 1, .rows = 8}, device.get());
  const Blueprint blueprint = MakeBlueprint(*ReadModelConfig(native.path()), device->traits());
  const StateLayout layout(blueprint.needs);
  const Answer fresh = runner.Run({.prompt = {5}, .keep_state = true});
  ASSERT_EQ(fresh.end.state->record.size(), static_cast<size_t>(layout.persistent_bytes()));
  for (size_t block : {0, 2}) {
    std::vector<uint16_t> state(2 * 24 * 48), expected(state.size());
    std::memcpy(state.data(), fresh.end.state->record.data() + layout.offset(block, 0),
                state.size() * 2);
    ToBF16(NativeModel::Initial().data(), std::ssize(expected), expected.data());
    EXPECT_EQ(state, expected);
  }
}

TEST(LoadModel, SaysWhatTheModelIs) {
  WatchedDevice device;
  const auto loaded = LoadModel({.model_dir = kModel}, &device);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->info.model_type, "kaczmarz_gated_deltanet");
  EXPECT_EQ(loaded->info.vocab_size, 256);
  EXPECT_EQ(loaded->info.hidden_size, 64);
  EXPECT_EQ(loaded->info.layers, (std::vector<std::pair<std::string, int>>{{"delta", 2}}));
  EXPECT_EQ(loaded->info.weight_type, "float32");
  EXPECT_EQ(loaded->info.eos_tokens, std::vector<int32_t>{2});
  int64_t parameters = 0;
  for (const TestTensor& tensor : ReadTensors(std::string(kModel) + "/model.safetensors")) {
    parameters += tensor.bytes() / 4;
  }
  EXPECT_EQ(loaded->info.parameters, parameters);
  EXPECT_EQ(loaded->capacity.slots, 16);
  // What was announced is what was taken, up to alignment and the fresh record.
  EXPECT_LE(device.allocated_bytes, loaded->capacity.weight_bytes + loaded->capacity.state_bytes +
                                        loaded->capacity.workspace_bytes);
  EXPECT_GE(device.allocated_bytes, loaded->capacity.weight_bytes + loaded->capacity.state_bytes);
}

TEST(LoadModel, GivesEqualFingerprintsToEqualModels) {
  WatchedDevice device;
  TempDir dir;
  const auto fingerprint = [&](const std::string& path) {
    auto loaded = LoadModel({.model_dir = path}, &device);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded->info.fingerprint;
  };
  const std::string config = ReadFile(std::string(kModel) + "/config.json");
  std::vector<TestTensor> tensors = ReadTensors(std::string(kModel) + "/model.safetensors");
  std::reverse(tensors.begin(), tensors.end());
  WriteFile(dir / "config.json", nlohmann::json::parse(config).dump(3));
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
  const auto original = fingerprint(kModel);
  EXPECT_EQ(fingerprint(dir.path()), original);
  tensors[3].data[0] = static_cast<char>(tensors[3].data[0] ^ 1);
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
  EXPECT_NE(fingerprint(dir.path()), original);
}

TEST(LoadModel, RefusesBeforeItReadsWeights) {
  WatchedDevice device;
  device.free_bytes_ = 100000;
  auto loaded = LoadModel({.model_dir = kModel}, &device);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("the model does not fit: weights"));
  device.free_bytes_ = 1 << 30;
  loaded = LoadModel({.model_dir = kModel, .max_sequences = 64, .max_rows_per_step = 64}, &device);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  loaded = LoadModel({.model_dir = "tests/golden"}, &device);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("tests/golden/config.json"));
  EXPECT_EQ(device.allocations, 0);
}

TEST(LoadModel, RefusesALayerThatTheBackEndDoesNotHave) {
  WatchedDevice device;
  device.makes_layers = false;
  const auto loaded = LoadModel({.model_dir = kModel}, &device);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(loaded.status().message()),
              HasSubstr("the back end cpu has no version of the layer type delta"));
}

}  // namespace
}  // namespace eddy
