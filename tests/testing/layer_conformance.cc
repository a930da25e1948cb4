#include "tests/testing/layer_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>

namespace eddy::testing {
namespace {

using Feed = LayerRig::Feed;

// Rows [begin, end) of x.
std::vector<float> Part(const std::vector<float>& x, int64_t d_model, int64_t begin, int64_t end) {
  return {x.begin() + begin * d_model, x.begin() + end * d_model};
}

std::vector<double> ToDouble(std::span<const float> values) {
  return {values.begin(), values.end()};
}

Weights PreparedWeights(const LayerCase& test, uint32_t seed) {
  Weights weights = RandomWeights(test.spec, seed, test.type);
  if (test.prepare) test.prepare(test.spec, weights);
  return weights;
}

// What the laws of one case share.
class Laws {
 public:
  Laws(Device& device, const LayerCase& test, uint32_t seed)
      : device_(device),
        test_(test),
        d_model_(test.spec.d_model),
        seed_(seed),
        weights_(PreparedWeights(test, seed)),
        x_(RandomRows(test.rows, d_model_, seed + 1)),
        random_(seed + 2) {}

  void Golden();
  void Chunking();
  void Company();
  void Padding();
  void Stride();
  void Fresh();
  void Lost();
  void LostRow();
  void RecordGoesOn();
  void Quiet();
  void Readouts();

 private:
  LayerRig MakeRig(int32_t slots, int64_t gap, int64_t rows_per_page) {
    return LayerRig(device_, test_.spec, weights_, slots, gap, rows_per_page, test_.type);
  }
  LayerRig MakeRig(int32_t slots, int64_t gap = 0) { return MakeRig(slots, gap, 7); }
  // One in which a slot has a single page.
  LayerRig MakeRigOfLargePages(int32_t slots, int64_t gap) {
    return MakeRig(slots, gap, LayerRig::kMaxPositions);
  }
  // The sequence x_, alone in a fresh rig, in steps of the given numbers of rows.
  struct Ran {
    std::vector<float> out;
    std::vector<std::byte> record;
  };
  Ran RunIn(LayerRig& rig, int32_t slot, const std::vector<int>& parts);
  std::vector<float> Other(uint32_t which) { return RandomRows(5, d_model_, seed_ + which); }

  Device& device_;
  const LayerCase& test_;
  const int64_t d_model_;
  const uint32_t seed_;
  const Weights weights_;
  const std::vector<float> x_;
  std::mt19937 random_;
};

Laws::Ran Laws::RunIn(LayerRig& rig, int32_t slot, const std::vector<int>& parts) {
  rig.Fill(slot);
  Ran ran;
  int64_t begin = 0;
  for (int part : parts) {
    const auto out = rig.Run({{.slot = slot, .x = Part(x_, d_model_, begin, begin + part)}});
    ran.out.insert(ran.out.end(), out.begin(), out.end());
    begin += part;
  }
  ran.record = rig.Record(slot);
  return ran;
}

void Laws::Golden() {
  LayerRig rig = MakeRig(1);
  const Ran ran = RunIn(rig, 1, {test_.rows});
  const Trace trace = test_.reference(test_.spec, weights_, x_, test_.rows);
  ExpectClose(ran.out, trace.out, test_.tolerance, "golden: outputs");
  for (const auto& [name, values] : trace.state) {
    ExpectClose(rig.StateField(1, name), values, test_.tolerance, "golden: state " + name);
  }
  // The contribution itself must be there: a layer that does nothing would pass a loose tolerance.
  double contribution = 0;
  for (size_t i = 0; i < x_.size(); ++i) {
    contribution = std::max(contribution, std::abs(trace.out[i] - static_cast<double>(x_[i])));
  }
  EXPECT_GT(contribution, std::min(100 * test_.tolerance, 0.1)) << "golden: the case tests nothing";
}

void Laws::Chunking() {
  LayerRig rig = MakeRig(1);
  const Ran whole = RunIn(rig, 1, {test_.rows});
  std::vector<std::vector<int>> splits = {std::vector<int>(static_cast<size_t>(test_.rows), 1)};
  for (int first : {1, 2, 3, 4, 15, 16, 17, 63, 64, 65}) {
    if (first >= test_.rows) continue;
    splits.push_back({first, test_.rows - first});
    splits.push_back({test_.rows - first, first});
  }
  std::vector<int> random_split;
  for (int left = test_.rows; left > 0; left -= random_split.back()) {
    random_split.push_back(std::uniform_int_distribution<int>(1, std::min(left, 9))(random_));
  }
  splits.push_back(random_split);
  for (const std::vector<int>& split : splits) {
    const Ran ran = RunIn(rig, 1, split);
    const std::string what = "chunking: first part " + std::to_string(split.front());
    ExpectClose(ran.out, ToDouble(whole.out), test_.tolerance, what);
    ExpectClose(rig.Numbers(ran.record), ToDouble(rig.Numbers(whole.record)), test_.tolerance,
                what + ", record");
  }
}

void Laws::Company() {
  LayerRig rig = MakeRig(4);
  const std::vector<float> mine = Part(x_, d_model_, 0, 6);
  const Ran alone = RunIn(rig, 1, {6});
  const auto run = [&](int32_t slot, int32_t left, int32_t right, uint32_t contents) {
    for (int32_t s : {slot, left, right}) rig.Fill(s);
    const auto out = rig.Run({{.slot = left, .x = Other(contents)},
                              {.slot = slot, .x = mine},
                              {.slot = right, .x = Other(contents + 1)}});
    return Ran{.out = Part(out, d_model_, 5, 11), .record = rig.Record(slot)};
  };
  const Ran first = run(1, 2, 3, 100), second = run(4, 3, 1, 200);
  EXPECT_EQ(first.out, second.out) << "company: neighbours or slot show in the output";
  EXPECT_EQ(first.record, second.record) << "company: neighbours or slot show in the state";
  ExpectClose(first.out, ToDouble(Part(alone.out, d_model_, 0, 6)), test_.tolerance,
              "company: alone or not");
}

void Laws::Padding() {
  constexpr int32_t kSlots = 3;
  LayerRig rig = MakeRig(kSlots, 256);
  for (int32_t slot : {1, 2, 3}) rig.Fill(slot);
  const auto outside = rig.Record0AndGaps(kSlots);
  const auto idle = rig.Record(3);
  const auto row = Part(x_, d_model_, 0, 1), rows = Part(x_, d_model_, 1, 4);
  const auto out = rig.Run({{.slot = kNoSlot, .x = row},
                            {.slot = 1, .x = row},
                            {.slot = kNoSlot, .x = rows},
                            {.slot = 2, .x = rows}});
  EXPECT_EQ(rig.Record0AndGaps(kSlots), outside) << "padding: bytes of nobody were written";
  EXPECT_EQ(rig.Record(3), idle) << "padding: an idle slot was written";
  for (float value : out) EXPECT_TRUE(std::isfinite(value)) << "padding: not finite";
  LayerRig other = MakeRig(2);
  for (int32_t slot : {1, 2}) other.Fill(slot);
  const auto expected = other.Run({{.slot = 1, .x = row}, {.slot = 2, .x = rows}});
  auto got = Part(out, d_model_, 1, 2);
  const auto rest = Part(out, d_model_, 5, 8);
  got.insert(got.end(), rest.begin(), rest.end());
  ExpectClose(got, ToDouble(expected), test_.tolerance, "padding: the others");
  // Without a state, padding rows are rows like others.
  if (rig.stateless() || !test_.adds_nothing_without_rule) return;
  EXPECT_EQ(Part(out, d_model_, 0, 1), row) << "padding: its contribution is not zero";
  EXPECT_EQ(Part(out, d_model_, 2, 5), rows) << "padding: its contribution is not zero";
}

void Laws::Stride() {
  LayerRig dense = MakeRig(2), gaps = MakeRig(2, 768);
  const Ran a = RunIn(dense, 2, {test_.rows}), b = RunIn(gaps, 2, {test_.rows});
  EXPECT_EQ(a.out, b.out) << "stride: gaps between the records show";
  EXPECT_EQ(a.record, b.record) << "stride: gaps between the records show";
  if (dense.stateless()) return;
  // A slot of four digits beyond 4,096 that lies beyond 4 GiB; the pool is never touched in
  // between. In several steps, so that all that reads and writes a state does so there.
  constexpr int32_t kFar = 4500;
  const std::vector<int> steps = {test_.rows - 3, 1, 1, 1};
  LayerRig near = MakeRigOfLargePages(2, 0), far = MakeRigOfLargePages(kFar, int64_t{1} << 20);
  const Ran c = RunIn(near, 2, steps), d = RunIn(far, kFar, steps);
  EXPECT_EQ(c.out, d.out) << "stride: slot 4,500, beyond 4 GiB";
  EXPECT_EQ(c.record, d.record) << "stride: slot 4,500, beyond 4 GiB";
  ExpectClose(c.out, ToDouble(a.out), test_.tolerance, "stride: pages of another size");
}

void Laws::Fresh() {
  LayerRig rig = MakeRig(1);
  const Ran first = RunIn(rig, 1, {test_.rows});
  rig.Run({{.slot = 1, .x = Other(300)}});
  rig.Poison(1);
  const Ran again = RunIn(rig, 1, {test_.rows});
  EXPECT_EQ(first.out, again.out) << "fresh: a slot remembers its last owner";
  EXPECT_EQ(first.record, again.record) << "fresh: a slot remembers its last owner";
}

// Three sequences read a prompt and decode, then the second loses the numbers of a part of its
// state, or of its rows; then all go on, decoding and not. The other two have the same bits.
void Laws::Lost() {
  enum { kNothing = -2, kRows = -1 };  // or a part of the state
  const auto run = [&](int lost) {
    LayerRig rig = MakeRig(3);
    for (int32_t slot : {1, 2, 3}) rig.Fill(slot);
    const auto head = Part(x_, d_model_, 0, 5), row = Part(x_, d_model_, 5, 6);
    const auto tail = Part(x_, d_model_, 3, 7);
    rig.Run({{.slot = 1, .x = head}, {.slot = 2, .x = head}, {.slot = 3, .x = head}});
    rig.Run({{.slot = 1, .x = row}, {.slot = 2, .x = row}, {.slot = 3, .x = row}});
    if (lost >= 0) rig.Lose(2, lost);
    const auto of_second = [&](std::vector<float> x) {
      if (lost == kRows) std::fill(x.begin(), x.end(), std::numeric_limits<float>::quiet_NaN());
      return x;
    };
    std::vector<float> others;
    const auto step = [&](const std::vector<float>& x) {
      const auto out =
          rig.Run({{.slot = 1, .x = x}, {.slot = 2, .x = of_second(x)}, {.slot = 3, .x = x}});
      const auto rows = static_cast<int64_t>(x.size()) / d_model_;
      for (int64_t i : {0, 2}) {
        const auto part = Part(out, d_model_, i * rows, (i + 1) * rows);
        others.insert(others.end(), part.begin(), part.end());
      }
    };
    step(row);
    step(tail);
    step(row);
    Ran ran{.out = others, .record = rig.Record(1)};
    const auto third = rig.Record(3);
    ran.record.insert(ran.record.end(), third.begin(), third.end());
    return ran;
  };
  const Ran whole = run(kNothing);
  const int parts = MakeRig(1).parts();
  for (int lost = kRows; lost < parts; ++lost) {
    const Ran beside = run(lost);
    const std::string what = lost == kRows ? "rows" : "part " + std::to_string(lost);
    EXPECT_EQ(beside.out, whole.out) << "lost: " << what << " of one show in the others' outputs";
    EXPECT_EQ(beside.record, whole.record) << "lost: " << what << " of one show in others' states";
  }
}

// A row of a prompt is lost: those before it in the same step are not, and the row shows it.
void Laws::LostRow() {
  LayerRig rig = MakeRig(2);
  for (int lost : {1, test_.rows / 2, test_.rows - 1}) {
    for (int32_t slot : {1, 2}) rig.Fill(slot);
    std::vector<float> x = x_;
    std::fill_n(x.begin() + lost * d_model_, d_model_, std::numeric_limits<float>::quiet_NaN());
    const auto out = rig.Run({{.slot = 1, .x = x}, {.slot = 2, .x = x_}});
    const auto finite = [](float value) { return std::isfinite(value); };
    const auto is_finite = [&](int begin, int end) {
      const std::vector<float> rows = Part(out, d_model_, begin, end);
      return std::all_of(rows.begin(), rows.end(), finite);
    };
    const std::string what =
        "lost: row " + std::to_string(lost) + " of " + std::to_string(test_.rows);
    EXPECT_TRUE(is_finite(0, lost)) << what << " shows in rows before it";
    EXPECT_FALSE(is_finite(lost, lost + 1)) << what << " does not show";
    EXPECT_TRUE(is_finite(test_.rows, 2 * test_.rows)) << what << " shows in another sequence";
  }
}

void Laws::RecordGoesOn() {
  const int half = test_.rows / 2;
  const auto head = Part(x_, d_model_, 0, half), tail = Part(x_, d_model_, half, test_.rows);
  LayerRig here = MakeRig(1), there = MakeRig(3, 512);
  here.Fill(1);
  here.Run({{.slot = 1, .x = head}});
  there.Poison(3);
  there.SetRecord(3, here.Record(1));
  const auto expected = here.Run({{.slot = 1, .x = tail}});
  EXPECT_EQ(there.Run({{.slot = 3, .x = tail}}), expected) << "record: a copy goes on differently";
  EXPECT_EQ(there.Record(3), here.Record(1)) << "record: a copy goes on differently";
}

void Laws::Quiet() {
  LayerRig rig = MakeRig(2);
  for (int rows : {1, test_.rows}) {
    rig.Fill(1);
    rig.Run({{.slot = 1, .x = Part(x_, d_model_, 0, rows)}});
    EXPECT_EQ(rig.allocations(), 0) << "quiet: Forward of " << rows << " rows allocates";
  }
}

// Asked or not, outputs and states are the same to the bit; padding rows tell zeros.
void Laws::Readouts() {
  LayerRig silent = MakeRig(1), asked = MakeRig(1);
  asked.AskForReadouts();
  RunIn(asked, 1, {test_.rows});  // a device may load code when it is first needed
  const Ran a = RunIn(silent, 1, {test_.rows}), b = RunIn(asked, 1, {test_.rows});
  EXPECT_EQ(a.out, b.out) << "read-outs change the output";
  EXPECT_EQ(a.record, b.record) << "read-outs change the state";
  EXPECT_EQ(asked.allocations(), 0) << "read-outs allocate";
  EXPECT_TRUE(silent.readouts().empty());
  const Trace trace = test_.reference(test_.spec, weights_, x_, test_.rows);
  for (const auto& [readout, values] : asked.readouts()) {
    const std::string what = "read-out " + std::to_string(static_cast<int>(readout));
    const auto found = trace.readouts.find(readout);
    ASSERT_NE(found, trace.readouts.end()) << what << ": the reference says nothing";
    ExpectClose(values, found->second, test_.tolerance, what);
  }
  asked.Run({{.slot = kNoSlot, .x = Other(400)}, {.slot = 1, .x = Other(401)}});
  for (const auto& [readout, values] : asked.readouts()) {
    for (int row = 0; row < 5; ++row) EXPECT_EQ(values[static_cast<size_t>(row)], 0) << "padding";
  }
}

}  // namespace

void ExpectClose(std::span<const float> a, std::span<const double> b, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double scale = 1, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < b.size(); ++i) scale = std::max(scale, std::abs(b[i]));
  for (size_t i = 0; i < b.size(); ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - b[i]);
    if (error <= worst) continue;  // false for NaN, which is then the worst
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    at = i;
  }
  EXPECT_LE(worst, tolerance * scale)
      << what << ": element " << at << " of " << b.size() << (b.empty() ? "" : ", ")
      << (b.empty() ? 0.0 : static_cast<double>(a[at])) << " instead of "
      << (b.empty() ? 0.0 : b[at]);
}

uint32_t TestSeed() {
  const char* given = std::getenv("EDDY_TEST_SEED");
  const uint32_t seed = given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10))
                                         : std::random_device{}();
  std::printf("EDDY_TEST_SEED=%u\n", seed);
  return seed;
}

void CheckLayerBits(Device& device, const LayerCase& test, uint32_t seed) {
  SCOPED_TRACE(test.name + ", EDDY_TEST_SEED=" + std::to_string(seed));
  Laws laws(device, test, seed);
  laws.Stride();
  laws.Fresh();
  laws.Lost();
  laws.LostRow();
  laws.RecordGoesOn();
}

void CheckLayerLaws(Device& device, const LayerCase& test, uint32_t seed) {
  SCOPED_TRACE(test.name + ", EDDY_TEST_SEED=" + std::to_string(seed));
  Laws laws(device, test, seed);
  laws.Golden();
  laws.Chunking();
  laws.Company();
  laws.Padding();
  laws.Stride();
  laws.Fresh();
  laws.Lost();
  laws.LostRow();
  laws.RecordGoesOn();
  laws.Quiet();
  laws.Readouts();
}

}  // namespace eddy::testing
