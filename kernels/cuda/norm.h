// Row-wise work around products on the GPU: the root-mean-square norm, biases, and the gates that
// multiply one product by the activation of another. Plain C++; everything is enqueued on `stream`
// and can be captured in a graph. Every element of a row is computed in an order that depends on
// the row's length alone, whatever the other rows are. Errors show as launch errors.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// y[r, i] = x[r, i] / sqrt(mean_i(x[r, i]^2) + eps) * weight[i] (Zhang and Sennrich 2019,
// arXiv 1910.07467), rounded to y_type. x and y may be the same rows if y_type is float.
struct CudaRmsNorm {
  int64_t rows = 0, width = 0;    // width from 1
  const float* x = nullptr;       // [rows, width], rows `x_stride` elements apart
  int64_t x_stride = 0;           // 0: width
  const float* weight = nullptr;  // [width]; null: ones
  float eps = 0;
  void* y = nullptr;     // [rows, width], rows `y_stride` elements apart
  int64_t y_stride = 0;  // 0: width
  DType y_type = DType::kF32;
};
void RunRmsNorm(Stream stream, const CudaRmsNorm& norm);

// y[r, i] += bias[i]; y [rows, width] float, rows `y_stride` elements apart (0: width).
struct CudaBias {
  int64_t rows = 0, width = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
};
void RunAddBias(Stream stream, const CudaBias& bias);

enum class GateFunction : uint8_t {
  kSilu,     // a / (1 + e^-a)
  kSigmoid,  // 1 / (1 + e^-a)
  kGelu,     // a (1 + erf(a / sqrt 2)) / 2, the exact one
};

// y[r, i] = f(gate[r, i]) * up[r, i], or f(gate[r, i]) if `up` is null. gate and up are of type
// `in_type`; y may be either of them if the types and strides are the same.
struct CudaGate {
  GateFunction function = GateFunction::kSilu;
  int64_t rows = 0, width = 0;
  DType in_type = DType::kF32;
  const void* gate = nullptr;  // [rows, width], rows `gate_stride` elements apart
  int64_t gate_stride = 0;     // 0: width
  const void* up = nullptr;    // [rows, width], rows `up_stride` elements apart
  int64_t up_stride = 0;       // 0: width
  DType y_type = DType::kF32;
  void* y = nullptr;     // [rows, width], rows `y_stride` elements apart
  int64_t y_stride = 0;  // 0: width
};
void RunGate(Stream stream, const CudaGate& gate);

}  // namespace eddy
