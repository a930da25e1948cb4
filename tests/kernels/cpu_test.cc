// Proves products and vector primitives against float64 for all lengths around the vector widths;
// that a row of a product has the same bits in every company; and what the device says of memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd.h"
#include "kernels/device.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

using testing::ExpectClose;
using testing::RandomRows;

std::vector<double> ReferenceProduct(const std::vector<float>& x, const std::vector<float>& w,
                                     size_t rows, size_t in, size_t out) {
  std::vector<double> y(rows * out);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < out; ++o) {
      for (size_t i = 0; i < in; ++i) {
        y[r * out + o] += static_cast<double>(x[r * in + i]) * static_cast<double>(w[o * in + i]);
      }
    }
  }
  return y;
}

TEST(Linear, EqualsTheFormulaOnBothSidesOfTheSwitch) {
  const uint32_t seed = testing::TestSeed();
  // More than two threads: many rows go to BLAS.
  for (int threads : {1, 4}) {
    SetGemmThreads(threads);
    for (int64_t rows : {1, 2, 3, 4, 7, 33, 64, 65, 70}) {
      for (const auto& [in, out] : {std::pair{1, 1}, {3, 5}, {16, 4}, {37, 6}, {64, 129}}) {
        const std::vector<float> x = RandomRows(rows, in, seed), w = RandomRows(out, in, seed + 1);
        std::vector<double> y = ReferenceProduct(x, w, static_cast<size_t>(rows),
                                                 static_cast<size_t>(in), static_cast<size_t>(out));
        std::vector<float> got(y.size(), 1.0f);
        LinearArgs args{
            .rows = rows, .in = in, .out = out, .x = x.data(), .w = w.data(), .y = got.data()};
        Linear(args);
        ExpectClose(got, y, 1e-6, "overwrites");
        args.accumulate = true;
        Linear(args);
        for (double& value : y) value *= 2;
        ExpectClose(got, y, 2e-6, "accumulates");
        const std::vector<float> bias = RandomRows(1, out, seed + 2);
        args.bias = bias.data();
        Linear(args);
        for (size_t i = 0; i < y.size(); ++i) {
          y[i] = 1.5 * y[i] + static_cast<double>(bias[i % static_cast<size_t>(out)]);
        }
        ExpectClose(got, y, 3e-6, "adds the bias");
      }
    }
  }
  SetGemmThreads(1);
}

TEST(Product, GivesARowTheSameBitsInEveryCompany) {
  const uint32_t seed = testing::TestSeed();
  for (const auto& [in, out] : {std::pair{3, 5}, {37, 6}, {256, 66}, {300, 3}}) {
    constexpr int64_t kRows = 75;
    const std::vector<float> x = RandomRows(kRows, in, seed), w = RandomRows(out, in, seed + 1);
    std::vector<float> together(static_cast<size_t>(kRows * out));
    simd::ProductArgs args{
        .rows = kRows, .in = in, .out = out, .x = x.data(), .w = w.data(), .y = together.data()};
    simd::Product(args);
    for (int64_t row = 0; row < kRows; ++row) {
      std::vector<float> alone(static_cast<size_t>(out));
      args.rows = 1;
      args.x = x.data() + row * in;
      args.y = alone.data();
      simd::Product(args);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * out))
          << "row " << row << ", EDDY_TEST_SEED=" << seed;
    }
  }
}

TEST(Gemm, ScalesTransposesAndSolves) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};  // [2, 3], or [3, 2] transposed
  const std::vector<float> b = {1, 0, 2, 1};        // [2, 2]
  std::vector<float> c = {1, 1, 1, 1, 1, 1};        // [3, 2]
  Gemm({.m = 3,
        .n = 2,
        .k = 2,
        .alpha = 2,
        .a = {.data = a.data(), .stride = 3, .transposed = true},
        .b = {.data = b.data(), .stride = 2},
        .beta = 10,
        .c = {.data = c.data(), .stride = 2}});
  EXPECT_EQ(c, (std::vector<float>{28, 18, 34, 20, 40, 22}));
  // (I + X) n = b with X = [[., .], [3, .]]; what is not below the diagonal is not read.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {nan, nan, 3, nan};
  std::vector<float> n = {1, 2, 10, 20};
  SolveUnitLower({.data = x.data(), .stride = 2}, {.data = n.data(), .stride = 2}, 2, 2);
  EXPECT_EQ(n, (std::vector<float>{1, 2, 7, 14}));
}

using InPlace = void (*)(float*, int64_t);

void ExpectFunction(InPlace got, double (*expected)(double), const char* name) {
  for (int64_t n = 0; n < 70; ++n) {
    std::vector<float> x;
    for (int64_t i = 0; i < n; ++i) x.push_back(0.7f * static_cast<float>(i * 37 % 101 - 50));
    std::vector<float> y = x;
    got(y.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = expected(static_cast<double>(x[i]));
      EXPECT_NEAR(y[i], value, 4e-7 * std::max(std::abs(value), 1e-3))
          << name << " of " << x[i] << ", length " << n;
    }
  }
}

TEST(Simd, FunctionsEqualFloat64) {
  ExpectFunction(
      simd::Exp, [](double x) { return std::exp(x); }, "exp");
  ExpectFunction(
      simd::Sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, "sigmoid");
  ExpectFunction(
      simd::Silu, [](double x) { return x / (1 + std::exp(-x)); }, "silu");
  ExpectFunction(
      simd::Softplus, [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); }, "softplus");
}

TEST(Simd, SaturatesInsteadOfFailing) {
  std::vector<float> x(16, 200.0f);
  std::vector<float> y(16, -200.0f);
  simd::Sigmoid(x.data(), 16);
  simd::Sigmoid(y.data(), 16);
  for (float value : x) EXPECT_EQ(value, 1.0f);
  for (float value : y) EXPECT_NEAR(value, 0.0f, 1e-37f);
  std::fill(y.begin(), y.end(), -200.0f);
  simd::Silu(y.data(), 16);
  for (float value : y) EXPECT_NEAR(value, 0.0f, 1e-35f);
  simd::Exp(x.data(), 16);
  for (float value : x) EXPECT_NEAR(value, std::exp(1.0f), 1e-6f);
}

TEST(Simd, ReductionsAndUpdatesEqualFloat64AtEveryLength) {
  const uint32_t seed = testing::TestSeed();
  for (int64_t n = 1; n < 70; ++n) {
    const std::vector<float> a = RandomRows(1, n, seed), b = RandomRows(1, n, seed + 1);
    double dot = 0, sum = 0, square = 0;
    std::vector<double> scaled, product, normed, gated, gated_sigmoid;
    for (size_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
      dot += x * y;
      sum += x;
      square += x * x;
      scaled.push_back(2.5 * (y + 3.0 * x));
      product.push_back(x * y + x * y);
      gated.push_back(x * y / (1 + std::exp(-y)));
      gated_sigmoid.push_back(x / (1 + std::exp(-y)));
    }
    for (size_t i = 0; i < a.size(); ++i) {
      normed.push_back(static_cast<double>(a[i]) * static_cast<double>(b[i]) /
                       std::sqrt(square / static_cast<double>(n) + 1e-3));
    }
    EXPECT_NEAR(simd::Dot(a.data(), b.data(), n), dot, 1e-5);
    EXPECT_NEAR(simd::Sum(a.data(), n), sum, 1e-5);
    EXPECT_NEAR(simd::SumOfSquares(a.data(), n), square, 2e-5);
    std::vector<float> y = b;
    simd::AddScaled(3.0f, a.data(), y.data(), n);
    simd::Scale(2.5f, y.data(), n);
    ExpectClose(y, scaled, 1e-6, "add scaled");
    simd::Multiply(a.data(), b.data(), y.data(), n);
    simd::MultiplyAdd(a.data(), b.data(), y.data(), n);
    ExpectClose(y, product, 1e-6, "multiply");
    simd::RmsNorm(a.data(), b.data(), 1e-3f, y.data(), n);
    ExpectClose(y, normed, 1e-6, "norm");
    y = a;
    simd::MultiplySilu(b.data(), y.data(), n);
    ExpectClose(y, gated, 1e-6, "silu gate");
    y = a;
    simd::MultiplySigmoid(b.data(), y.data(), n);
    ExpectClose(y, gated_sigmoid, 1e-6, "sigmoid gate");
  }
}

TEST(CpuDevice, CopiesAndRecordsAndTellsOfItself) {
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  EXPECT_EQ(device->backend(), "cpu");
  EXPECT_NE(device->description().find("1 thread"), std::string::npos);
  EXPECT_GT(device->free_bytes(), 0);
  const Buffer buffer = device->Allocate(12);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  const std::vector<float> in = {1, 2, 3};
  std::vector<float> out(3);
  device->Upload(buffer.data(), std::as_bytes(std::span(in)));
  device->Copy(buffer.data(), static_cast<float*>(buffer.data()) + 1, 8);
  device->Download(std::as_writable_bytes(std::span(out)), buffer.data());
  EXPECT_EQ(out, (std::vector<float>{2, 3, 3}));
  EXPECT_FALSE(device->Allocate(int64_t{1} << 60)) << "memory that nobody has";
  int runs = 0;
  const std::unique_ptr<Program> program = device->Record([&] { ++runs; });
  EXPECT_EQ(runs, 0);
  program->Run();
  program->Run();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(device->Finish(), std::nullopt);
}

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest()
      : root_(std::filesystem::temp_directory_path() /
              ("eddy_memory_test." + std::to_string(getpid()))) {}
  ~MemoryTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  const std::filesystem::path root_;
};

TEST_F(MemoryTest, TakesTheLesserOfSystemAndControlGroup) {
  EXPECT_EQ(AvailableMemory(root_), 0) << "a system that does not tell";
  EXPECT_EQ(ProcessorName(root_), "unknown processor");
  Write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    4000 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 4000 * 1024);
  Write("sys/fs/cgroup/memory.max", "max\n");
  Write("sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(AvailableMemory(root_), 4000 * 1024) << "no limit";
  Write("sys/fs/cgroup/memory.max", "3000\n");
  EXPECT_EQ(AvailableMemory(root_), 2000);
  Write("sys/fs/cgroup/memory.current", "3001\n");
  EXPECT_EQ(AvailableMemory(root_), 0) << "over the limit already";
  Write("sys/fs/cgroup/memory.max", "max\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
  EXPECT_EQ(AvailableMemory(root_), 400) << "version 1";
  Write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Abacus 3\n");
  EXPECT_EQ(ProcessorName(root_), "Abacus 3");
}

}  // namespace
}  // namespace eddy
