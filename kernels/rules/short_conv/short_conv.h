// Rule: depthwise causal convolution of width W over the rows of each sequence,
//   out_t[c] = bias[c] + sum_{j < W} taps[j, c] x_{t-W+1+j}[c],
// so the last tap multiplies the current row, and what came before the first row is the state: the
// last W - 1 inputs of the sequence, oldest first, zeros at its start. No activation.
// Source: shared conventions of DeltaNet, Gated DeltaNet, KDA and Mamba (design notes, 1.2).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct ShortConvArgs {
  int64_t channels = 0, width = 0;  // width >= 2
  const float* x = nullptr;         // [rows, channels]
  const float* taps = nullptr;      // [width, channels]: the file's [channels, width], transposed
  const float* bias = nullptr;      // [channels]; null: none
  FieldView state = {};             // [width - 1, channels] fp32
  float* out = nullptr;             // [rows, channels]; not x
};

// [channels, width] as files have it -> [width, channels] as `taps` wants it.
std::vector<float> ShortConvTaps(const TensorView& weight);

// Rows of kNoSlot become zeros.
void ShortConvCpu(const Step& step, const ShortConvArgs& args);

}  // namespace eddy
