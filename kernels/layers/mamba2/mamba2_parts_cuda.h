// Element-wise work of the CUDA layer "mamba2" between its products. Internal to the layer. Engine
// thread; everything is enqueued on `stream`. Strides are elements from one row to the next.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// delta = clamp(softplus(d + step_bias), step_min, step_max), and the decay e^(-delta e^rate_log).
struct Mamba2StepsArgs {
  int64_t rows = 0, heads = 0;
  const float* d = nullptr;  // [rows, H]
  int64_t d_stride = 0;
  const float* step_bias = nullptr;  // [H]
  const float* rate_log = nullptr;   // [H]
  float step_min = 0, step_max = 0;  // step_max infinite: none
  float* delta = nullptr;            // [rows, H], dense
  float* decay = nullptr;            // [rows, H], dense
};
void Mamba2StepsCuda(Stream stream, const Mamba2StepsArgs& args);

// out = RMSNorm((y + skip s) silu(z)) * norm over the channels of each group, rounded to out_type.
struct Mamba2OutputArgs {
  int64_t rows = 0, heads = 0, head_dim = 0, groups = 0;
  float eps = 0;
  float* y = nullptr;        // [rows, I], dense; overwritten
  const float* s = nullptr;  // [rows, I]
  int64_t s_stride = 0;
  const float* z = nullptr;  // [rows, I]
  int64_t z_stride = 0;
  const float* skip = nullptr;  // [H]
  const float* norm = nullptr;  // [I]
  void* out = nullptr;          // [rows, I], dense
  DType out_type = DType::kF32;
};
void Mamba2OutputCuda(Stream stream, const Mamba2OutputArgs& args);

}  // namespace eddy
