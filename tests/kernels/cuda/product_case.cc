#include "tests/kernels/cuda/product_case.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

namespace eddy::testing {
namespace {

constexpr float kEps = 1e-5f;

std::vector<float> Normal(std::mt19937_64& random, int64_t size, float scale, DType type) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(size));
  for (float& value : values) {
    value = normal(random);
    if (type == DType::kBF16) value = RoundToBf16(value);
  }
  return values;
}

// Rows with a gap behind each, NaN in it.
std::vector<float> WithGaps(const std::vector<float>& rows, int64_t width, int64_t gap) {
  std::vector<float> spread;
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(width)) {
    spread.insert(spread.end(), rows.begin() + static_cast<int64_t>(at),
                  rows.begin() + static_cast<int64_t>(at) + width);
    spread.insert(spread.end(), static_cast<size_t>(gap), std::numeric_limits<float>::quiet_NaN());
  }
  return spread;
}

}  // namespace

uint64_t FreshSeed() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

float RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return value;
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

DeviceArray::DeviceArray(DType type, int64_t size) : type_(type), size_(size) {
  EXPECT_EQ(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(size * SizeOf(type), 1))),
            cudaSuccess);
  Poison();
}

DeviceArray::~DeviceArray() { cudaFree(data_); }

void DeviceArray::Poison() {
  EXPECT_EQ(cudaMemset(data_, 0xff, static_cast<size_t>(size_ * SizeOf(type_))), cudaSuccess);
}

void DeviceArray::Write(const std::vector<float>& values) {
  ASSERT_LE(static_cast<int64_t>(values.size()), size_);
  if (type_ == DType::kF32) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * 4, cudaMemcpyHostToDevice),
              cudaSuccess);
    return;
  }
  std::vector<uint16_t> halves;
  for (const float value : values) {
    halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(RoundToBf16(value)) >> 16));
  }
  EXPECT_EQ(cudaMemcpy(data_, halves.data(), halves.size() * 2, cudaMemcpyHostToDevice),
            cudaSuccess);
}

std::vector<float> DeviceArray::Read() const {
  std::vector<float> values(static_cast<size_t>(size_));
  if (type_ == DType::kF32) {
    EXPECT_EQ(cudaMemcpy(values.data(), data_, values.size() * 4, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }
  std::vector<uint16_t> halves(values.size());
  EXPECT_EQ(cudaMemcpy(halves.data(), data_, halves.size() * 2, cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
  }
  return values;
}

std::string ProductOptions::Words() const {
  const auto word = [](DType t) { return t == DType::kBF16 ? "bf16" : "f32"; };
  return std::to_string(rows) + " rows, " + std::to_string(in) + " to " + std::to_string(out) +
         ", " + word(type) + " to " + word(y_type) + (accumulate ? ", accumulate" : "") +
         (bias ? ", bias" : "") + (norm ? ", norm" : "") + (gate ? ", gate" : "") + ", gaps " +
         std::to_string(x_gap) + " and " + std::to_string(y_gap);
}

ProductCase::ProductCase(const ProductOptions& options, uint64_t seed)
    : o_(options),
      device_x_(options.norm ? DType::kF32 : options.type, o_.rows * (o_.in + o_.x_gap)),
      device_w_(options.type, o_.out * o_.in * (options.gate ? 2 : 1)),
      device_bias_(DType::kF32, o_.out),
      device_norm_(DType::kF32, o_.in),
      device_y_(options.y_type, o_.rows * (o_.out + o_.y_gap)),
      device_normed_(options.type, o_.rows * o_.in),
      device_room_(options.y_type, o_.rows * o_.out * 2) {
  std::mt19937_64 random(seed);
  const float scale = 1.0f / std::sqrt(static_cast<float>(o_.in));
  x_ = Normal(random, o_.rows * o_.in, 1.0f, o_.norm ? DType::kF32 : o_.type);
  w_ = Normal(random, o_.out * o_.in, scale, o_.type);
  if (o_.gate) gate_ = Normal(random, o_.out * o_.in, scale, o_.type);
  bias_ = Normal(random, o_.out, 1.0f, DType::kF32);
  norm_ = Normal(random, o_.in, 1.0f, DType::kF32);
  before_ = Normal(random, o_.rows * o_.out, 1.0f, DType::kF32);
  device_x_.Write(WithGaps(x_, o_.in, o_.x_gap));
  gate_first_ = random() % 2 == 0;
  std::vector<float> both = gate_first_ ? gate_ : w_;
  const std::vector<float>& behind = gate_first_ ? w_ : gate_;
  both.insert(both.end(), behind.begin(), behind.end());
  device_w_.Write(both);
  device_bias_.Write(bias_);
  device_norm_.Write(norm_);
}

CudaProduct ProductCase::Rows(int64_t first, int64_t rows) {
  rows_ = rows;
  device_y_.Poison();
  if (o_.accumulate) {
    const auto from = before_.begin() + first * o_.out;
    device_y_.Write(WithGaps({from, from + rows * o_.out}, o_.out, o_.y_gap));
  }
  const int64_t x_stride = o_.in + o_.x_gap;
  auto* const front = static_cast<std::byte*>(device_w_.data());
  std::byte* const behind = front + o_.out * o_.in * SizeOf(o_.type);
  return {
      .rows = rows,
      .in = o_.in,
      .out = o_.out,
      .fixed_rows = rows,
      .type = o_.type,
      .x = static_cast<std::byte*>(device_x_.data()) + first * x_stride * SizeOf(device_x_.type()),
      .x_stride = x_stride,
      .w = o_.gate && gate_first_ ? behind : front,
      .y = device_y_.data(),
      .y_stride = o_.out + o_.y_gap,
      .y_type = o_.y_type,
      .accumulate = o_.accumulate,
      .bias = o_.bias ? static_cast<const float*>(device_bias_.data()) : nullptr,
      .norm = o_.norm ? static_cast<const float*>(device_norm_.data()) : nullptr,
      .norm_eps = kEps,
      .normed = device_normed_.data(),
      .gate = !o_.gate      ? nullptr
              : gate_first_ ? front
                            : behind,
      .gate_room = device_room_.data()};
}

std::vector<float> ProductCase::Result() {
  const std::vector<float> all = device_y_.Read();
  std::vector<float> result;
  for (int64_t at = 0; at < static_cast<int64_t>(all.size()); ++at) {
    const int64_t row = at / (o_.out + o_.y_gap), column = at % (o_.out + o_.y_gap);
    if (row < rows_ && column < o_.out) {
      result.push_back(all[static_cast<size_t>(at)]);
    } else {
      EXPECT_TRUE(std::isnan(all[static_cast<size_t>(at)])) << "written beyond the rows";
      if (!std::isnan(all[static_cast<size_t>(at)])) break;
    }
  }
  return result;
}

// Allowed: products of two bfloat16 or float are summed in float, whatever the order, so an element
// may be off by some 2^-22 of the sum of their absolute values (random rounding; the matrix unit
// truncates). A normalised element may be rounded the other way in bfloat16: 2^-8 of the largest
// product, a few times. A bfloat16 result is rounded once, or twice with a gate.
double ProductCase::Error(int64_t first, const std::vector<float>& got) const {
  double worst = 0;
  const bool half = o_.type == DType::kBF16;
  std::vector<double> x(static_cast<size_t>(o_.in));
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t row = first + static_cast<int64_t>(i) / o_.out;
    const int64_t out = static_cast<int64_t>(i) % o_.out;
    if (out == 0) {
      double squares = 0;
      for (int64_t k = 0; k < o_.in; ++k) squares += std::pow(double{x_[row * o_.in + k]}, 2);
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(o_.in) + double{kEps});
      for (int64_t k = 0; k < o_.in; ++k) {
        double& to = x[static_cast<size_t>(k)];
        to = x_[row * o_.in + k];
        if (o_.norm) to *= scale * norm_[k];
        if (o_.norm && half) to = RoundToBf16(static_cast<float>(to));
      }
    }
    struct Sum {
      double value = 0, size = 0, largest = 0;
    };
    const auto sum = [&](const std::vector<float>& w) {
      Sum s;
      for (int64_t k = 0; k < o_.in; ++k) {
        const double product = x[static_cast<size_t>(k)] * w[out * o_.in + k];
        s.value += product;
        s.size += std::abs(product);
        s.largest = std::max(s.largest, std::abs(product));
      }
      return s;
    };
    const double exact = std::ldexp(1.0, -20), rounding = std::ldexp(1.0, -8);
    const auto allowance = [&](const Sum& s) {
      return exact * s.size + (o_.norm && half ? 3 * rounding * s.largest : 0.0);
    };
    const Sum up = sum(w_);
    double want = up.value, allowed = allowance(up);
    if (o_.gate) {
      const Sum gate = sum(gate_);
      const double silu = gate.value / (1 + std::exp(-gate.value));
      want *= silu;
      // The slope of silu is at most 1.1.
      allowed = allowed * std::abs(silu) + 1.1 * allowance(gate) * std::abs(up.value) + 1e-7;
      if (o_.y_type == DType::kBF16)
        allowed += 2.2 * rounding * std::abs(up.value) * (std::abs(silu) + std::abs(gate.value));
    }
    if (o_.bias) want += bias_[out];
    if (o_.accumulate) want += before_[row * o_.out + out];
    allowed += exact * std::abs(want) + 1e-7;
    if (o_.y_type == DType::kBF16) allowed += rounding * std::abs(want);
    const double error = std::abs(got[i] - want) / allowed;
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace eddy::testing
