// Proves the short convolution against its formula in float64 for random shapes and splits, with
// and without bias, and that sequences of kNoSlot get zeros and touch nothing. Width 1 has no
// state: it is a product, which layers that allow it do themselves. The layers' laws do the rest.
#include "kernels/rules/short_conv/short_conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

struct Case {
  int64_t channels = 1, width = 2;
  int32_t rows = 1;
  std::vector<float> x = {}, taps = {}, bias = {};  // bias: empty for none

  // Rows [begin, end), in slot 1 of a pool of two.
  void Run(std::vector<float>& pool, std::vector<float>& out, int32_t begin, int32_t end) const {
    const std::vector<int32_t> starts = {0, end - begin};
    const int32_t slot = 1;
    ShortConvCpu({.rows = end - begin, .sequences = 1, .row_start = starts.data(), .slots = &slot},
                 {.channels = channels,
                  .width = width,
                  .x = x.data() + begin * channels,
                  .taps = taps.data(),
                  .bias = bias.empty() ? nullptr : bias.data(),
                  .state = {.base = reinterpret_cast<std::byte*>(pool.data()),
                            .stride = (width - 1) * channels * 4},
                  .out = out.data() + begin * channels});
  }
  float At(int64_t row, int64_t channel) const {
    return row < 0 ? 0.0f : x[static_cast<size_t>(row * channels + channel)];
  }
  std::vector<double> Expected() const {
    std::vector<double> expected;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = bias.empty() ? 0 : static_cast<double>(bias[static_cast<size_t>(c)]);
        for (int64_t j = 0; j < width; ++j) {
          sum += static_cast<double>(taps[static_cast<size_t>(j * channels + c)]) *
                 static_cast<double>(At(t - width + 1 + j, c));
        }
        expected.push_back(sum);
      }
    }
    return expected;
  }
};

TEST(ShortConv, EqualsItsFormulaForRandomShapesAndSplits) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (uint32_t round = 0; round < 60; ++round) {
    Case c = {.channels = draw(1, 40), .width = draw(2, 8)};
    c.rows = draw(0, 1) == 0 ? draw(1, 12) : draw(1, 200);
    c.x = testing::RandomRows(c.rows, c.channels, seed + round);
    c.taps = testing::RandomRows(c.width, c.channels, seed + round + 1);
    if (draw(0, 1) == 0) c.bias = testing::RandomRows(1, c.channels, seed + round + 2);
    const std::string what = "round " + std::to_string(round) + ", width " +
                             std::to_string(c.width) + ", rows " + std::to_string(c.rows);
    std::vector<float> whole(c.x.size(), -1.0f), parts = whole;
    std::vector<float> pool(static_cast<size_t>(2 * (c.width - 1) * c.channels)), other = pool;
    c.Run(pool, whole, 0, c.rows);
    testing::ExpectClose(whole, c.Expected(), 1e-6, what);
    for (int32_t begin = 0; begin < c.rows;) {
      const int32_t end = std::min(c.rows, begin + draw(1, draw(0, 1) == 0 ? 3 : 40));
      c.Run(other, parts, begin, end);
      begin = end;
    }
    EXPECT_EQ(parts, whole) << what << ": splits show";
    EXPECT_EQ(other, pool) << what << ": splits show";
    // The null slot is untouched, and the last inputs follow it.
    std::vector<float> state(pool.size() / 2);
    for (int64_t row = c.rows - c.width + 1; row < c.rows; ++row) {
      for (int64_t channel = 0; channel < c.channels; ++channel) {
        state.push_back(c.At(row, channel));
      }
    }
    EXPECT_EQ(pool, state) << what;
  }
}

TEST(ShortConv, GivesZerosToRowsOfNobody) {
  const std::vector<float> x(6, 3.0f), taps(4, 1.0f), bias(2, 1.0f);
  std::vector<float> out(6, -1.0f);
  const std::vector<int32_t> starts = {0, 3};
  const int32_t slot = kNoSlot;
  ShortConvCpu({.rows = 3, .sequences = 1, .row_start = starts.data(), .slots = &slot},
               {.channels = 2,
                .width = 2,
                .x = x.data(),
                .taps = taps.data(),
                .bias = bias.data(),
                .out = out.data()});
  EXPECT_EQ(out, std::vector<float>(6, 0.0f));  // and a state, had it touched one, is null
}

}  // namespace
}  // namespace eddy
