// Where the intermediate tensors of a step lie in the scratch of the CUDA layer "delta".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/layers/delta/delta.h"
#include "kernels/tensor.h"

namespace eddy {

// Cuts pieces of so many rows off the scratch. With `align` 1 and one row it counts bytes.
class DeltaCutter {
 public:
  DeltaCutter(void* at, int64_t align) : at_(static_cast<std::byte*>(at)), align_(align) {}
  template <typename T = void>
  T* Take(int64_t rows, int64_t row_bytes) {
    std::byte* const taken = at_ + used_;
    used_ += (rows * row_bytes + align_ - 1) / align_ * align_;
    return reinterpret_cast<T*>(taken);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* const at_;
  const int64_t align_;
  int64_t used_ = 0;
};

// Widths in elements, and columns, of the rows that the products make.
struct DeltaColumns {
  explicit DeltaColumns(const DeltaOptions& o) {
    const bool gates = o.gate != DeltaOptions::Gate::kNone;
    const int64_t value_heads = o.shape.value_heads;
    k = RoundUp(o.q_width());
    v = RoundUp(k + o.q_width());
    gate = RoundUp(v + o.v_width());
    wide = gate + (gates && o.gate_rank == 0 ? o.v_width() : 0);
    const auto logit = [&](bool there) {
      if (!there) return int64_t{-1};
      logits += value_heads;
      return logits - value_heads;
    };
    step = logit(o.has_step_logits());
    decay = logit(o.decay == DeltaOptions::Decay::kHead);
    retention = logit(o.scale && o.scale->retention == DeltaOptions::Retention::kData);
    low_decay = RoundUp(o.gate_rank);
    low = RoundUp(low_decay + o.decay_rank);
  }
  // All begins on multiples of so many elements, so that 16 bytes can be read at once.
  static int64_t RoundUp(int64_t elements) { return (elements + 7) / 8 * 8; }

  int64_t k = 0, v = 0;                           // where these begin behind q
  int64_t gate = 0;                               // where z begins behind q, k and v
  int64_t wide = 0;                               // of q, k, v and z
  int64_t step = -1, decay = -1, retention = -1;  // among the logits; -1: not there
  int64_t logits = 0;
  int64_t low_decay = 0, low = 0;  // W_down n of the gate, then of the decay from low_decay on
};

// How a part of a step goes through the rule.
enum class DeltaForm {
  kSingle,  // decoding rows, in float
  kRows,    // token by token, in float
  kChunk    // on the tensor cores, in bfloat16
};

// Tensors of one part; rows are its own. `stride`: elements from one row to the next.
struct DeltaCudaRows {
  DeltaCudaRows(const DeltaOptions& o, DType matrices, DeltaForm form, int64_t rows,
                DeltaCutter* cutter);

  DType type;       // of projected, z, q, k, v, w
  void* projected;  // [rows, wide (+ logits)]
  int64_t projected_stride;
  float* logits;  // [rows, logits]
  int64_t logits_stride;
  void* low = nullptr;             // [rows, low], of the type of matrices
  float* channel_decay = nullptr;  // [rows, HV, K]
  void* z = nullptr;               // [rows, HV, V]
  int64_t z_stride = 0;
  void *q, *k, *v;  // [rows, H, K], [rows, H, K], [rows, HV, V]
  int64_t qkv_stride;
  float* beta;             // [rows, HV]; so are the next three
  float* decay = nullptr;  // e^g, head and tied
  float* log_decay = nullptr;
  float* retention = nullptr;
  void* w = nullptr;    // [rows, HV, K]
  void* out = nullptr;  // [rows, HV, V] float; null: the layer's buffer of `matrices` will do
  int64_t out_stride = 0;
};

inline DeltaCudaRows::DeltaCudaRows(const DeltaOptions& o, DType matrices, DeltaForm form,
                                    int64_t rows, DeltaCutter* cutter) {
  const DeltaColumns columns(o);
  const int64_t v_width = o.v_width(), heads = o.shape.value_heads;
  const int64_t channels = heads * o.shape.key_dim;
  constexpr int64_t kFloat = sizeof(float);
  type = form == DeltaForm::kChunk ? DType::kBF16 : DType::kF32;
  const int64_t size = SizeOf(type);
  const auto column = [&](void* row, int64_t at) {
    return static_cast<void*>(static_cast<std::byte*>(row) + at * size);
  };
  // Step sizes and decays are exact in bfloat16 rows too: their logits have rows of their own
  // there.
  const bool apart = type == DType::kBF16;
  projected_stride = DeltaColumns::RoundUp(columns.wide + (apart ? 0 : columns.logits));
  projected = cutter->Take(rows, projected_stride * size);
  logits_stride = apart ? columns.logits : projected_stride;
  logits = apart ? cutter->Take<float>(rows, columns.logits * kFloat)
                 : static_cast<float*>(column(projected, columns.wide));
  if (columns.low > 0) low = cutter->Take(rows, columns.low * SizeOf(matrices));
  if (o.decay == DeltaOptions::Decay::kChannel) {
    channel_decay = cutter->Take<float>(rows, channels * kFloat);
  }
  if (o.gate_rank > 0) {
    z_stride = v_width;
    z = cutter->Take(rows, z_stride * size);
  } else if (o.gate != DeltaOptions::Gate::kNone) {
    z_stride = projected_stride;
    z = column(projected, columns.gate);
  }
  // A decoding row's window is in its record, so its q, k and v can replace what they come from.
  const bool in_place = form == DeltaForm::kSingle;
  qkv_stride = in_place ? projected_stride : columns.gate;
  q = in_place ? projected : cutter->Take(rows, qkv_stride * size);
  k = column(q, columns.k);
  v = column(q, columns.v);
  beta = cutter->Take<float>(rows, heads * kFloat);
  if (o.decay == DeltaOptions::Decay::kHead || o.decay == DeltaOptions::Decay::kTied) {
    decay = cutter->Take<float>(rows, heads * kFloat);
    if (form == DeltaForm::kChunk) log_decay = cutter->Take<float>(rows, heads * kFloat);
  }
  if (columns.retention >= 0 && form != DeltaForm::kSingle) {
    retention = cutter->Take<float>(rows, heads * kFloat);
  }
  if (o.scale) w = cutter->Take(rows, channels * size);
  if (type == matrices) return;
  // Of other rows, q, k and v have been read where they were projected.
  out_stride = in_place ? v_width : projected_stride;
  out = in_place ? cutter->Take(rows, v_width * kFloat) : projected;
}

}  // namespace eddy
