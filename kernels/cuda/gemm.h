// Products on the GPU.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace eddy {

// y[r, o] (+)= sum_i x[r, i] w[o, i]. x and w are of one type, float or bfloat16; sums are float.
struct CudaProduct {
  int64_t rows = 0, in = 0, out = 0;
  // The first so many rows are summed in an order that depends on `in`, `out` and the types alone:
  // their bits are the same whatever the other rows are and however many there are. The decoding
  // rows of a step.
  int64_t fixed_rows = 0;
  DType type = DType::kF32;  // of x and w
  const void* x = nullptr;   // [rows, in], rows `x_stride` elements apart
  int64_t x_stride = 0;      // 0: in
  const void* w = nullptr;   // [out, in], packed
  void* y = nullptr;         // [rows, out], rows `y_stride` elements apart
  int64_t y_stride = 0;      // 0: out
  DType y_type = DType::kF32;
  bool accumulate = false;  // y += instead of y =; y_type float only
};

// Engine thread only. Everything is enqueued on the stream it was made with; no call waits or
// allocates, so calls can be captured in a graph. Errors show in Device::Finish.
class CudaGemm;
void RunProduct(CudaGemm* gemm, const CudaProduct& product);

}  // namespace eddy
