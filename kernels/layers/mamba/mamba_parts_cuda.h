// Element-wise work of the CUDA layers "mamba" and "longhorn" between their products. Internal to
// the layers. Engine thread; everything is enqueued on `stream`.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// From d to the steps of the scan, in place: softplus(d), or sigmoid(d) / (1 + sigmoid(d) |k|^2).
struct MambaStepsArgs {
  int64_t rows = 0, channels = 0, state_dim = 0;
  bool longhorn = false;
  float* step = nullptr;     // [rows, channels], dense
  const float* k = nullptr;  // [rows, N], `k_stride` elements apart; longhorn
  int64_t k_stride = 0;
};
void MambaStepsCuda(Stream stream, const MambaStepsArgs& args);

// out = (o + skip s) silu(z), rounded to the type of s; all [rows, channels].
struct MambaOutputArgs {
  int64_t rows = 0, channels = 0;
  const float* o = nullptr;  // dense; so are s and out
  const void* s = nullptr;
  DType type = DType::kF32;     // of s and out
  const float* skip = nullptr;  // [channels]
  const float* z = nullptr;     // rows `z_stride` elements apart
  int64_t z_stride = 0;
  void* out = nullptr;
};
void MambaOutputCuda(Stream stream, const MambaOutputArgs& args);

}  // namespace eddy
