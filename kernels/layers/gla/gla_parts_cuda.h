// Element-wise work of the CUDA layer "gla" between its products. Internal to the layer. Engine
// thread; everything is enqueued on `stream`.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// g[i] <- e^max(logsigmoid(g[i]) / divisor, least), in place; `least` may be -infinity.
void GlaDecayCuda(Stream stream, int64_t count, float divisor, float least, float* g);

// out = RMSNorm_V(o) * norm * silu(z), rounded to out_type; all [rows, H, V], dense.
struct GlaOutputArgs {
  int64_t rows = 0, heads = 0, value_dim = 0;
  float eps = 0;
  float* o = nullptr;  // overwritten
  const float* z = nullptr;
  const float* norm = nullptr;  // [V]
  void* out = nullptr;
  DType out_type = DType::kF32;
};
void GlaOutputCuda(Stream stream, const GlaOutputArgs& args);

}  // namespace eddy
