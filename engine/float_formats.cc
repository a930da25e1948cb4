#include "engine/float_formats.h"

#include <cstring>

#include "base/check.h"

namespace eddy {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

bool IsFinite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7F800000u) != 0x7F800000u; }

// Whether all were finite, before and after.
template <FloatFormat kFrom, DType kTo>
bool Convert(const std::byte* from, int64_t n, std::byte* to) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    float value = 0;
    if constexpr (kFrom == FloatFormat::kF32) value = Load<float>(from + 4 * i);
    if constexpr (kFrom == FloatFormat::kBF16) value = FromBF16(Load<uint16_t>(from + 2 * i));
    if constexpr (kFrom == FloatFormat::kF16) value = FromF16(Load<uint16_t>(from + 2 * i));
    if constexpr (kTo == DType::kF32) {
      finite &= IsFinite(value);
      std::memcpy(to + 4 * i, &value, 4);
    } else {
      const uint16_t rounded = ToBF16(value);
      finite &= IsFinite(FromBF16(rounded));
      std::memcpy(to + 2 * i, &rounded, 2);
    }
  }
  return finite;
}

template <FloatFormat kFrom>
bool ConvertTo(const std::byte* from, int64_t n, DType dtype, std::byte* to) {
  return dtype == DType::kF32 ? Convert<kFrom, DType::kF32>(from, n, to)
                              : Convert<kFrom, DType::kBF16>(from, n, to);
}

}  // namespace

std::optional<FloatFormat> FloatFormatOf(const std::string& dtype) {
  if (dtype == "F32") return FloatFormat::kF32;
  if (dtype == "BF16") return FloatFormat::kBF16;
  if (dtype == "F16") return FloatFormat::kF16;
  return std::nullopt;
}

float FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  // Biases differ by 127 - 15; the largest exponent means infinity or NaN in both.
  const uint32_t wide = exponent == 0x1F ? 0xFFu : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

bool ConvertFloats(FloatFormat format, std::span<const std::byte> from, DType dtype,
                   std::span<std::byte> to) {
  const auto n = static_cast<int64_t>(from.size()) / SizeOf(format);
  EDDY_CHECK(static_cast<int64_t>(from.size()) == n * SizeOf(format));
  EDDY_CHECK(dtype != DType::kI32 && static_cast<int64_t>(to.size()) == n * SizeOf(dtype));
  switch (format) {
    case FloatFormat::kF32:
      return ConvertTo<FloatFormat::kF32>(from.data(), n, dtype, to.data());
    case FloatFormat::kBF16:
      return ConvertTo<FloatFormat::kBF16>(from.data(), n, dtype, to.data());
    case FloatFormat::kF16:
      return ConvertTo<FloatFormat::kF16>(from.data(), n, dtype, to.data());
  }
  return false;
}

bool AllFinite(DType dtype, std::span<const std::byte> from) {
  const auto n = from.size() / static_cast<size_t>(SizeOf(dtype));
  for (size_t i = 0; i < n; ++i) {
    if (dtype == DType::kF32) {
      float value;
      std::memcpy(&value, from.data() + 4 * i, 4);
      if (!std::isfinite(value)) return false;
    } else if (dtype == DType::kBF16) {
      uint16_t bits;
      std::memcpy(&bits, from.data() + 2 * i, 2);
      if (!std::isfinite(FromBF16(bits))) return false;
    }
  }
  return true;
}

}  // namespace eddy
