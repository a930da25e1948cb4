// Proves that conversions of weights are exact where they can be, rounded to nearest where not, and
// find every number that is not finite: all 65536 patterns of both half formats, against their
// definitions.
#include "engine/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace eddy {
namespace {

TEST(FloatFormats, ReadEveryHalfExactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int fraction = static_cast<int>(bits & 1023);
    double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (bits >> 15 != 0) expected = -expected;
    const float value = FromF16(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_FALSE(std::isfinite(value));
      EXPECT_EQ(std::isnan(value), fraction != 0);
    } else {
      EXPECT_EQ(static_cast<double>(value), expected) << bits;
      EXPECT_EQ(std::signbit(value), bits >> 15 != 0);
    }
  }
}

TEST(FloatFormats, BringBF16ThereAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = FromBF16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FromBF16(ToBF16(value))));
    } else {
      EXPECT_EQ(ToBF16(value), bits);
    }
  }
}

TEST(FloatFormats, RoundToTheNearestAndTiesToEven) {
  EXPECT_EQ(FromBF16(ToBF16(1.0f + 0x1p-8f)), 1.0f);            // a tie, down to even
  EXPECT_EQ(FromBF16(ToBF16(1.0f + 0x3p-8f)), 1.0f + 0x1p-6f);  // a tie, up to even
  EXPECT_EQ(FromBF16(ToBF16(1.0f + 0x1.1p-8f)), 1.0f + 0x1p-7f);
  EXPECT_TRUE(std::isinf(FromBF16(ToBF16(3.4e38f))));
}

TEST(FloatFormats, TellWhetherAllIsFinite) {
  std::vector<float> values = {1, -2, 0x1p-140f, 3.4e38f};
  std::vector<std::byte> out(16);
  const auto convert = [&](DType to) {
    return ConvertFloats(FloatFormat::kF32, std::as_bytes(std::span(values)), to,
                         std::span(out).first(static_cast<size_t>(4 * SizeOf(to))));
  };
  EXPECT_TRUE(convert(DType::kF32));
  EXPECT_FALSE(convert(DType::kBF16));  // 3.4e38 would become infinite
  values[3] = 1;
  EXPECT_TRUE(convert(DType::kBF16));
  for (float bad : {NAN, -INFINITY}) {
    values[2] = bad;
    EXPECT_FALSE(convert(DType::kF32));
    EXPECT_FALSE(convert(DType::kBF16));
  }
}

TEST(FloatFormats, ReadFromOddAddresses) {
  std::vector<std::byte> bytes(9);
  const float values[2] = {1.5f, -0.25f};
  std::memcpy(bytes.data() + 1, values, 8);
  float out[2];
  EXPECT_TRUE(ConvertFloats(FloatFormat::kF32, std::span(bytes).subspan(1), DType::kF32,
                            std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(out[0], 1.5f);
  EXPECT_EQ(out[1], -0.25f);
}

}  // namespace
}  // namespace eddy
