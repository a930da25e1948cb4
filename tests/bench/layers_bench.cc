// What a token costs by type of layer: prints a Markdown table of tokens per second of generated
// text at one and at 32 streams, through the loader, the scheduler and the executor, on one thread
// of the processor. All models are alike but for their mixers: four layers of width 512, SwiGLU of
// 1376, 8192 tokens, random weights in float32, and mixers of a usual size.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/check.h"
#include "tests/engine/model_runner.h"
#include "tests/engine/random_model.h"

namespace eddy {
namespace {

using nlohmann::json;

constexpr int kVocab = 8192, kWidth = 512, kLayers = 4, kMlp = 1376;
constexpr int kRuns = 5, kStepsPerRun = 12, kWarmUp = 4;
constexpr int kContext = 512;  // of attention, in the middle of what is timed

struct Contestant {
  const char* name;
  json mixer;
};

std::vector<Contestant> Contestants() {
  const json heads = {{"heads", 8}, {"key_dim", 64}, {"value_dim", 64}};
  const auto with = [](json base, const json& more) {
    base.update(more);
    return base;
  };
  const json delta_net =
      with(heads, {{"type", "delta"}, {"decay", "none"}, {"step", "sigmoid"}, {"gate", "none"}});
  const json gdn = with(delta_net, {{"decay", "head"}, {"gate", "silu"}});
  const json kaczmarz = {{"key_norm", "none"}, {"step", "kaczmarz"}, {"step_eps", 1e-6}};
  const json kda = {
      {"decay", "channel"}, {"decay_rank", 64}, {"gate", "sigmoid"}, {"gate_rank", 64}};
  const json scale = {{"gradient", "beta_aware"},
                      {"eta", 1.0},
                      {"normalise", false},
                      {"clip", {0.0, 1e9}},
                      {"retention", "data"}};
  const json channels = {{"channels", 2 * kWidth}, {"state_dim", 16}};
  return {
      {"delta_net", delta_net},
      {"gdn", gdn},
      {"kda", with(gdn, kda)},
      {"kaczmarz", with(gdn, with(kaczmarz, {{"step_bias", true}}))},
      {"osdn (gdn, APF)", with(gdn, {{"scale", scale}})},
      {"kalman", with(channels, {{"type", "kalman"}})},
      {"gla", with(heads, {{"type", "gla"}})},
      {"mamba2", {{"type", "mamba2"}, {"heads", 16}, {"head_dim", 64}, {"state_dim", 128}}},
      {"mamba", with(channels, {{"type", "mamba"}})},
      {"longhorn", with(channels, {{"type", "longhorn"}})},
      {"mlstm", with(heads, {{"type", "mlstm"}})},
      {"attention at 512", {{"type", "attention"}, {"heads", 8}, {"head_dim", 64}}},
  };
}

// Tokens per second, the median of the runs. A run is so many steps in which each stream gets one
// token.
double Measure(ModelRunner* runner, int streams, bool attends) {
  constexpr int kSteps = kWarmUp + kRuns * kStepsPerRun;
  const int prompt = attends ? kContext - kSteps / 2 : 8;
  std::vector<Request> requests;
  for (int i = 0; i < streams; ++i) {
    std::vector<int32_t> tokens;
    for (int t = 0; t < prompt; ++t) tokens.push_back((i * 7919 + t * 31 + 1) % kVocab);
    // Those whose prompts are read first generate until the last one's is.
    requests.push_back(Greedy(std::move(tokens), kSteps + 100));
  }
  std::vector<absl::Time> times;
  runner->ChangePlans([&](BatchPlan* plan) {
    const bool full = plan->single_row_sequences == streams && plan->rows == streams;
    if (full && times.size() <= kSteps) times.push_back(absl::Now());
  });
  for (const Answer& answer : runner->Run(std::move(requests))) EDDY_CHECK(answer.end.why.ok());
  EDDY_CHECK(times.size() > kSteps);
  std::array<double, kRuns> speeds;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = static_cast<size_t>(kWarmUp + run * kStepsPerRun);
    const absl::Duration took = times[begin + kStepsPerRun] - times[begin];
    speeds[static_cast<size_t>(run)] = streams * kStepsPerRun / absl::ToDoubleSeconds(took);
  }
  std::nth_element(speeds.begin(), speeds.begin() + kRuns / 2, speeds.end());
  return speeds[kRuns / 2];
}

void Row(const Contestant& contestant, Device* device) {
  const json mlp = {{"type", "swiglu"}, {"size", kMlp}};
  json config =
      NativeConfig(json::array({{{"mixer", contestant.mixer}, {"mlp", mlp}, {"repeat", kLayers}}}),
                   kVocab, kWidth);
  const bool attends = contestant.mixer["type"] == "attention";
  if (attends) config["max_positions"] = 2 * kContext;
  const RandomModel model(config, 1);
  ModelRunner runner(model.path(), {.slots = 32, .rows = 256, .rows_per_page = 64}, device);
  const ModelInfo& info = runner.info();
  const double one = Measure(&runner, 1, attends), many = Measure(&runner, 32, attends);
  std::printf("| %s | %.1f M | %.1f | %.1f | %lld |\n", contestant.name,
              static_cast<double>(info.parameters) * 1e-6, one, many,
              static_cast<long long>(info.record_bytes + info.kv_bytes_per_token * kContext));
  std::fflush(stdout);
}

}  // namespace
}  // namespace eddy

int main() {
  const std::unique_ptr<eddy::Device> device = eddy::OpenCpuDevice({.threads = 1});
  std::printf("%s\n\n", device->description().c_str());
  std::printf("| layer type | parameters | tokens/s, 1 stream | tokens/s, 32 streams | ");
  std::printf("state bytes per sequence |\n|---|---:|---:|---:|---:|\n");
  for (const eddy::Contestant& contestant : eddy::Contestants())
    eddy::Row(contestant, device.get());
}
