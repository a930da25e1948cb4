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

}  // namespace eddy
