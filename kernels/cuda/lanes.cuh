// How the lanes of a warp, or of a part of one, share a vector of at most kLanes * kElements
// numbers: each holds kElements of them in registers as floats, in runs of kVector that are read
// and written in one access. `dim` and all addresses must be multiples of kVector.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace eddy {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void Assign(float& to, float x) { to = x; }
__device__ __forceinline__ void Assign(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

// x, which is the same in all lanes of the warp, so that the compiler knows: where it branches on
// such numbers it need not bring lanes together before they exchange something. All lanes call.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Packed {
  T at[kCount];
};

template <int kLanes, int kVector, int kElements>
struct Lanes {
  static_assert(kElements % kVector == 0);
  static constexpr int kAcross = kLanes, kRun = kVector;

  // Which entry of the vector is the lane's `e`th.
  static __device__ __forceinline__ int Index(int lane, int e) {
    return e / kVector * (kLanes * kVector) + lane * kVector + e % kVector;
  }

  // What a lane has read, as it lies in memory: the thread goes on until it is unpacked. In words:
  // the halves of one the compiler would part at once, and wait.
  template <typename T>
  struct Raw {
    static constexpr int kBytes = sizeof(T) * kVector;
    using Word = std::conditional_t<kBytes % 4 == 0, uint32_t, uint16_t>;
    using Run = Packed<Word, kBytes / static_cast<int>(sizeof(Word))>;
    Run run[kElements / kVector];
  };
  // Entries from `dim` on are zeros.
  template <typename T>
  static __device__ __forceinline__ void LoadRaw(const T* from, int dim, int lane, Raw<T>& raw) {
#pragma unroll
    for (int e = 0; e < kElements; e += kVector) {
      const int at = Index(lane, e);
      using Run = typename Raw<T>::Run;
      raw.run[e / kVector] = at < dim ? *reinterpret_cast<const Run*>(from + at) : Run{};
    }
  }
  template <typename T>
  static __device__ __forceinline__ void Unpack(const Raw<T>& raw, float (&x)[kElements]) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const auto& words = raw.run[e / kVector].at;
      const int at = e % kVector;
      if constexpr (sizeof(T) == 4) {
        x[e] = __uint_as_float(words[at]);
      } else if constexpr (sizeof(words[0]) == 2) {
        x[e] = __uint_as_float(static_cast<uint32_t>(words[at]) << 16);
      } else {
        x[e] = __uint_as_float(at % 2 == 0 ? words[at / 2] << 16 : words[at / 2] & 0xffff0000u);
      }
    }
  }

  template <typename T>
  static __device__ __forceinline__ void Load(const T* from, int dim, int lane,
                                              float (&x)[kElements]) {
    Raw<T> raw;
    LoadRaw(from, dim, lane, raw);
    Unpack(raw, x);
  }

  template <typename T>
  static __device__ __forceinline__ void Store(const float (&x)[kElements], int dim, int lane,
                                               T* to) {
#pragma unroll
    for (int e = 0; e < kElements; e += kVector) {
      const int at = Index(lane, e);
      if (at >= dim) continue;
      Packed<T, kVector> run;
#pragma unroll
      for (int i = 0; i < kVector; ++i) Assign(run.at[i], x[e + i]);
      *reinterpret_cast<Packed<T, kVector>*>(to + at) = run;
    }
  }

  // Of all lanes' x, in each of them. `mask`: the lanes that take part, as in __shfl_sync.
  static __device__ __forceinline__ float Sum(float x, unsigned mask = 0xffffffffu) {
#pragma unroll
    for (int other = kLanes / 2; other > 0; other /= 2) x += __shfl_xor_sync(mask, x, other);
    return x;
  }

  // Sum of a[i] b[i], in each lane.
  static __device__ __forceinline__ float Dot(const float (&a)[kElements],
                                              const float (&b)[kElements],
                                              unsigned mask = 0xffffffffu) {
    float sums[kVector] = {};  // chains of their own, so that adds overlap
#pragma unroll
    for (int e = 0; e < kElements; ++e) sums[e % kVector] += a[e] * b[e];
    float sum = sums[0];
#pragma unroll
    for (int i = 1; i < kVector; ++i) sum += sums[i];
    return Sum(sum, mask);
  }
};

}  // namespace eddy
