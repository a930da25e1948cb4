// CUDA twin of ShortConvCpu (formula in short_conv.h), fused with what surrounds it in the layers:
//   out_t[c] = act(bias[c] + sum_{j < W} taps[c, j] z_{t-W+1+j}[c]),   z = x + input_bias
// The history holds z in float whatever the type of x is. Inputs and outputs may be parts of wider
// rows. Engine thread; enqueues on step.stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct ShortConvCudaArgs {
  int64_t channels = 0, width = 0;  // 1 <= width <= 8
  const void* x = nullptr;          // [rows, channels], rows `x_stride` elements apart
  DType x_type = DType::kF32;
  int64_t x_stride = 0;
  const float* input_bias = nullptr;  // [channels]; null: none
  const void* taps = nullptr;         // [channels, width], as in the file
  DType taps_type = DType::kF32;
  const float* bias = nullptr;  // [channels]; null: none
  Activation activation = Activation::kNone;
  FieldView state = {};  // [width - 1, channels] fp32, oldest first; not used if width is 1
  void* out = nullptr;   // [rows, channels], rows `out_stride` elements apart; not x
  DType out_type = DType::kF32;
  int64_t out_stride = 0;
};

// Rows of kNoSlot become zeros, without the activation. Each output depends on its sequence alone,
// to the bit, however its rows are cut into steps.
void ShortConvCuda(const Step& step, const ShortConvCudaArgs& args);

}  // namespace eddy
