// Proves the selective scan with both of its decays against a float64 recurrence written here from
// the formula, for random shapes and splits.
#include "kernels/rules/selective_scan/selective_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/float64.h"

namespace eddy {
namespace {

using testing::Vector;

struct Case {
  int64_t channels = 1, states = 1, rows = 1, row_stride = 0;
  std::vector<float> x, step, select, rates;  // rates: empty for Longhorn

  SelectiveScanArgs Args(FieldView state, std::vector<float>& out, std::vector<float>& scratch) {
    out.assign(x.size(), -1.0f);
    scratch.resize(static_cast<size_t>(2 * channels));
    return {.channels = channels,
            .states = states,
            .x = x.data(),
            .step = step.data(),
            .k = select.data(),
            .q = select.data() + states,
            .row_stride = row_stride,
            .rates = rates.empty() ? nullptr : rates.data(),
            .state = state,
            .out = out.data(),
            .scratch = scratch.data()};
  }
};

Case RandomCase(std::mt19937& random, bool longhorn) {
  const auto draw = [&](int low, int high) {
    return int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  Case made;
  made.channels = draw(1, 70), made.states = draw(0, 5) == 0 ? 1 : draw(2, 20);
  made.rows = draw(0, 1) == 0 ? draw(1, 200) : draw(1, 20);
  made.row_stride = 2 * made.states + draw(0, 4);
  const auto seed = static_cast<uint32_t>(random());
  made.x = testing::RandomRows(made.rows, made.channels, seed);
  made.step = testing::RandomRows(made.rows, made.channels, seed + 1);
  made.select = testing::RandomRows(made.rows, made.row_stride, seed + 2);
  for (int64_t t = 0; t < made.rows; ++t) {
    const float* k = made.select.data() + t * made.row_stride;
    double square = 0;
    for (int64_t n = 0; n < made.states; ++n) square += double{k[n]} * double{k[n]};
    for (int64_t c = 0; c < made.channels; ++c) {
      float& step = made.step[static_cast<size_t>(t * made.channels + c)];
      const double b = testing::Sigmoid(static_cast<double>(step));
      step = static_cast<float>(longhorn ? b / (1 + b * square) : 0.2 * b);
    }
  }
  if (longhorn) return made;
  made.rates = testing::RandomRows(made.states, made.channels, seed + 3);
  for (float& rate : made.rates) rate = -std::exp(rate);
  return made;
}

// Outputs, and the state after them.
std::pair<Vector, Vector> Reference(const Case& c) {
  Vector out(c.x.size()), state(static_cast<size_t>(c.states * c.channels));
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t i = 0; i < c.channels; ++i) {
      const auto at = static_cast<size_t>(t * c.channels + i);
      const double step = static_cast<double>(c.step[at]), x = static_cast<double>(c.x[at]);
      for (int64_t n = 0; n < c.states; ++n) {
        const auto element = static_cast<size_t>(n * c.channels + i);
        const double k = static_cast<double>(c.select[static_cast<size_t>(t * c.row_stride + n)]);
        const double q =
            static_cast<double>(c.select[static_cast<size_t>(t * c.row_stride + c.states + n)]);
        const double decay = c.rates.empty()
                                 ? 1 - step * k * k
                                 : std::exp(step * static_cast<double>(c.rates[element]));
        state[element] = decay * state[element] + k * step * x;
        out[at] += q * state[element];
      }
    }
  }
  return {out, state};
}

TEST(SelectiveScan, EqualsItsFormulaForRandomShapesAndSplits) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    Case c = RandomCase(random, /*longhorn=*/round % 2 == 0);
    const std::string what = "round " + std::to_string(round) + ", I " +
                             std::to_string(c.channels) + ", N " + std::to_string(c.states) +
                             ", rows " + std::to_string(c.rows);
    const auto floats = static_cast<size_t>(c.states * c.channels);
    std::vector<float> whole(2 * floats), split(2 * floats), out, parts, scratch;
    const auto view = [&](std::vector<float>& pool) {
      return FieldView{.base = reinterpret_cast<std::byte*>(pool.data()),
                       .stride = static_cast<int64_t>(floats * sizeof(float))};
    };
    const auto run = [&](const SelectiveScanArgs& args, int32_t begin, int32_t end) {
      const std::vector<int32_t> starts = {begin, end};
      const int32_t slot = 1;
      SelectiveScanCpu(
          {.rows = end - begin, .sequences = 1, .row_start = starts.data(), .slots = &slot}, args);
    };
    run(c.Args(view(whole), out, scratch), 0, static_cast<int32_t>(c.rows));
    const auto [expected, state] = Reference(c);
    testing::ExpectClose(out, expected, 2e-6, what);
    testing::ExpectClose(std::span(whole).subspan(floats), state, 2e-6, what + ", state");
    EXPECT_EQ(std::vector<float>(whole.begin(), whole.begin() + static_cast<int64_t>(floats)),
              std::vector<float>(floats))
        << what << ": the null slot was written";

    const SelectiveScanArgs args = c.Args(view(split), parts, scratch);
    for (int32_t begin = 0; begin < c.rows;) {
      const auto end = static_cast<int32_t>(
          std::min<int64_t>(c.rows, begin + 1 + static_cast<int64_t>(random() % 30)));
      run(args, begin, end);
      begin = end;
    }
    EXPECT_EQ(parts, out) << what << ": splits show";
    EXPECT_EQ(split, whole) << what << ": splits show";
  }
}

TEST(SelectiveScan, GivesZerosToRowsOfNobody) {
  std::mt19937 random(testing::TestSeed());
  Case c = RandomCase(random, /*longhorn=*/true);
  std::vector<float> out, scratch;
  const SelectiveScanArgs args = c.Args({}, out, scratch);
  const std::vector<int32_t> starts = {0, static_cast<int32_t>(c.rows)};
  const int32_t slot = kNoSlot;
  SelectiveScanCpu({.rows = starts[1], .sequences = 1, .row_start = starts.data(), .slots = &slot},
                   args);
  EXPECT_EQ(out, std::vector<float>(out.size()));  // and a state, had it touched one, is null
}

}  // namespace
}  // namespace eddy
