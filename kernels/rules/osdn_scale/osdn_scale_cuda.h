// The learned scale of the write key (osdn_scale.h) on the GPU. Enqueues on step.stream.
#pragma once

#include <cstdint>

#include "kernels/rules/osdn_scale/osdn_scale.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// Pointers are to the rows of the whole step; strides are elements from one row to the next.
struct OsdnScaleCudaArgs {
  int64_t heads = 0, value_heads = 0, key_dim = 0;  // key_dim <= 256
  OsdnScaleOptions options = {};
  DType type = DType::kF32;  // of k and w, float or bfloat16; all else is float
  const void* k = nullptr;   // [rows, H, K], l2-normalised
  int64_t k_stride = 0;
  const float* beta = nullptr;       // [rows, HV]
  const float* retention = nullptr;  // r: [HV] at retention_stride; null: 1
  int64_t retention_stride = 0;      // 0: one r for all rows
  FieldView scale = {};              // [HV, K] fp32, d
  void* w = nullptr;                 // [rows, HV, K]
};

// Advances d of the sequences [first_sequence, step.sequences) by their rows, one after another.
// Rows of kNoSlot get zeros. Decoding rows need no call of their own: the kernel that makes their
// keys takes this step on the way (osdn_scale_token.cuh).
void OsdnScaleCuda(const Step& step, const OsdnScaleCudaArgs& args, int first_sequence);

}  // namespace eddy
