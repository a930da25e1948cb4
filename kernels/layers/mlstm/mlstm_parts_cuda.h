// Element-wise work of the CUDA layer "mlstm" between its products. Internal to the layer. Engine
// thread; everything is enqueued on the stream.
#pragma once

#include <cstdint>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// From the gates to what the scan takes, all [rows, H], dense, and the stabilisers on the way:
//   write: i  ->  K^-1/2 e^(i - m');   keep: f  ->  e^(l + m - m');   least <- e^-m'
// Rows of nobody write and keep nothing.
struct MlstmGatesArgs {
  int64_t heads = 0;
  float key_scale = 1;  // K^-1/2
  float softcap = 0;    // 0: none
  bool exponential_forget = false;
  FieldView stabiliser = {};  // [H]
  float* write = nullptr;
  float* keep = nullptr;
  float* least = nullptr;
};
void MlstmGatesCuda(const Step& step, const MlstmGatesArgs& args);

// out = LayerNorm_V(h / (max(|sum|, least) + 1e-6)) * norm * sigmoid(z), rounded to out_type.
struct MlstmOutputArgs {
  int64_t rows = 0, heads = 0, value_dim = 0;
  float eps = 0;
  float* h = nullptr;            // [rows, H, V], dense as all; overwritten
  const float* sums = nullptr;   // [rows, H]: u.q
  const float* least = nullptr;  // [rows, H]
  const float* z = nullptr;      // [rows, H, V]
  const float* norm = nullptr;   // [H, V]
  void* out = nullptr;           // [rows, H, V]
  DType out_type = DType::kF32;
};
void MlstmOutputCuda(Stream stream, const MlstmOutputArgs& args);

}  // namespace eddy
