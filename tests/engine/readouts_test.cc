// Proves that what the layers tell of a token reaches its report, and no other: against the float64
// references of the layers, one after another, for a model of both kinds read in chunks and in
// company; against the records that golden models leave behind; and that asking changes no bit. The
// figures of a state equal those of the record that a checkpoint keeps of it.
#include "engine/readouts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "engine/blueprint.h"
#include "kernels/state_layout.h"
#include "tests/engine/model_runner.h"
#include "tests/engine/random_model.h"
#include "tests/kernels/delta_reference.h"
#include "tests/kernels/kalman_reference.h"
#include "tests/testing/test_device.h"

namespace eddy {
namespace {

using testing::Trace;

std::vector<int32_t> Prompt(size_t n, std::mt19937& random) {
  std::vector<int32_t> prompt(n);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 64);
  return prompt;
}

// Two Kalman layers around a delta layer, without MLPs.
nlohmann::json Mixed() {
  const nlohmann::json kalman = {{"type", "kalman"}, {"channels", 24}, {"state_dim", 5}};
  const nlohmann::json delta = {{"type", "delta"},    {"heads", 2},        {"value_heads", 4},
                                {"key_dim", 8},       {"value_dim", 12},   {"decay", "head"},
                                {"step", "kaczmarz"}, {"step_eps", 1e-6},  {"gate", "silu"},
                                {"key_norm", "none"}, {"query_norm", "l2"}};
  const auto layer = [](const nlohmann::json& mixer) {
    return nlohmann::json{{"mixer", mixer}, {"mlp", nullptr}};
  };
  return NativeConfig({layer(kalman), layer(delta), layer(kalman)});
}

// The weights of a layer under the names that it calls them by, and those of the ends.
testing::Weights WeightsOf(const std::string& dir, const std::string& prefix) {
  testing::Weights weights;
  for (const TestTensor& tensor : ReadTensors(dir + "/model.safetensors")) {
    if (tensor.name.rfind(prefix, 0) != 0) continue;
    std::string name = tensor.name.substr(prefix.size());
    if (name.front() == '.' || name.front() == '_') name.erase(0, 1);
    weights[name] = Floats(tensor);
  }
  return weights;
}

// What each layer of a model without MLPs says of `tokens`, in float64.
std::vector<Trace> ReferenceOf(const std::string& dir, const std::vector<int32_t>& tokens) {
  const ModelConfig config = *ReadModelConfig(dir);
  const auto width = static_cast<size_t>(config.hidden_size);
  const std::vector<float> embedding = WeightsOf(dir, "embedding").at("weight");
  std::vector<float> x;
  for (const int32_t token : tokens) {
    const auto row = embedding.begin() + static_cast<std::ptrdiff_t>(token * config.hidden_size);
    x.insert(x.end(), row, row + static_cast<std::ptrdiff_t>(width));
  }
  std::vector<Trace> traces;
  for (size_t i = 0; i < config.blocks.size(); ++i) {
    const LayerSpec& spec = config.blocks[i].spec;
    const testing::Weights weights = WeightsOf(dir, "layers." + std::to_string(i) + ".mixer");
    if (spec.type == "delta") {
      traces.push_back(testing::DeltaReference(spec, weights, x, std::ssize(tokens)));
    } else {
      Weights64 exact;
      for (const auto& [name, values] : weights) exact[name] = {values.begin(), values.end()};
      traces.push_back(KalmanLayerReference(spec, exact, {x.begin(), x.end()}));
    }
    x.assign(traces.back().out.begin(), traces.back().out.end());
  }
  return traces;
}

void ExpectNear(float got, double want, const char* what) {
  EXPECT_NEAR(got, want, 1e-3 * (1 + std::abs(want))) << what;
}

// `row`: of the token that the reported one follows.
void ExpectReport(const TokenReport& report, const std::vector<Trace>& traces, size_t row) {
  ASSERT_TRUE(report.kalman.has_value() && report.delta.has_value());
  const auto of = [&](size_t layer, Readout readout) {
    return traces[layer].readouts.at(readout)[row];
  };
  const auto mean = [&](Readout readout) { return (of(0, readout) + of(2, readout)) / 2; };
  ExpectNear(report.kalman->precision, mean(Readout::kPrecision), "precision");
  ExpectNear(report.kalman->least_precision,
             std::min(of(0, Readout::kLeastPrecision), of(2, Readout::kLeastPrecision)), "least");
  ExpectNear(report.kalman->deviation, mean(Readout::kDeviation), "deviation");
  ExpectNear(report.kalman->surprise, mean(Readout::kSurprise), "surprise");
  ExpectNear(report.kalman->information, mean(Readout::kInformation), "information");
  ExpectNear(report.kalman->spread, mean(Readout::kSpread), "spread");
  ExpectNear(report.delta->residual, of(1, Readout::kResidual), "residual");
  ExpectNear(report.delta->contraction, of(1, Readout::kContraction), "contraction");
  ExpectNear(report.delta->decay, of(1, Readout::kDecay), "decay");
}

TEST(Readouts, AreThoseOfTheReferencesForTheTokenThatAReportFollows) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const RandomModel model(Mixed(), seed);
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  ModelRunner runner(model.path(), {.slots = 3, .rows = 17}, device.get());
  EXPECT_TRUE(runner.info().kalman_readouts);

  Request scored = Score(Prompt(50, random));
  scored.report.uncertainty = true;
  Request generated = Greedy(Prompt(9, random), 12);
  generated.report.uncertainty = true;
  const Request silent = Greedy(Prompt(30, random), 20);
  const std::vector<Answer> answers =
      runner.Run(std::vector<Request>{silent, generated, scored, silent});

  std::vector<Trace> traces = ReferenceOf(model.path(), scored.prompt);
  ASSERT_EQ(answers[2].scored.size(), 49u);
  for (size_t i = 0; i < 49; ++i) ExpectReport(answers[2].scored[i], traces, i);

  std::vector<int32_t> tokens = generated.prompt;
  for (const int32_t token : answers[1].ids()) tokens.push_back(token);
  traces = ReferenceOf(model.path(), tokens);
  ASSERT_EQ(answers[1].tokens.size(), 12u);
  for (size_t i = 0; i < 12; ++i) ExpectReport(answers[1].tokens[i], traces, 8 + i);

  for (const Answer* other : {&answers[0], &answers[3]}) {
    for (const TokenReport& report : other->tokens) {
      EXPECT_FALSE(report.kalman.has_value() || report.delta.has_value());
    }
  }
}

TEST(Readouts, ChangeNoBitOfWhatGoldenModelsSay) {
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(1);
  for (const char* set : {"kalman_a", "kaczmarz_a", "gla_a"}) {
    SCOPED_TRACE(set);
    ModelRunner runner(std::string("tests/golden/") + set, {.slots = 1, .rows = 40}, device.get());
    Request request = Score(Prompt(100, random));
    const Answer silent = runner.Run(request);
    request.report.uncertainty = true;
    const Answer asked = runner.Run(request);
    ASSERT_EQ(asked.scored.size(), 99u);
    for (size_t i = 0; i < 99; ++i) {
      EXPECT_EQ(asked.scored[i].logprob, silent.scored[i].logprob);
      EXPECT_EQ(asked.scored[i].kalman.has_value(), std::string(set) == "kalman_a");
      EXPECT_EQ(asked.scored[i].delta.has_value(), std::string(set) == "kaczmarz_a");
    }
  }
}

// The fields named `name` of a record, each of its layer.
std::vector<std::vector<float>> FieldsOf(const std::string& dir, const Checkpoint& checkpoint,
                                         const std::string& name) {
  const Blueprint blueprint = MakeBlueprint(*ReadModelConfig(dir), DeviceTraits{});
  const StateLayout layout(blueprint.needs);
  std::vector<std::vector<float>> fields;
  for (size_t block = 0; block < blueprint.needs.size(); ++block) {
    const std::vector<Field>& state = blueprint.needs[block].state;
    for (size_t f = 0; f < state.size(); ++f) {
      if (state[f].name != name) continue;
      std::vector<float> values(static_cast<size_t>(FieldBytes(state[f]) / 4));
      std::memcpy(values.data(), checkpoint.record.data() + layout.offset(block, f),
                  values.size() * 4);
      fields.push_back(std::move(values));
    }
  }
  return fields;
}

TEST(Readouts, OfAGoldenKalmanModelAreThoseOfTheStateItLeaves) {
  const std::string dir = "tests/golden/kalman_a";
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  ModelRunner runner(dir, {.slots = 1, .rows = 40}, device.get());
  std::mt19937 random(2);
  Request request = Greedy(Prompt(90, random), 3);
  request.report.uncertainty = true;
  request.keep_state = true;
  const Answer answer = runner.Run(request);
  ASSERT_NE(answer.end.state, nullptr);
  double mean = 0, least = INFINITY;
  const auto layers = FieldsOf(dir, *answer.end.state, "precision");
  ASSERT_EQ(layers.size(), 2u);
  for (const std::vector<float>& lambda : layers) {
    mean += std::accumulate(lambda.begin(), lambda.end(), 0.0) / static_cast<double>(lambda.size());
    least = std::min<double>(least, *std::min_element(lambda.begin(), lambda.end()));
  }
  const KalmanReport& report = *answer.tokens.back().kalman;
  EXPECT_NEAR(report.precision, mean / 2, 1e-5 * mean);
  EXPECT_NEAR(report.least_precision, least, 1e-6 * least);
  EXPECT_GT(report.spread, 0);
  EXPECT_LT(report.spread, 1);
}

TEST(StateStats, AreThoseOfTheRecordThatACheckpointKeeps) {
  const std::unique_ptr<Device> device = testing::OpenTestDevice();
  std::mt19937 random(3);
  for (const char* set : {"kalman_a", "kaczmarz_a"}) {
    SCOPED_TRACE(set);
    const std::string dir = std::string("tests/golden/") + set;
    ModelRunner runner(dir, {.slots = 2, .rows = 40}, device.get());
    Request request = Greedy(Prompt(70, random), 5);
    request.report.state_stats = true;
    Request kept = request;
    kept.keep_state = true;
    const std::vector<Answer> answers = runner.Run(std::vector<Request>{request, kept});
    EXPECT_EQ(answers[0].end.state, nullptr);
    ASSERT_NE(answers[1].end.state, nullptr);
    ASSERT_EQ(answers[0].ids(), answers[1].ids());

    const bool kalman = std::string(set) == "kalman_a";
    for (const Answer& answer : answers) {
      const std::vector<FieldStats>& all = answer.end.state_stats;
      ASSERT_EQ(all.size(), kalman ? 6u : 8u);  // fields of two layers
      for (size_t i = 0; i < all.size(); ++i) {
        const FieldStats& stats = all[i];
        SCOPED_TRACE(stats.field + " of layer " + std::to_string(stats.layer));
        EXPECT_EQ(stats.layer, static_cast<int>(i / (all.size() / 2)));
        EXPECT_EQ(stats.layer_type, kalman ? "kalman" : "delta");
        const std::vector<float> values =
            FieldsOf(dir, *answers[1].end.state, stats.field)[static_cast<size_t>(stats.layer)];
        double sum = 0, squares = 0;
        for (const float value : values) {
          sum += value;
          squares += static_cast<double>(value) * value;
        }
        const auto count = static_cast<double>(values.size());
        const double rms = std::sqrt(squares / count);
        EXPECT_EQ(stats.elements, std::ssize(values));
        EXPECT_EQ(stats.nonfinite, 0);
        // The two ran in one step, so the states are equal up to what company may change.
        EXPECT_NEAR(stats.min, *std::min_element(values.begin(), values.end()), 1e-4 * (1 + rms));
        EXPECT_NEAR(stats.max, *std::max_element(values.begin(), values.end()), 1e-4 * (1 + rms));
        EXPECT_NEAR(stats.mean, sum / count, 1e-4 * (1 + rms));
        EXPECT_NEAR(stats.rms, rms, 1e-4 * (1 + rms));
      }
    }
  }
}

}  // namespace
}  // namespace eddy
