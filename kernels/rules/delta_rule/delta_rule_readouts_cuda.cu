// What the launches of the CUDA delta rule have in common: their arguments, and the read-outs. The
// blocks of a step each leave the sums over their own columns; a warp for each row then adds them
// up over blocks and heads, in a fixed order.
#include "base/check.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rules/delta_rule/delta_rule_cuda.cuh"

namespace eddy {
namespace {

constexpr int kWarp = 32, kRowsPerBlock = 4;

__global__ void SumReadouts(DeltaKernelArgs p, DeltaReadouts to, int first_row, int rows) {
  const int lane = threadIdx.x % kWarp;
  const int index = blockIdx.x * kRowsPerBlock + threadIdx.x / kWarp;
  if (index >= rows) return;
  const int64_t row = first_row + index;
  float residual = 0, contraction = 0, decay = 0;
  for (int head = lane; head < p.value_heads; head += kWarp) {
    float missed = 0, length = 0;
    for (int part = 0; part < p.readout_parts; ++part) {
      const float* from = DeltaReadoutPart(p, row, head, part);
      missed += from[0];
      length += from[1];
      if (part == 0) {
        contraction += from[2];
        decay += from[3];
      }
    }
    if (length != 0) residual += sqrtf(missed / length);
  }
  const float share = 1.0f / static_cast<float>(p.value_heads);
  residual = WarpSum(residual) * share;
  contraction = WarpSum(contraction) * share;
  decay = WarpSum(decay) * share;
  if (lane != 0) return;
  if (to.residual != nullptr) to.residual[row] = residual;
  if (to.contraction != nullptr) to.contraction[row] = contraction;
  if (to.decay != nullptr) to.decay[row] = decay;
}

DeltaRows Packed(const DeltaRows& rows, int64_t width) {
  return {.data = rows.data, .stride = rows.stride != 0 ? rows.stride : width};
}

DeltaField FieldOf(const FieldView& view) { return {.base = view.base, .stride = view.stride}; }

}  // namespace

int64_t DeltaReadoutFloats(const DeltaRuleShape& shape) {
  const int64_t parts = (shape.value_dim + kReadoutColumns - 1) / kReadoutColumns;
  return shape.value_heads * parts * kReadoutParts;
}

DeltaKernelArgs ResolveDeltaArgs(const DeltaRuleCudaArgs& args, int columns) {
  const auto& [heads, value_heads, key_dim, value_dim] = args.shape;
  EDDY_CHECK(columns >= kReadoutColumns);
  EDDY_CHECK(heads > 0 && value_heads % heads == 0);
  EDDY_CHECK(key_dim >= 1 && key_dim <= 256 && value_dim >= 1 && value_dim <= 512);
  EDDY_CHECK(args.state.dtype == DType::kF32 || args.state.dtype == DType::kBF16);
  EDDY_CHECK(args.pending_updates >= 1 && args.pending_updates <= kMostPendingUpdates);
  EDDY_CHECK(args.pending_updates == 1 ||
             (args.ring.w.base != nullptr && args.ring.n.base != nullptr &&
              args.ring.count.base != nullptr &&
              (args.decay.data == nullptr || args.ring.a.base != nullptr)));
  EDDY_CHECK(!args.readouts.wanted() || args.readout_scratch != nullptr);
  const int64_t decays = args.channel_decay ? value_heads * key_dim : value_heads;
  const bool own_w = args.w.data != nullptr;
  return {
      .value_heads = static_cast<int>(value_heads),
      .key_dim = static_cast<int>(key_dim),
      .value_dim = static_cast<int>(value_dim),
      .group = static_cast<int>(value_heads / heads),
      .write_group = own_w ? 1 : static_cast<int>(value_heads / heads),
      .entries = args.pending_updates - 1,
      .pairs = args.pending_updates <= 4   ? 4
               : args.pending_updates <= 8 ? 8
                                           : kMostPendingUpdates,
      .count_groups = static_cast<int>((value_dim + kDeltaCountColumns - 1) / kDeltaCountColumns),
      .channel_decay = args.channel_decay,
      .state_bytes = static_cast<int>(SizeOf(args.state.dtype)),
      .q = Packed(args.q, heads * key_dim),
      .k = Packed(args.k, heads * key_dim),
      .w = own_w ? Packed(args.w, value_heads * key_dim) : Packed(args.k, heads * key_dim),
      .v = Packed(args.v, value_heads * value_dim),
      .beta = Packed(args.beta, value_heads),
      .decay = Packed(args.decay, decays),
      .state = FieldOf(args.state),
      .ring_w = FieldOf(args.ring.w),
      .ring_n = FieldOf(args.ring.n),
      .ring_a = FieldOf(args.ring.a),
      .ring_count = FieldOf(args.ring.count),
      .out = args.out,
      .out_stride = args.out_stride != 0 ? args.out_stride : value_heads * value_dim,
      .readouts = args.readouts.wanted() ? args.readout_scratch : nullptr,
      .readout_parts = static_cast<int>((value_dim + columns - 1) / columns)};
}

void SumDeltaReadouts(const DeltaRuleCudaArgs& args, const DeltaKernelArgs& kernel_args,
                      int first_row, int rows, Stream stream) {
  if (!args.readouts.wanted() || rows == 0) return;
  const int blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  SumReadouts<<<blocks, kRowsPerBlock * kWarp, 0, static_cast<cudaStream_t>(stream)>>>(
      kernel_args, args.readouts, first_row, rows);
}

}  // namespace eddy
