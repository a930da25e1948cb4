// Neighbouring numbers of S on their way between a record and registers.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace eddy::delta {

// kVec of them as the record holds them, in one access; streaming, since a step touches them once.
// T: float or __nv_bfloat16.
template <typename T, int kVec>
struct Piece {
  static constexpr bool kHalf = std::is_same_v<T, __nv_bfloat16>;
  static constexpr int kBytes = kVec * sizeof(T), kWords = (kBytes + 3) / 4;
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  uint32_t words[kWords] = {};  // all zero is kVec times 0

  __device__ void Load(const T* from) {
    if constexpr (kBytes == 16) {
      const uint4 x = __ldcs(reinterpret_cast<const uint4*>(from));
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else if constexpr (kBytes == 8) {
      const uint2 x = __ldcs(reinterpret_cast<const uint2*>(from));
      words[0] = x.x, words[1] = x.y;
    } else if constexpr (kBytes == 4) {
      words[0] = __ldcs(reinterpret_cast<const unsigned*>(from));
    } else {
      words[0] = __ldcs(reinterpret_cast<const unsigned short*>(from));
    }
  }

  __device__ void Store(T* to) const {
    if constexpr (kBytes == 16) {
      __stcs(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
    } else if constexpr (kBytes == 8) {
      __stcs(reinterpret_cast<uint2*>(to), make_uint2(words[0], words[1]));
    } else if constexpr (kBytes == 4) {
      __stcs(reinterpret_cast<unsigned*>(to), words[0]);
    } else {
      __stcs(reinterpret_cast<unsigned short*>(to), static_cast<unsigned short>(words[0]));
    }
  }

  __device__ float Number(int i) const {
    if constexpr (!kHalf) return __uint_as_float(words[i]);
    // A bfloat16 is the upper half of a float; the first of two lies in the lower half of a word.
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }

  __device__ void Widen(float (&to)[kVec]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = Number(i);
  }

  // To the nearest, ties to even.
  __device__ void Set(const float (&from)[kVec]) {
    if constexpr (!kHalf) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) words[i] = __float_as_uint(from[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const float high = 2 * i + 1 < kVec ? from[(2 * i + 1) % kVec] : 0.0f;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], high);
        words[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
  }
};

}  // namespace eddy::delta
