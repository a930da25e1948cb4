// Element-wise work of the CUDA layer "kalman" between its products. Internal to the layer. Engine
// thread; everything is enqueued on `stream`. Strides are elements from one row to the next.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// y[r, i] = x[r, i], rounded to y_type; y [rows, width], dense.
struct KalmanCopyArgs {
  int64_t rows = 0, width = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;
  DType y_type = DType::kF32;
};
void KalmanCopyCuda(Stream stream, const KalmanCopyArgs& args);

// What the filters see, from what the sensors say; all in place:
//   gate <- act(gate);  l <- 1 / min(softplus(l) + noise_min, noise_max);
//   k, q <- each over its norm if qk_norm, then clamped to [-clip, clip].
// value [rows, M] <- c where it is not null.
struct KalmanSenseArgs {
  int64_t rows = 0, channels = 0, state_dim = 0;
  float* gate = nullptr;  // [rows, M]; null: no gate
  int64_t gate_stride = 0;
  Activation activation = Activation::kNone;  // of the gate
  float* certainty = nullptr;                 // [rows, M]: l
  int64_t certainty_stride = 0;
  float noise_min = 0, noise_max = 0;  // noise_max 0: none
  float* kq = nullptr;                 // [rows, 2 Sn]
  int64_t kq_stride = 0;
  bool qk_norm = false;
  float clip = 0;           // 0: none
  const void* c = nullptr;  // [rows, M], dense
  DType c_type = DType::kF32;
  float* value = nullptr;  // [rows, M], dense; null: v comes from elsewhere
};
void KalmanSenseCuda(Stream stream, const KalmanSenseArgs& args);

// out = (y + skip c) gate, rounded to the type of c; all [rows, M].
struct KalmanOutputArgs {
  int64_t rows = 0, channels = 0;
  const float* y = nullptr;  // dense; so are c and out
  const void* c = nullptr;
  DType type = DType::kF32;     // of c and out
  const float* skip = nullptr;  // [1] or [M]; null: none
  bool skip_per_channel = false;
  const float* gate = nullptr;  // null: none
  int64_t gate_stride = 0;
  void* out = nullptr;
};
void KalmanOutputCuda(Stream stream, const KalmanOutputArgs& args);

}  // namespace eddy
