// bfloat16, as weights and states are held: the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

namespace eddy {

inline float FromBF16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To the nearest, ties to even; beyond the largest it is infinity. NaN stays NaN.
inline uint16_t ToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  // Adding just under half of the last kept bit, or half if that bit is odd, carries where it must.
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  // A NaN keeps its sign and upper bits, and stays one where these are all zero.
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

inline void FromBF16(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = FromBF16(from[i]);
}

inline void ToBF16(const float* from, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToBF16(from[i]);
}

}  // namespace eddy
