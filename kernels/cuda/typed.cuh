// Device code: numbers that lie in memory as float or bfloat16, which is known at run time only. In
// registers everything is float. The branch on the type is the same in all threads.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/tensor.h"

namespace eddy {

// kVec neighbours.
template <int kVec>
struct Floats {
  float v[kVec];
};

// x[index .. index + kVec). kVec 4 wants index, and so the address, a multiple of 4 elements.
template <int kVec>
__device__ inline Floats<kVec> LoadFloats(const float* x, int64_t index) {
  Floats<kVec> r;
  if constexpr (kVec == 4) {
    const float4 f = *reinterpret_cast<const float4*>(x + index);
    r.v[0] = f.x, r.v[1] = f.y, r.v[2] = f.z, r.v[3] = f.w;
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) r.v[i] = x[index + i];
  }
  return r;
}

// The same where kVec neighbours, also two, are known to be aligned, as in shared memory.
template <int kVec>
__device__ inline Floats<kVec> LoadShared(const float* x) {
  if constexpr (kVec == 2) {
    const float2 f = *reinterpret_cast<const float2*>(x);
    return {f.x, f.y};
  } else {
    return LoadFloats<kVec>(x, 0);
  }
}

template <int kVec>
__device__ inline void StoreFloats(float* x, int64_t index, const Floats<kVec>& a) {
  if constexpr (kVec == 4) {
    *reinterpret_cast<float4*>(x + index) = make_float4(a.v[0], a.v[1], a.v[2], a.v[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[index + i] = a.v[i];
  }
}

// The same for what a step touches only once, such as states: it should leave the cache first.
template <int kVec>
__device__ inline Floats<kVec> LoadOnce(const float* x, int64_t index) {
  Floats<kVec> r;
  if constexpr (kVec == 4) {
    const float4 f = __ldcs(reinterpret_cast<const float4*>(x + index));
    r.v[0] = f.x, r.v[1] = f.y, r.v[2] = f.z, r.v[3] = f.w;
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) r.v[i] = __ldcs(x + index + i);
  }
  return r;
}

template <int kVec>
__device__ inline void StoreOnce(float* x, int64_t index, const Floats<kVec>& a) {
  if constexpr (kVec == 4) {
    __stcs(reinterpret_cast<float4*>(x + index), make_float4(a.v[0], a.v[1], a.v[2], a.v[3]));
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) __stcs(x + index + i, a.v[i]);
  }
}

template <int kVec>
__device__ inline Floats<kVec> LoadTyped(const void* x, DType type, int64_t index) {
  if (type == DType::kF32) return LoadFloats<kVec>(static_cast<const float*>(x), index);
  const auto* b = static_cast<const __nv_bfloat16*>(x) + index;
  Floats<kVec> r;
  if constexpr (kVec == 4) {
    const uint2 raw = *reinterpret_cast<const uint2*>(b);
    // A bfloat16 is the upper half of a float; the first of two lies in the lower half of a word.
    r.v[0] = __uint_as_float(raw.x << 16), r.v[1] = __uint_as_float(raw.x & 0xffff0000u);
    r.v[2] = __uint_as_float(raw.y << 16), r.v[3] = __uint_as_float(raw.y & 0xffff0000u);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) r.v[i] = __bfloat162float(b[i]);
  }
  return r;
}

template <int kVec>
__device__ inline void StoreTyped(void* x, DType type, int64_t index, const Floats<kVec>& a) {
  if (type == DType::kF32) return StoreFloats<kVec>(static_cast<float*>(x), index, a);
  auto* b = static_cast<__nv_bfloat16*>(x) + index;
  if constexpr (kVec == 4) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(a.v[0], a.v[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(a.v[2], a.v[3]);
    *reinterpret_cast<uint2*>(b) = make_uint2(*reinterpret_cast<const uint32_t*>(&low),
                                              *reinterpret_cast<const uint32_t*>(&high));
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) b[i] = __float2bfloat16_rn(a.v[i]);
  }
}

// x, so many rows on. With 32-bit factors the address takes one instruction.
template <typename T>
__device__ inline T* RowsOn(T* x, int rows, int row_bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(x) +
                              static_cast<uintptr_t>(int64_t{rows} * row_bytes));
}

// FieldView::at, in device code.
template <typename T>
__device__ inline T* FieldAt(const FieldView& field, int64_t index) {
  return reinterpret_cast<T*>(field.base + index * field.stride);
}

// Whether four neighbours can be read at once at `x` and at every multiple of `stride` elements
// behind it. A null `x` is never read.
inline bool TakesFour(const void* x, int64_t stride, DType type = DType::kF32) {
  return stride % 4 == 0 && reinterpret_cast<uintptr_t>(x) % (4 * SizeOf(type)) == 0;
}
inline bool TakesFour(const FieldView& field) {
  return field.stride % 16 == 0 && reinterpret_cast<uintptr_t>(field.base) % 16 == 0;
}

}  // namespace eddy
