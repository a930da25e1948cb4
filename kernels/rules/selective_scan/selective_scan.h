// Rule: a diagonal state of N numbers per channel whose decay depends on the token. Per token, with
// input x and step s per channel, key k and query q shared by all channels:
//   S[n, c] <- a[n, c] S[n, c] + k[n] s[c] x[c]
//   o[c]     = sum_n q[n] S[n, c]                 after the update
// where the decay a is one of
//   exponential  e^{s[c] A[n, c]}, A <= 0, s >= 0    Mamba (Gu and Dao 2023, arXiv 2312.00752): the
//                                                    names there are B = k, C = q, delta = s
//   longhorn     1 - s[c] k[n]^2                     Longhorn (Liu et al. 2024, arXiv 2407.14207):
//                                                    the diagonal of (I - s k k'); it lies in
//                                                    (0, 1] because s |k|^2 < 1 there
// S is [N, channels] with channels contiguous.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct SelectiveScanArgs {
  int64_t channels = 0, states = 0;  // N
  const float* x = nullptr;          // [rows, channels]
  const float* step = nullptr;       // [rows, channels]
  const float* k = nullptr;          // [rows, N], `row_stride` from one row to the next
  const float* q = nullptr;          // the same
  int64_t row_stride = 0;            // in elements
  const float* rates = nullptr;      // A [N, channels]; null: the decay is Longhorn's
  FieldView state = {};              // [N, channels] fp32
  float* out = nullptr;              // [rows, channels]
  float* scratch = nullptr;          // [2, channels]
};

// Rows of kNoSlot become zeros.
void SelectiveScanCpu(const Step& step, const SelectiveScanArgs& args);

}  // namespace eddy
