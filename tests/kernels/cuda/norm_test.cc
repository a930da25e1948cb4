// Proves that norms, biases and gates on the GPU are what their header says: random shapes, aligned
// and not, in both types, against double precision on the host; and that the bits of a normalised
// row do not depend on its company.
#include "kernels/cuda/norm.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/product_case.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using testing::DeviceArray;

class CudaNormTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EDDY_SKIP_WITHOUT_GPU();
    random_.seed(testing::FreshSeed());
  }
  void Finish() {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  }
  int64_t Pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  DType PickType() { return Pick(0, 1) == 0 ? DType::kF32 : DType::kBF16; }
  std::vector<float> Normal(int64_t size, DType type) {
    std::normal_distribution<float> normal(0.0f, 2.0f);
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) {
      value = normal(random_);
      if (type == DType::kBF16) value = testing::RoundToBf16(value);
    }
    return values;
  }
  // Half a unit of the type, and some of float.
  static double Allowed(DType type, double want) {
    return std::abs(want) * (type == DType::kBF16 ? std::ldexp(1.0, -8) : 0.0) +
           std::abs(want) * 1e-5 + 1e-6;
  }

  std::mt19937_64 random_;
};

const float* Floats(const DeviceArray& array) { return static_cast<const float*>(array.data()); }

TEST_F(CudaNormTest, NormalisesRowsOfAnyWidth) {
  for (int i : testing::Trials(80)) {
    const int64_t rows = Pick(1, 40), gap = Pick(0, 1) * Pick(0, 5);
    const int64_t width = i < 4 ? 16384 - i : Pick(0, 1) == 0 ? 4 * Pick(1, 300) : Pick(1, 1200);
    const DType type = PickType();
    const bool weighted = Pick(0, 4) > 0;
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
    const int64_t stride = width + gap;
    const std::vector<float> x = Normal(rows * stride, DType::kF32);
    const std::vector<float> w = Normal(width, DType::kF32);
    DeviceArray dx(DType::kF32, rows * stride), dw(DType::kF32, width), dy(type, rows * stride);
    dx.Write(x);
    dw.Write(w);
    RunRmsNorm(nullptr, {.rows = rows,
                         .width = width,
                         .x = Floats(dx),
                         .x_stride = stride,
                         .weight = weighted ? Floats(dw) : nullptr,
                         .eps = 1e-3f,
                         .y = dy.data(),
                         .y_stride = stride,
                         .y_type = type});
    Finish();
    const std::vector<float> y = dy.Read();
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < width; ++c) squares += std::pow(double{x[r * stride + c]}, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-3);
      for (int64_t c = 0; c < stride; ++c) {
        if (c >= width) {
          ASSERT_TRUE(std::isnan(y[r * stride + c]));
          continue;
        }
        const double want = x[r * stride + c] * scale * (weighted ? w[c] : 1.0f);
        ASSERT_NEAR(y[r * stride + c], want, Allowed(type, want)) << "row " << r << ", " << c;
      }
    }
  }
}

TEST_F(CudaNormTest, GivesARowTheSameBitsInAnyCompanyPlaceAndAlignment) {
  for (const int64_t width : {1, 7, 64, 1000, 1024, 2816}) {
    const int64_t rows = 67, stride = width + 3;
    const std::vector<float> x = Normal(rows * width, DType::kF32);
    std::vector<float> spread(static_cast<size_t>(rows * stride));
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(x.begin() + r * width, width, spread.begin() + r * stride);
    }
    DeviceArray packed(DType::kF32, rows * width), gaps(DType::kF32, rows * stride);
    packed.Write(x);
    gaps.Write(spread);
    DeviceArray all(DType::kF32, rows * width), one(DType::kF32, width);
    RunRmsNorm(nullptr, {.rows = rows, .width = width, .x = Floats(packed), .y = all.data()});
    for (int64_t r = 0; r < rows; r += 11) {
      RunRmsNorm(nullptr,
                 {.rows = 1, .width = width, .x = Floats(gaps) + r * stride, .y = one.data()});
      Finish();
      const std::vector<float> want = all.Read();
      ASSERT_EQ(one.Read(),
                std::vector<float>(want.begin() + r * width, want.begin() + (r + 1) * width));
    }
  }
}

TEST_F(CudaNormTest, NormalisesInPlace) {
  const int64_t rows = 5, width = 333;
  DeviceArray x(DType::kF32, rows * width), y(DType::kF32, rows * width);
  x.Write(Normal(rows * width, DType::kF32));
  RunRmsNorm(nullptr, {.rows = rows, .width = width, .x = Floats(x), .eps = 1e-5f, .y = y.data()});
  RunRmsNorm(nullptr, {.rows = rows, .width = width, .x = Floats(x), .eps = 1e-5f, .y = x.data()});
  Finish();
  EXPECT_EQ(x.Read(), y.Read());
}

TEST_F(CudaNormTest, AddsABiasToEveryRow) {
  for ([[maybe_unused]] int i : testing::Trials(10)) {
    const int64_t rows = Pick(1, 50), width = Pick(1, 300), stride = width + Pick(0, 3);
    const std::vector<float> y = Normal(rows * stride, DType::kF32);
    const std::vector<float> bias = Normal(width, DType::kF32);
    DeviceArray dy(DType::kF32, rows * stride), db(DType::kF32, width);
    dy.Write(y);
    db.Write(bias);
    RunAddBias(nullptr, {.rows = rows,
                         .width = width,
                         .bias = Floats(db),
                         .y = static_cast<float*>(dy.data()),
                         .y_stride = stride});
    Finish();
    const std::vector<float> got = dy.Read();
    for (int64_t at = 0; at < rows * stride; ++at) {
      const float add = at % stride < width ? bias[at % stride] : 0.0f;
      ASSERT_EQ(got[at], y[at] + add);
    }
  }
}

double Function(GateFunction function, double a) {
  switch (function) {
    case GateFunction::kSilu:
      return a / (1 + std::exp(-a));
    case GateFunction::kSigmoid:
      return 1 / (1 + std::exp(-a));
    case GateFunction::kGelu:
      return a * (1 + std::erf(a / std::sqrt(2.0))) / 2;
  }
  return 0;
}

TEST_F(CudaNormTest, MultipliesByTheActivationOfTheGate) {
  for (int i : testing::Trials(90)) {
    const auto function = static_cast<GateFunction>(i % 3);
    const int64_t rows = Pick(1, 30), width = Pick(0, 1) == 0 ? 8 * Pick(1, 60) : Pick(1, 500);
    const int64_t gap = Pick(0, 1) == 0 ? 0 : Pick(0, 8), stride = width + gap;
    const DType in = PickType(), out = PickType();
    const bool up = Pick(0, 3) > 0, in_place = in == out && Pick(0, 1) == 0;
    const std::vector<float> a = Normal(rows * width, in), b = Normal(rows * stride, in);
    DeviceArray da(in, rows * width), db(in, rows * stride), dy(out, rows * stride);
    da.Write(a);
    db.Write(b);
    DeviceArray& result = in_place ? db : dy;
    RunGate(nullptr, {.function = function,
                      .rows = rows,
                      .width = width,
                      .in_type = in,
                      .gate = da.data(),
                      .up = up ? db.data() : nullptr,
                      .up_stride = stride,
                      .y_type = out,
                      .y = result.data(),
                      .y_stride = stride});
    Finish();
    const std::vector<float> y = result.Read();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const double want = Function(function, a[r * width + c]) * (up ? b[r * stride + c] : 1.0f);
        ASSERT_NEAR(y[r * stride + c], want, Allowed(out, want)) << i;
      }
      for (int64_t c = width; c < stride; ++c) {
        ASSERT_TRUE(in_place ? y[r * stride + c] == b[r * stride + c]
                             : std::isnan(y[r * stride + c]));
      }
    }
  }
}

}  // namespace
}  // namespace eddy
