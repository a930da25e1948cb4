// The floating-point formats in which weights come, and those in which devices take them.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/bf16.h"
#include "kernels/tensor.h"

namespace eddy {

enum class FloatFormat { kF32, kBF16, kF16 };

// Nothing for a dtype of a safetensors file that is not one of them.
std::optional<FloatFormat> FloatFormatOf(const std::string& dtype);
constexpr int64_t SizeOf(FloatFormat format) { return format == FloatFormat::kF32 ? 4 : 2; }

float FromF16(uint16_t bits);  // exact

// Converts all of `from`, which need not be aligned, to `to` (kF32 or kBF16). False if one of the
// numbers is NaN or infinite, or becomes so; then `to` holds nothing of use.
// REQUIRES: both are whole numbers of elements, and as many.
bool ConvertFloats(FloatFormat format, std::span<const std::byte> from, DType dtype,
                   std::span<std::byte> to);

// Whether no element of `from`, which need not be aligned, is NaN or infinite; whole numbers are
// finite.
bool AllFinite(DType dtype, std::span<const std::byte> from);

}  // namespace eddy
