// How finished sums become elements of y.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fixed_product.h"
#include "kernels/cuda/silu.cuh"

namespace eddy {

// What is done with the sums of a part.
enum class Store { kPlain, kAccumulate, kHalf, kGate, kGateHalf };

// Calls `store` with what is done with the part, as a type: one branch instead of one an element.
template <Store kStore>
struct StoreAs {
  static constexpr bool kGate = kStore == Store::kGate || kStore == Store::kGateHalf;
  static constexpr bool kHalf = kStore == Store::kHalf || kStore == Store::kGateHalf;
  static constexpr bool kAccumulate = kStore == Store::kAccumulate;
};
template <typename Function>
__device__ inline void ByStore(const FixedPart& part, Function store) {
  if (part.gate != nullptr) {
    if (part.half) return store(StoreAs<Store::kGateHalf>());
    return store(StoreAs<Store::kGate>());
  }
  if (part.half) return store(StoreAs<Store::kHalf>());
  if (part.accumulate) return store(StoreAs<Store::kAccumulate>());
  store(StoreAs<Store::kPlain>());
}

// An element of y from its sum: old + sum + bias in this order, or silu(sum) * up, where both were
// rounded to the type of y, as if they had been stored. `bias` may be null.
template <typename As>
__device__ inline float FinishSum(float sum, float up, float old, const float* bias) {
  if constexpr (As::kGate) {
    if constexpr (As::kHalf) {
      sum = __bfloat162float(__float2bfloat16_rn(sum));
      up = __bfloat162float(__float2bfloat16_rn(up));
    }
    return Silu(sum) * up;
  }
  float value = As::kAccumulate ? old + sum : sum;
  if (bias != nullptr) value += *bias;
  return value;
}

// Where a warp's sums belong: with g = lane / 4, t = lane % 4, the i-th to out g + 8 (i / 2), row
// 2 t + i % 2. With a gate, the sums of out g + 8 are those of w.
template <typename As>
struct Elements {
  __device__ Elements(const FixedPart& given, int rows, int first_row, int first_out)
      : part(given),
        row(first_row + static_cast<int>(threadIdx.x % 4) * 2),
        out(first_out + static_cast<int>(threadIdx.x % 32 / 4)),
        row_end(rows) {}
  __device__ bool Has(int i) const {
    return row + i % 2 < row_end && out + i / 2 * 8 < part.out && (!As::kGate || i < 2);
  }
  __device__ int64_t At(int i) const { return (row + i % 2) * part.y_stride + out + i / 2 * 8; }
  // What is in y; zeros stay where nothing is.
  __device__ void Load(float (&old)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (Has(i)) old[i] = static_cast<const float*>(part.y)[At(i)];
    }
  }
  __device__ void Store(const float (&sums)[4], const float (&old)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!Has(i)) continue;
      const float* const bias = part.bias == nullptr ? nullptr : part.bias + out + i / 2 * 8;
      const float value = FinishSum<As>(sums[i], sums[(i + 2) % 4], old[i], bias);
      if constexpr (As::kHalf) {
        static_cast<__nv_bfloat16*>(part.y)[At(i)] = __float2bfloat16_rn(value);
      } else {
        static_cast<float*>(part.y)[At(i)] = value;
      }
    }
  }
  const FixedPart& part;
  int row, out, row_end;
};

}  // namespace eddy
