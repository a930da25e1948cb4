// CUDA twin of SelectiveScanCpu: formulas in selective_scan.h. Engine thread; enqueues on
// step.stream.
#pragma once

#include <cstdint>

#include "kernels/rules/selective_scan/selective_scan.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct SelectiveScanCudaArgs {
  int64_t channels = 0, states = 0;  // N <= 1024
  const void* x = nullptr;           // [rows, channels], dense
  DType x_type = DType::kF32;
  const float* step = nullptr;  // [rows, channels], dense
  const float* k = nullptr;     // [rows, N], `row_stride` elements from one row to the next
  const float* q = nullptr;     // the same
  int64_t row_stride = 0;
  // A log2(e) [N, channels], so that the decay is a power of two; null: the decay is Longhorn's.
  const float* rates = nullptr;
  FieldView state = {};  // [N, channels] fp32
  float* out = nullptr;  // [rows, channels], dense
};

// Decoding sequences read and write their state once. Of other sequences the state stays in
// registers while the tokens go by, one after another. Rows of kNoSlot become zeros.
void SelectiveScanCuda(const Step& step, const SelectiveScanCudaArgs& args);

// `rates` from the layer's decay_rate_log [channels, states]: -e^x log2(e), transposed. All is
// device memory.
void SelectiveScanRatesCuda(Stream stream, int64_t channels, int64_t states, const float* rate_log,
                            float* rates);

}  // namespace eddy
