// Proves that layer "delta" on the GPU is the twin of its CPU version, in random options and shapes
// and with random company: several sequences are fed on both devices in the same steps, of decoding
// and other rows and padding mixed; outputs and flushed records must agree. With float weights as
// closely as float rounding lets two orders of summation; with bfloat16 within a bound derived
// below. And that a decoding row has the same bits whatever its company is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device_cuda.h"
#include "kernels/layers/delta/delta.h"
#include "tests/kernels/cuda/delta_layer_plans.h"
#include "tests/kernels/delta_reference.h"
#include "tests/testing/layer_conformance.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using testing::DeltaTestSpec;
using testing::LayerRig;
using testing::Params;
using testing::Weights;

// How the device holds matrices and states.
struct Types {
  DType matrices, states;
};

class DeltaLayerOnCuda : public ::testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    std::string why_not;
    const auto& [matrices, states] = GetParam();
    cuda_ = MakeCudaDevice({.matrices = matrices, .states = states}, &why_not);
    if (cuda_ == nullptr) GTEST_SKIP() << why_not;
    cpu_ = OpenCpuDevice({.threads = 1, .states = states});
  }
  std::unique_ptr<Device> cuda_, cpu_;
};

// Weights that the type of matrices can hold.
Weights WeightsFor(const LayerSpec& spec, DType matrices, uint32_t seed) {
  Weights weights = testing::RandomWeights(spec, seed);
  for (const Field& field : DeltaNeeds(spec, {.matrices = matrices}).weights) {
    if (field.dtype != DType::kBF16) continue;
    for (float& value : weights[field.name]) value = testing::RoundToBF16(value);
  }
  return weights;
}

bool Toss(Random& random) { return random() % 2 == 0; }
uint32_t Seed(Random& random) { return static_cast<uint32_t>(random()); }

void Change(Params& params, const Params& changes) {
  params.insert(params.end(), changes.begin(), changes.end());
}

void AddScale(Random& random, Params& params) {
  const std::string retention = Draw<std::string>(random, {"none", "constant", "learned", "data"});
  Change(params, {{"scale.gradient", Draw<std::string>(random, {"beta_aware", "beta_unaware"})},
                  {"scale.eta", 0.5},
                  {"scale.normalise", Toss(random)},
                  {"scale.retention", retention},
                  {"key_norm", "l2"}});
  if (retention == "constant") Change(params, {{"scale.gamma", 0.9}});
  if (Toss(random)) Change(params, {{"scale.clip_min", 2.0 / 3}, {"scale.clip_max", 1.5}});
}

// Step, norms, activation and scale.
Params RandomStep(Random& random) {
  const std::string step =
      Draw<std::string>(random, {"sigmoid", "sigmoid", "sigmoid", "one", "kaczmarz",
                                 "kaczmarz_full", "kaczmarz_learned", "longhorn"});
  Params params = {{"step", step}};
  if (step.rfind("kaczmarz", 0) == 0) Change(params, {{"step_eps", 1e-6}});
  if (step != "one" && step != "kaczmarz_full") Change(params, {{"step_bias", Toss(random)}});
  if (step != "one" && step != "sigmoid") {
    Change(params, {{"key_norm", "none"},
                    {"query_norm", Draw<std::string>(random, {"l2", "none"})},
                    {"qk_activation", Draw<std::string>(random, {"silu", "relu", "identity"})}});
    return params;
  }
  // A sum of keys of both signs can be near zero, which no rounding survives.
  if (Toss(random)) {
    Change(params, {{"qk_activation", "elu"},
                    {"query_norm", Draw<std::string>(random, {"l2", "sum"})},
                    {"key_norm", Draw<std::string>(random, {"l2", "sum"})}});
  }
  if (step == "sigmoid" && Toss(random)) AddScale(random, params);
  return params;
}

Params RandomGates(Random& random, bool has_step_logits) {
  Params params;
  const std::string decay = Draw<std::string>(random, {"none", "head", "channel", "tied"});
  if (decay != "tied" || has_step_logits) Change(params, {{"decay", decay}});
  if (decay == "channel") {
    Change(params, {{"decay_rank", Draw<int64_t>(random, {5, 16})}});
    if (Toss(random)) Change(params, {{"decay_bound", -5.0}});
  }
  const std::string gate = Draw<std::string>(random, {"none", "silu", "sigmoid"});
  Change(params, {{"gate", gate}});
  if (gate != "none") Change(params, {{"gate_rank", Draw<int64_t>(random, {0, 3, 8})}});
  return params;
}

// Not with one key channel: a norm, and a step over |k|^2, then leave little but a sign, which is
// not continuous at 0. The laws have a family for it. `whole_heads`, if not 0: so many heads, of a
// shape that has a kernel for all of a head.
LayerSpec RandomSpec(Random& random, int64_t whole_heads = 0) {
  const int64_t heads = whole_heads > 0 ? whole_heads : Draw<int64_t>(random, {1, 2, 3});
  Params params = RandomStep(random);
  Change(params, RandomGates(random, DeltaOptions(DeltaTestSpec(params)).has_step_logits()));
  // Shapes whose decoding rows take one kernel, in every third layer.
  const bool whole = whole_heads > 0 || Draw<int>(random, {0, 1, 2}) == 0;
  const auto draw = [&](const std::vector<int64_t>& of_whole, const std::vector<int64_t>& other) {
    return Draw<int64_t>(random, whole ? of_whole : other);
  };
  Change(params, {{"heads", heads},
                  {"value_heads", heads * draw({1}, {1, 2, 4})},
                  {"key_dim", draw({64, 128}, {7, 32, 33, 64, 64, 128, 128, 256})},
                  {"value_dim", draw({64, 128}, {5, 16, 64, 128, 128, 130, 256, 512})},
                  {"conv_width", Draw<int64_t>(random, {0, 2, 3, 4, 4, 8})},
                  {"initial_state", Draw<std::string>(random, {"zero", "learned"})}});
  LayerSpec spec = DeltaTestSpec(params);
  spec.d_model = Draw<int64_t>(random, {24, 64, 128});
  return spec;
}

std::string NameOf(const LayerSpec& spec) {
  std::string name = "d_model " + std::to_string(spec.d_model);
  for (const auto& [param, value] : spec.params) {
    std::string text;
    if (const auto* word = std::get_if<std::string>(&value)) text = *word;
    if (const auto* number = std::get_if<int64_t>(&value)) text = std::to_string(*number);
    if (const auto* flag = std::get_if<bool>(&value)) text = *flag ? "true" : "false";
    if (const auto* real = std::get_if<double>(&value)) text = std::to_string(*real);
    if (!text.empty()) name += ", " + param + " " + text;
  }
  return name;
}

// Sums for a relative L2 distance.
struct Distance {
  double off = 0, size = 0, count = 0;
  void Add(double got, double want) {
    off += (got - want) * (got - want);
    size += want * want;
    ++count;
  }
  double beside_one() const { return std::sqrt(off / std::max(size, count)); }
  double value() const { return std::sqrt(off / std::max(size, 1e-20)); }
};

// Of the layer's contribution and of records, in L2, relative.
//
// Float: both sides round each sum by 6e-8 times the root of its length (at most 512), and the
// recurrence of 100 rows adds them up: 6e-8 * 22 * 10 = 1.3e-5.
//
// Bfloat16: a rounding is off by at most 2^-8, by u = 1.7e-3 in the mean square. On the way of a
// row stand about eight of them: normed x; q, k, v and z as projected; q, k and v again as the rule
// takes them; scores, writes and copies of the state in the chunk form; o; the input of the output
// product; low ranks. They are independent, so sqrt(8) u = 4.8e-3, and norms and gates magnify them
// by 2.7 where they do so most: 1.3e-2.
//
// Random options make a few layers that enlarge rounding by more than that: keys that nearly
// vanish before a step over their length, norms of next to nothing. The twin itself shows by how
// much, when each element of its matrices moves by up to a unit in the last place: a third version
// does so, and six times its distance is allowed if that is more.
//
// States of bfloat16 are rounded by both, but what differs before may be rounded to two sides: at
// worst each of some 20 roundings of a record, or half of that where decays wear it off, adds u to
// either: sqrt(40) u = 1.1e-2.
double ToleranceOf(const Types& types) {
  const double matrices = types.matrices == DType::kBF16 ? 1.3e-2 : 1.3e-5;
  const double states = types.states == DType::kBF16 ? 1.1e-2 : 0;
  return std::hypot(matrices, states);
}
double ToleranceOf(const Types& types, double moved) {
  return std::max(ToleranceOf(types), 6 * moved);
}

Weights Moved(const LayerSpec& spec, DType matrices, Weights weights, uint32_t seed) {
  Random random(seed);
  const float most = matrices == DType::kBF16 ? 0x1p-8f : 0x1p-23f;
  std::uniform_real_distribution<float> factor(1 - most, 1 + most);
  for (const Field& field : DeltaNeeds(spec, {.matrices = DType::kBF16}).weights) {
    if (field.dtype != DType::kBF16) continue;
    for (float& value : weights[field.name]) value *= factor(random);
  }
  return weights;
}

struct Twins {
  LayerRig& cuda;
  LayerRig& cpu;
  LayerRig& moved;
};

// The greatest distance found, as a share of what is allowed.
double ExpectTwins(const Twins& twins, const LayerSpec& spec, uint32_t seed, const Types& types) {
  Plans plans(spec.d_model, seed);
  for (size_t i = 0; i < kSequences; ++i) {
    for (LayerRig* rig : {&twins.cuda, &twins.cpu, &twins.moved}) rig->Fill(Plans::SlotOf(i));
  }
  Distance out, moved_out;
  for (Plan plan; plans.Next(&plan);) {
    if (plan.feeds.empty()) continue;
    const std::vector<float> got = twins.cuda.Run(plan.feeds), want = twins.cpu.Run(plan.feeds);
    const std::vector<float> moved = twins.moved.Run(plan.feeds);
    size_t at = 0, padding_written = 0;
    for (size_t f = 0; f < plan.feeds.size(); ++f) {
      for (float x : plan.feeds[f].x) {
        if (plan.sequences[f] >= 0) {
          out.Add(double{got[at]} - double{x}, double{want[at]} - double{x});
          moved_out.Add(double{moved[at]} - double{x}, double{want[at]} - double{x});
        } else if (got[at] != x) {
          ++padding_written;
        }
        ++at;
      }
    }
    EXPECT_EQ(padding_written, 0u) << "padding contributes";
  }
  double worst = 0;
  const auto expect_close = [&](const Distance& distance, const Distance& moved,
                                const std::string& what) {
    const double tolerance = ToleranceOf(types, moved.value());
    EXPECT_LE(distance.value(), tolerance) << what;
    worst = std::max(worst, distance.value() / tolerance);
  };
  expect_close(out, moved_out, "outputs");
  for (const Field& field : DeltaNeeds(spec, {}).state) {
    Distance state, moved_state;
    for (size_t i = 0; i < kSequences; ++i) {
      const std::vector<float> got = twins.cuda.StateField(Plans::SlotOf(i), field.name);
      const std::vector<float> want = twins.cpu.StateField(Plans::SlotOf(i), field.name);
      const std::vector<float> moved = twins.moved.StateField(Plans::SlotOf(i), field.name);
      for (size_t e = 0; e < got.size(); ++e) {
        state.Add(double{got[e]}, double{want[e]});
        moved_state.Add(double{moved[e]}, double{want[e]});
      }
    }
    expect_close(state, moved_state, field.name);
  }
  return worst;
}

TEST_P(DeltaLayerOnCuda, IsTheTwinOfTheCpuVersion) {
  const uint32_t seed = testing::TestSeed();
  Random random(seed);
  double worst = 0;
  for (int i : testing::Trials(48)) {
    const LayerSpec spec = RandomSpec(random);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + NameOf(spec));
    ASSERT_EQ(DeltaType().conflict(spec), std::nullopt);
    const Weights weights = WeightsFor(spec, GetParam().matrices, seed + i);
    LayerRig cuda(*cuda_, spec, weights, kSequences, 256);
    LayerRig cpu(*cpu_, spec, weights, kSequences);
    LayerRig moved(*cpu_, spec, Moved(spec, GetParam().matrices, weights, seed + i), kSequences);
    worst = std::max(
        worst, ExpectTwins({.cuda = cuda, .cpu = cpu, .moved = moved}, spec, seed + i, GetParam()));
  }
  std::printf("greatest distance %.2g of what is allowed\n", worst);
}

TEST_P(DeltaLayerOnCuda, GivesADecodingRowTheSameBitsInAnyCompany) {
  constexpr int32_t kMine = 15, kReader = 14;
  const uint32_t seed = testing::TestSeed();
  Random random(seed);
  for (int i : testing::Trials(8)) {
    const LayerSpec spec = RandomSpec(random);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + NameOf(spec));
    const Weights weights = WeightsFor(spec, GetParam().matrices, seed + i);
    LayerRig alone(*cuda_, spec, weights, 1), company(*cuda_, spec, weights, kMine, 512);
    alone.Fill(1);
    for (int32_t slot = 1; slot <= kMine; ++slot) company.Fill(slot);
    for (int row = 0; row < 40; ++row) {
      const std::vector<float> x = testing::RandomRows(1, spec.d_model, seed + 1000 * i + row);
      const auto expected = alone.Run({{.slot = 1, .x = x}});
      // Before it and behind it others decode, and behind these one may read a prompt.
      const int before = Draw<int>(random, {0, 1, 6}), behind = Draw<int>(random, {0, 1, 6});
      std::vector<Feed> feeds;
      for (int other = 0; other <= before + behind; ++other) {
        if (other == before) {
          feeds.push_back({.slot = kMine, .x = x});
        } else {
          feeds.push_back(
              {.slot = 1 + other, .x = testing::RandomRows(1, spec.d_model, Seed(random))});
        }
      }
      if (Toss(random)) {
        feeds.push_back(
            {.slot = kReader, .x = testing::RandomRows(20, spec.d_model, Seed(random))});
      }
      const auto out = company.Run(feeds);
      ASSERT_EQ(std::memcmp(out.data() + before * spec.d_model, expected.data(),
                            expected.size() * sizeof(float)),
                0)
          << "row " << row;
    }
    EXPECT_EQ(alone.Record(1), company.Record(kMine));
  }
}

// Few heads take one kernel, many take three (delta_token_cuda.h). Those of nobody count too.
TEST_P(DeltaLayerOnCuda, GivesADecodingRowTheSameBitsFromOneKernelAndFromThree) {
  constexpr int64_t kHeads = 40;
  constexpr int kNobody = 15;
  const uint32_t seed = testing::TestSeed();
  Random random(seed);
  for (int i : testing::Trials(8)) {
    const LayerSpec spec = RandomSpec(random, kHeads);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + NameOf(spec));
    const Weights weights = WeightsFor(spec, GetParam().matrices, seed + i);
    LayerRig one(*cuda_, spec, weights, 1), three(*cuda_, spec, weights, 1);
    for (LayerRig* rig : {&one, &three}) rig->Fill(1);
    for (int row = 0; row < 40; ++row) {
      const std::vector<float> x = testing::RandomRows(1, spec.d_model, Seed(random));
      std::vector<Feed> feeds = {{.slot = 1, .x = x}};
      const std::vector<float> expected = one.Run(feeds);
      feeds.resize(1 + kNobody, {.slot = kNoSlot, .x = x});
      std::vector<float> out = three.Run(feeds);
      out.resize(expected.size());
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << "row " << row;
    }
    EXPECT_EQ(one.Record(1), three.Record(1));
  }
}

// Read-outs of the twin, and that asking changes no other bit. They are shares and factors around
// one, made of differences: a distance counts beside one, not beside what is left of it; and two
// results are compared in each, so twice the tolerance.
TEST_P(DeltaLayerOnCuda, TellsOfItsRowsWhatTheCpuVersionTells) {
  const uint32_t seed = testing::TestSeed();
  Random random(seed);
  for (int i : testing::Trials(12)) {
    const LayerSpec spec = RandomSpec(random);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + NameOf(spec));
    const Weights weights = WeightsFor(spec, GetParam().matrices, seed + i);
    LayerRig silent(*cuda_, spec, weights, 3), asked(*cuda_, spec, weights, 3);
    LayerRig cpu(*cpu_, spec, weights, 3);
    LayerRig other(*cpu_, spec, Moved(spec, GetParam().matrices, weights, seed + i), 3);
    for (LayerRig* rig : {&asked, &cpu, &other}) rig->AskForReadouts();
    for (LayerRig* rig : {&silent, &asked, &cpu, &other}) {
      for (int32_t slot = 1; slot <= 3; ++slot) rig->Fill(slot);
    }
    std::map<Readout, Distance> told, moved;
    for (int step = 0; step < 6; ++step) {
      const auto rows = [&](int count) {
        return testing::RandomRows(count, spec.d_model, Seed(random));
      };
      const std::vector<Feed> feeds = {{.slot = 2, .x = rows(1)},
                                       {.slot = kNoSlot, .x = rows(1)},
                                       {.slot = kNoSlot, .x = rows(3)},
                                       {.slot = 1, .x = rows(70)},
                                       {.slot = 3, .x = rows(step % 3 + 1)}};
      EXPECT_EQ(silent.Run(feeds), asked.Run(feeds)) << "asking changes the output";
      cpu.Run(feeds);
      other.Run(feeds);
      for (const auto& [readout, values] : cpu.readouts()) {
        const std::vector<float>& got = asked.readouts().at(readout);
        for (size_t row = 0; row < values.size(); ++row) {
          told[readout].Add(double{got[row]}, double{values[row]});
          moved[readout].Add(double{other.readouts().at(readout)[row]}, double{values[row]});
        }
        for (size_t row = 1; row < 5; ++row) EXPECT_EQ(got[row], 0) << "padding tells something";
      }
    }
    for (int32_t slot = 1; slot <= 3; ++slot) EXPECT_EQ(silent.Record(slot), asked.Record(slot));
    for (const auto& [readout, distance] : told) {
      EXPECT_LE(distance.beside_one(), 2 * ToleranceOf(GetParam(), moved[readout].beside_one()))
          << static_cast<int>(readout);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, DeltaLayerOnCuda,
    ::testing::Values(Types{DType::kF32, DType::kF32}, Types{DType::kBF16, DType::kF32},
                      Types{DType::kF32, DType::kBF16}, Types{DType::kBF16, DType::kBF16}),
    [](const auto& test) {
      return std::string(test.param.matrices == DType::kF32 ? "Float" : "BFloat16") +
             (test.param.states == DType::kF32 ? "" : "HalfStates");
    });

}  // namespace
}  // namespace eddy
