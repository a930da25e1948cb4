// What the chunk form tells of its rows. |e| is |n| / beta with n = beta e, whose squares the walk
// along the chunks has left; the rest does not depend on S. A warp has a row.
#include <cuda_bf16.h>

#include "kernels/cuda/reduce.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"

namespace eddy::delta_chunk {
namespace {

constexpr int kRowsPerBlock = 4;

__device__ int32_t SlotOfRow(const Problem& p, int row) {
  int low = p.first_sequence, high = p.sequences - 1;
  while (low < high) {  // the last sequence that begins at the row or before it
    const int middle = (low + high + 1) / 2;
    if (p.row_start[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return p.slots[low];
}

// Of one value head: |e| / |v|, (1 - beta w.k)^2, e^g.
struct Told {
  float residual = 0, contraction = 0, decay = 0;
};

__device__ Told TellHead(const Problem& p, bool channel_decay, int64_t row, int head, int lane) {
  const int64_t at = row * p.value_heads + head;
  const __nv_bfloat16* k = p.k + row * p.k_stride + head / p.group * p.key_dim;
  const __nv_bfloat16* w = p.w + row * p.w_stride + head / p.w_group * p.key_dim;
  const __nv_bfloat16* v = p.v + row * p.v_stride + head * p.value_dim;
  const int tiles = p.value_dim / kColumns;
  float dot = 0, length = 0, missed = 0, decay = 0;
  for (int i = lane; i < p.key_dim; i += 32) dot += __bfloat162float(k[i]) * __bfloat162float(w[i]);
  for (int i = lane; i < p.value_dim; i += 32) {
    length += __bfloat162float(v[i]) * __bfloat162float(v[i]);
  }
  for (int i = lane; i < tiles; i += 32) missed += p.squares[at * tiles + i];
  if (channel_decay) {
    for (int i = lane; i < p.key_dim; i += 32) decay += expf(p.log_decay[at * p.key_dim + i]);
    decay = WarpSum(decay) / static_cast<float>(p.key_dim);
  } else {
    decay = p.log_decay != nullptr ? expf(p.log_decay[at]) : 1.0f;
  }
  length = WarpSum(length);
  missed = WarpSum(missed);
  const float beta = p.beta[at], left = 1 - beta * WarpSum(dot);
  return {.residual = length == 0 || beta == 0 ? 0 : sqrtf(missed / length) / fabsf(beta),
          .contraction = left * left,
          .decay = decay};
}

__global__ void __launch_bounds__(kRowsPerBlock * 32)
    TellRowsKernel(const Problem p, DeltaReadouts to, bool channel_decay, int first_row, int rows) {
  const int index = blockIdx.x * kRowsPerBlock + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (index >= rows) return;
  const int row = first_row + index;
  Told sum;
  if (SlotOfRow(p, row) != kNoSlot) {
    for (int head = 0; head < p.value_heads; ++head) {
      const Told told = TellHead(p, channel_decay, row, head, lane);
      sum.residual += told.residual;
      sum.contraction += told.contraction;
      sum.decay += told.decay;
    }
  }
  if (lane != 0) return;
  const float share = 1.0f / static_cast<float>(p.value_heads);
  if (to.residual != nullptr) to.residual[row] = sum.residual * share;
  if (to.contraction != nullptr) to.contraction[row] = sum.contraction * share;
  if (to.decay != nullptr) to.decay[row] = sum.decay * share;
}

}  // namespace

void TellRows(const Problem& p, const DeltaReadouts& to, int first_row, int rows, Stream stream) {
  if (rows == 0) return;
  const bool channel_decay = p.chunk_decay != nullptr;
  TellRowsKernel<<<(rows + kRowsPerBlock - 1) / kRowsPerBlock, kRowsPerBlock * 32, 0,
                   static_cast<cudaStream_t>(stream)>>>(p, to, channel_decay, first_row, rows);
}

}  // namespace eddy::delta_chunk
