// Parts of the CUDA version of layer "delta" (delta.h) that stand around products and rules.
// Internal to it. Engine thread; everything is enqueued on step.stream.
//
// A step has two parts: its decoding rows, which are computed in float and each alone, to the bit;
// and the rows of all other sequences, whose q, k, v may be bfloat16. Pointers of a part are to its
// own first row; strides are elements from one row to the next.
#pragma once

#include <cstdint>

#include "kernels/layers/delta/delta.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// Which rows of a step.
struct DeltaPart {
  bool single = false;  // sequences [0, sequences), one row each
  int first_row = 0, rows = 0;
  int first_sequence = 0, sequences = 0;
};

// What the prepare kernel reads of the layer's weights, all float; null where the options have
// none.
struct DeltaVectors {
  // [DeltaTaps(conv_width), taps_stride]: of q, k and v in the columns of `projected`, the last one
  // for the current token, zeros before the first one.
  const float* taps = nullptr;
  int64_t taps_stride = 0;
  const float* step_bias = nullptr;        // [HV]
  const float* step_scale = nullptr;       // [HV], kaczmarz_learned
  const float* decay_rate_log = nullptr;   // [HV]
  const float* decay_bias = nullptr;       // [HV] or [HV, K]
  const float* retention_bias = nullptr;   // [HV], retention data
  const float* fixed_retention = nullptr;  // [HV], retention constant or learned
};

// Rows of `taps`.
constexpr int64_t DeltaTaps(int64_t conv_width) { return conv_width <= 4 ? 4 : 8; }

struct DeltaPrepareArgs {
  DeltaPart part = {};
  DType type = DType::kF32;         // of projected, q, k, v; float if part.single
  const void* projected = nullptr;  // [rows, ...]: W_q n, W_k n and W_v n in the columns below
  int64_t projected_stride = 0;
  int64_t k_column = 0, v_column = 0;  // of q: 0
  const float* logits = nullptr;       // [rows, *]; columns below, -1 where there is none
  int64_t logits_stride = 0;
  int64_t step_at = -1, decay_at = -1, retention_at = -1;
  float* channel_decay = nullptr;  // [rows, HV, K], decay channel: W_up W_down n, then e^g (or g)
  bool log_channel_decay = false;  // g instead of e^g
  void* q = nullptr;               // [rows, H, K]; q, k, v lie in rows of `stride` elements
  void* k = nullptr;               // [rows, H, K]
  void* v = nullptr;               // [rows, HV, V]; single: may be where they were projected
  int64_t stride = 0;
  float* beta = nullptr;       // [rows, HV]
  float* decay = nullptr;      // [rows, HV], e^g; decay head and tied
  float* log_decay = nullptr;  // [rows, HV], g; null: not wanted
  float* retention = nullptr;  // [rows, HV]; retention data, but for single rows
  float* w = nullptr;          // [rows, HV, K]; single rows with a scale, whose d is advanced
  FieldView conv_q = {}, conv_k = {}, conv_v = {};  // [W - 1, H K or HV V]
  FieldView scale = {};                             // [HV, K]
  DeltaVectors vectors = {};
};

// From the results of the products to the inputs of the rule. Of single rows the histories are
// moved on; for the other rows that is DeltaSaveHistoryCuda, afterwards.
void DeltaPrepareCuda(const Step& step, const DeltaOptions& options, const DeltaPrepareArgs& args);
void DeltaSaveHistoryCuda(const Step& step, const DeltaOptions& options,
                          const DeltaPrepareArgs& args);

// y = RMSNorm_V(o) * out_norm * act_gate(z + bias), for `rows` rows.
struct DeltaGateArgs {
  int rows = 0;
  DType o_type = DType::kF32;
  const void* o = nullptr;  // [rows, HV, V]
  int64_t o_stride = 0;
  DType z_type = DType::kF32;
  const void* z = nullptr;  // [rows, HV, V]; null: gate none
  int64_t z_stride = 0;
  const float* bias = nullptr;      // [HV, V]; null: none
  const float* out_norm = nullptr;  // [V]
  DType y_type = DType::kF32;
  void* y = nullptr;  // [rows, HV, V], packed
};
void DeltaGateCuda(const Step& step, const DeltaOptions& options, const DeltaGateArgs& args);

// Once, while loading. `taps` [DeltaTaps(width), channels] gets weight [channels, width] of type
// `type`, at column `first` of `channels`.
struct DeltaTapsArgs {
  const void* weight = nullptr;
  DType type = DType::kF32;
  int64_t width = 0, channels = 0;
  float* taps = nullptr;  // to its first column
  int64_t taps_stride = 0;
};
void DeltaTapsCuda(Stream stream, const DeltaTapsArgs& args);
// r [HV] = sigmoid(logit), or `constant` if logit is null.
void DeltaFixedRetentionCuda(Stream stream, int64_t value_heads, const float* logit, float constant,
                             float* r);

}  // namespace eddy
