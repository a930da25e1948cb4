// Proves the short convolution against its formula in float64, with and without bias, with the
// state in any split, and that sequences of kNoSlot get zeros and touch nothing. The layers' laws
// do the rest.
#include "kernels/rules/short_conv/short_conv.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

TEST(ShortConv, EqualsItsFormulaInAnySplit) {
  const uint32_t seed = testing::TestSeed();
  std::mt19937 random(seed);
  for (int64_t width = 2; width <= 8; ++width) {
    const int64_t channels = 1 + static_cast<int64_t>(random() % 40), rows = 11;
    const std::vector<float> x = testing::RandomRows(rows, channels, seed);
    const std::vector<float> taps = testing::RandomRows(width, channels, seed + 1);
    const std::vector<float> bias = testing::RandomRows(1, channels, seed + 2);
    const bool biased = width % 2 == 0;
    std::vector<double> expected;
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = biased ? static_cast<double>(bias[static_cast<size_t>(c)]) : 0;
        for (int64_t j = 0; j < width; ++j) {
          const int64_t from = t - width + 1 + j;
          if (from < 0) continue;
          sum += static_cast<double>(taps[static_cast<size_t>(j * channels + c)]) *
                 static_cast<double>(x[static_cast<size_t>(from * channels + c)]);
        }
        expected.push_back(sum);
      }
    }
    for (int32_t split = 0; split <= rows; ++split) {
      // Slot 1; slot 0 is behind it in memory to show that order does not matter.
      std::vector<float> state(static_cast<size_t>(2 * (width - 1) * channels));
      std::vector<float> out(x.size(), -1.0f);
      const int64_t bytes = (width - 1) * channels * 4;
      ShortConvArgs args{
          .channels = channels,
          .width = width,
          .taps = taps.data(),
          .bias = biased ? bias.data() : nullptr,
          .state = {.base = reinterpret_cast<std::byte*>(state.data()), .stride = bytes}};
      const int32_t slot = 1;
      for (const auto& [begin, end] : {std::pair{0, split}, std::pair{split, int32_t{rows}}}) {
        const std::vector<int32_t> starts = {0, end - begin};
        args.x = x.data() + begin * channels;
        args.out = out.data() + begin * channels;
        ShortConvCpu(
            {.rows = end - begin, .sequences = 1, .row_start = starts.data(), .slots = &slot},
            args);
      }
      testing::ExpectClose(out, expected, 1e-6,
                           "width " + std::to_string(width) + ", split " + std::to_string(split));
    }
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
