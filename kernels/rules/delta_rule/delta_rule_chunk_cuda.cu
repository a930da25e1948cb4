#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"

namespace eddy {
namespace {

using delta_chunk::kChunk;
using delta_chunk::kSegmentUnit;

int64_t Packed(int64_t stride, int64_t width) { return stride != 0 ? stride : width; }

// Cuts pieces off the scratch; all are multiples of 16 bytes but the last.
class Cutter {
 public:
  explicit Cutter(void* at) : at_(static_cast<std::byte*>(at)) {}
  template <typename T>
  T* Take(int64_t count) {
    auto* piece = reinterpret_cast<T*>(at_);
    at_ += count * static_cast<int64_t>(sizeof(T));
    return piece;
  }

 private:
  std::byte* at_;
};

using Bf16 = __nv_bfloat16;

// The problem without its scratch.
delta_chunk::Problem Describe(const Step& step, const DeltaChunkArgs& args) {
  const auto& [heads, value_heads, key_dim, value_dim] = args.shape;
  const int64_t k_stride = Packed(args.k_stride, heads * key_dim);
  const bool has_w = args.w != nullptr;
  const int group = static_cast<int>(value_heads / heads);
  return {.heads = static_cast<int>(heads),
          .value_heads = static_cast<int>(value_heads),
          .key_dim = static_cast<int>(key_dim),
          .value_dim = static_cast<int>(value_dim),
          .group = group,
          .w_group = has_w ? 1 : group,
          .first_sequence = step.single_row_sequences,
          .sequences = step.sequences,
          .row_start = step.row_start,
          .slots = step.slots,
          .q = static_cast<const Bf16*>(args.q),
          .k = static_cast<const Bf16*>(args.k),
          .w = static_cast<const Bf16*>(has_w ? args.w : args.k),
          .v = static_cast<const Bf16*>(args.v),
          .q_stride = Packed(args.q_stride, heads * key_dim),
          .k_stride = k_stride,
          .w_stride = has_w ? Packed(args.w_stride, value_heads * key_dim) : k_stride,
          .v_stride = Packed(args.v_stride, value_heads * value_dim),
          .has_w = has_w,
          .beta = args.beta,
          .log_decay = args.decay == DeltaDecay::kNone ? nullptr : args.log_decay,
          .state = args.state.base,
          .state_stride = args.state.stride,
          .half_state = args.state.dtype == DType::kBF16,
          .out = args.out,
          .out_f32 = args.out_type == DType::kF32,
          .squares = args.readouts.wanted() ? args.readout_scratch : nullptr};
}

// In the order and sizes of DeltaChunkScratchBytesPerRow.
void TakeScratch(int64_t rows, int64_t chunk_slots, bool vector, void* at,
                 delta_chunk::Problem& p) {
  const int64_t heads = p.value_heads, key_dim = p.key_dim, value_dim = p.value_dim;
  Cutter scratch(at);
  p.wy_keys = scratch.Take<Bf16>(rows * heads * key_dim);
  p.wy_values = scratch.Take<Bf16>(rows * heads * value_dim);
  p.scores = scratch.Take<Bf16>(rows * heads * kChunk);
  p.segments = scratch.Take<float>(rows / kSegmentUnit * heads * (key_dim + value_dim) * key_dim);
  if (vector) {
    p.queries = scratch.Take<Bf16>(rows * heads * key_dim);
    p.writes = scratch.Take<Bf16>(rows * heads * key_dim);
    p.chunk_decay = scratch.Take<float>(chunk_slots * heads * key_dim);
  } else {
    p.factors = scratch.Take<float2>(rows * heads);
  }
}

}  // namespace

int delta_chunk::SharedBytes() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
          cudaSuccess) {
    return kHopperShared;
  }
  return bytes;
}

bool DeltaChunkFits(const DeltaRuleShape& shape) {
  const int64_t k = shape.key_dim;
  // Two stages of a walk: W, w and q [64, K], P [64, 64], 64 columns of U, and the factors.
  const int64_t shared = 2 * (3 * kChunk * k * 2 + 2 * kChunk * kChunk * 2 + 1024);
  return (k == 64 || k == 128 || k == 256) && shape.value_dim % 16 == 0 &&
         shared <= delta_chunk::SharedBytes();
}

int64_t DeltaChunkScratchBytesPerRow(const DeltaRuleShape& shape, DeltaDecay decay) {
  const int64_t k = shape.key_dim, v = shape.value_dim;
  constexpr int64_t kBf16 = 2, kFloat = 4;
  int64_t bytes = kBf16 * (k + v + kChunk) + kFloat * k * (k + v) / kSegmentUnit;
  if (decay == DeltaDecay::kChannel) {
    bytes += kBf16 * 2 * k + kFloat * (k + k / kChunk);
  } else {
    bytes += 2 * kFloat;
  }
  return shape.value_heads * bytes;
}

int64_t DeltaChunkReadoutFloats(const DeltaRuleShape& shape) {
  return shape.value_heads * (shape.value_dim / delta_chunk::kColumns);
}

void DeltaRuleChunkCuda(const Step& step, const DeltaChunkArgs& args) {
  EDDY_CHECK(DeltaChunkFits(args.shape));
  EDDY_CHECK(!args.readouts.wanted() || args.readout_scratch != nullptr);
  if (step.sequences == step.single_row_sequences) return;
  const bool vector = args.decay == DeltaDecay::kChannel;
  const int chunk_slots =
      (step.rows - step.single_row_sequences) / kChunk + step.sequences - step.single_row_sequences;
  delta_chunk::Problem p = Describe(step, args);
  TakeScratch(step.rows, chunk_slots, vector, args.scratch, p);
  const int max_segments = delta_chunk::SegmentBound(step.max_rows_per_sequence, p.value_heads);
  Prepare(p, vector, chunk_slots, step.stream);
  if (max_segments > 1) {
    ScanTransitions(p, vector, max_segments, step.stream);
    Combine(p, step.stream);
  }
  ScanOutputs(p, vector, max_segments, step.stream);
  if (!args.readouts.wanted()) return;
  TellRows(p, args.readouts, step.single_row_sequences, step.rows - step.single_row_sequences,
           step.stream);
}

}  // namespace eddy
