// Proves that the convolution on the GPU computes its formula (float64, and the CPU twin) on random
// shapes and types, for sequences cut into steps at random; that it touches nothing but the records
// of the step; and that a row's bits do not depend on its company or on the cut.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/rules/short_conv/short_conv.h"
#include "kernels/rules/short_conv/short_conv_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

struct Case {
  int64_t channels, width, in_stride, out_stride;
  DType in_type, taps_type, out_type;
  Activation activation;
  Floats taps, bias, input_bias;  // biases may be empty
  std::vector<Floats> x;          // per sequence [rows, channels]
  std::vector<int> rows;
};

Case RandomCase(Random& random) {
  Case c;
  const auto type = [&] { return Pick(random, 0, 1) == 0 ? DType::kF32 : DType::kBF16; };
  c.channels = Pick(random, 0, 1) == 0 ? 4 * Pick(random, 1, 200) : Pick(random, 1, 300);
  c.width = Pick(random, 1, 8);
  const bool fours = Pick(random, 0, 1) == 0;
  c.in_stride = c.channels + (fours ? 4 * Pick(random, 0, 3) : Pick(random, 0, 9));
  c.out_stride = c.channels + (fours ? 4 * Pick(random, 0, 3) : Pick(random, 0, 9));
  c.in_type = type(), c.taps_type = type(), c.out_type = type();
  c.activation = static_cast<Activation>(Pick(random, 0, 4));
  c.taps = Uniform(random, c.channels * c.width, -1, 1);
  for (float& tap : c.taps) tap = RoundTo(c.taps_type, tap);
  if (Pick(random, 0, 1) == 0) c.bias = Uniform(random, c.channels, -1, 1);
  if (Pick(random, 0, 2) == 0) c.input_bias = Uniform(random, c.channels, -1, 1);
  for (int64_t i = Pick(random, 1, 7); i > 0; --i) {
    c.rows.push_back(static_cast<int>(Pick(random, 0, 2) == 0 ? 1 : Pick(random, 1, 200)));
    c.x.push_back(Uniform(random, c.rows.back() * c.channels, -2, 2));
    for (float& x : c.x.back()) x = RoundTo(c.in_type, x);
  }
  return c;
}

double Exact(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kEluPlus1:
      return x > 0 ? x + 1 : std::exp(x);
  }
  return x;
}

// [rows, channels] of one sequence, and its history [width - 1, channels] at the end.
std::vector<double> Exact(const Case& c, const Floats& x, int rows, std::vector<double>* history) {
  const auto z = [&](int t, int64_t ch) {
    if (t < 0) return 0.0;
    return x[t * c.channels + ch] + (c.input_bias.empty() ? 0.0 : c.input_bias[ch]);
  };
  std::vector<double> y;
  for (int t = 0; t < rows; ++t) {
    for (int64_t ch = 0; ch < c.channels; ++ch) {
      double sum = c.bias.empty() ? 0 : c.bias[ch];
      for (int j = 0; j < c.width; ++j) {
        sum += c.taps[ch * c.width + j] * z(t - static_cast<int>(c.width) + 1 + j, ch);
      }
      y.push_back(Exact(c.activation, sum));
    }
  }
  for (int j = 0; j < c.width - 1; ++j) {
    for (int64_t ch = 0; ch < c.channels; ++ch) {
      history->push_back(z(rows - static_cast<int>(c.width) + 1 + j, ch));
    }
  }
  return y;
}

// Runs the plans; the outputs of each sequence.
std::vector<Floats> RunPlans(const Case& c, const std::vector<Plan>& plans, Pool& pool) {
  for (size_t i = 0; i < c.rows.size() && c.width > 1; ++i) {
    std::ranges::fill(pool.At(static_cast<int64_t>(i) + 1, 0), 0.0f);
  }
  pool.Write();
  std::vector<Floats> out;
  for (const Floats& x : c.x) out.emplace_back(x.size(), kNan);
  const DeviceBytes taps = UploadAs(c.taps_type, c.taps), bias = Upload(c.bias),
                    input_bias = Upload(c.input_bias);
  for (const Plan& plan : plans) {
    const DeviceStep device(plan);
    const DeviceBytes x = UploadAs(c.in_type, Gather(plan, c.x, c.channels, c.in_stride));
    const DeviceBytes y(plan.rows() * c.out_stride * SizeOf(c.out_type));
    ShortConvCuda(device.step, {.channels = c.channels,
                                .width = c.width,
                                .x = x.as(),
                                .x_type = c.in_type,
                                .x_stride = c.in_stride,
                                .input_bias = c.input_bias.empty() ? nullptr : input_bias.as(),
                                .taps = taps.as(),
                                .taps_type = c.taps_type,
                                .bias = c.bias.empty() ? nullptr : bias.as(),
                                .activation = c.activation,
                                .state = pool.Field(0),
                                .out = y.as(),
                                .out_type = c.out_type,
                                .out_stride = c.out_stride});
    Check(cudaDeviceSynchronize());
    Scatter(plan, ReadAs(c.out_type, y), c.channels, c.out_stride, out);
  }
  pool.Read();
  return out;
}

TEST(ShortConvCuda, EqualsItsFormulaInAnyCutAndCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(60)) {
    const Case c = RandomCase(random);
    const std::string what = "trial " + std::to_string(trial) + ", channels " +
                             std::to_string(c.channels) + ", width " + std::to_string(c.width);
    const int64_t slots = std::ssize(c.rows);
    Pool pool(slots + 2, {(c.width - 1) * c.channels}, 4, Pick(random, 0, 1) * 5 + 4);
    const std::vector<Floats> out = RunPlans(c, RandomPlans(random, c.rows), pool);
    EXPECT_TRUE(pool.OthersAreUntouched(slots)) << what;
    for (int i = 0; i < slots; ++i) {
      std::vector<double> history;
      const auto want = Exact(c, c.x[i], c.rows[i], &history);
      EXPECT_LT(Distance(out[i], want), c.out_type == DType::kF32 ? 1e-6 : 4e-3) << what;
      if (c.width > 1) EXPECT_LT(Distance(pool.At(i + 1, 0), history), 1e-6) << what;
    }
    // Alone and in one piece: the same bits.
    Pool other(slots, {(c.width - 1) * c.channels}, 4, 0);
    std::vector<Plan> alone(c.rows.size());
    for (int i = 0; i < slots; ++i) {
      alone[i].Add(i, 0, c.rows[i]);
      alone[i].single = c.rows[i] == 1;
    }
    const std::vector<Floats> again = RunPlans(c, alone, other);
    for (int i = 0; i < slots; ++i) {
      // Other alignments take another kernel, but sums in the same order.
      EXPECT_TRUE(SameBits(out[i], again[i])) << what;
      EXPECT_TRUE(SameBits(pool.At(i + 1, 0), other.At(i + 1, 0))) << what;
    }
  }
}

TEST(ShortConvCuda, AgreesWithItsTwin) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  Case c = RandomCase(random);
  c.width = 4;
  c.in_type = c.taps_type = c.out_type = DType::kF32;
  c.activation = Activation::kNone;
  c.input_bias.clear();
  c.taps = Uniform(random, c.channels * c.width, -1, 1);
  Pool pool(std::ssize(c.rows), {3 * c.channels}, 4, 0);
  const std::vector<Floats> out = RunPlans(c, RandomPlans(random, c.rows), pool);
  const Floats taps = ShortConvTaps({.data = c.taps.data(), .shape = {c.channels, 4, 1, 1}});
  for (size_t i = 0; i < c.rows.size(); ++i) {
    Floats state(3 * c.channels, 0.0f), want(c.x[i].size());
    const int32_t starts[] = {0, c.rows[i]}, slot = 1;
    ShortConvCpu({.rows = c.rows[i], .sequences = 1, .row_start = starts, .slots = &slot},
                 {.channels = c.channels,
                  .width = 4,
                  .x = c.x[i].data(),
                  .taps = taps.data(),
                  .bias = c.bias.empty() ? nullptr : c.bias.data(),
                  // Slot 1 is at `state`.
                  .state = {.base = reinterpret_cast<std::byte*>(state.data()) - 64, .stride = 64},
                  .out = want.data()});
    EXPECT_LT(Distance(out[i], std::vector<double>(want.begin(), want.end())), 1e-6);
  }
}

}  // namespace
}  // namespace eddy
