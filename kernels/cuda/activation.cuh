// Device code: activations in float, to about 1e-6 of their size, which is less than the rounding
// of what goes into them.
#pragma once

#include "kernels/cuda/activation.h"

namespace eddy {

// 1 / (1 + e^-x), five instructions: what denormal numbers would need is left out, since e^-x is
// beside a one. It is infinite for x < -88, and the result then 0.
__device__ inline float Sigmoid(float x) {
  constexpr float kMinusLog2E = -1.44269504088896340736f;
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * kMinusLog2E));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
  return result;
}
__device__ inline float Silu(float x) { return x * Sigmoid(x); }
__device__ inline float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
// ln sigmoid(x), from the side where nothing cancels.
__device__ inline float LogSigmoid(float x) { return fminf(x, 0.0f) - log1pf(expf(-fabsf(x))); }

__device__ inline float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return Silu(x);
    case Activation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;  // NaN passes
    case Activation::kEluPlus1:
      return x > 0.0f ? x + 1.0f : expf(x);
  }
  return x;
}

}  // namespace eddy
