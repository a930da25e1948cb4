// Device code: the arithmetic of one token of one state, shared by the kernels of the selective
// scan. The rounding of every operation is spelled out.
#pragma once

#include <cstdint>

#include "kernels/rules/selective_scan/selective_scan_cuda.h"

namespace eddy {

inline constexpr int kSelectiveThreads = 128;

// 2^x, to two units in the last place; 0 below 2^-126.
__device__ inline float PowerOfTwo(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// a; `rate` is read only if kExponential, k only if not.
template <bool kExponential>
__device__ inline float SelectiveDecay(float step, float rate, float k) {
  return kExponential ? PowerOfTwo(__fmul_rn(step, rate)) : __fmaf_rn(-step, __fmul_rn(k, k), 1.0f);
}

// Advances the states of sequences [first, end) of the step, of any number of rows.
void SelectiveScanRowsCuda(const Step& step, const SelectiveScanCudaArgs& args, int first, int end);

}  // namespace eddy
