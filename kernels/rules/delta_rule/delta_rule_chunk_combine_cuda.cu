#include <cuda_runtime.h>

#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"

namespace eddy::delta_chunk {
namespace {

// Turns the maps of a sequence's segments into the segments' initial states: the place of B' of
// segment i gets the state after it, and that of the last segment, whose map nobody needs, the
// state before the first, which the second walk may not read from the record that its last segment
// writes. Grid: sequences, value heads, tiles of kCombined columns; four threads for each of K.
constexpr int kCombined = 8;

// Number i of a record's S. Apart, since the walk behind it would have to share its registers.
__device__ __noinline__ float Number(const std::byte* s, bool half, int64_t i) {
  return half ? ToFloat(reinterpret_cast<const __nv_bfloat16*>(s)[i])
              : reinterpret_cast<const float*>(s)[i];
}

template <int K>
__global__ void __launch_bounds__(4 * K, 256 / K) CombineSegments(const Problem p) {
  __shared__ float state[K][kCombined];
  __shared__ float sums[4][kCombined][K];
  const int sequence = p.first_sequence + blockIdx.x;
  const int first = p.row_start[sequence];
  const int rows = p.row_start[sequence + 1] - first;
  const int slot = p.slots[sequence];
  if (rows == 0 || slot == kNoSlot) return;
  const int segment_rows = SegmentRows(rows, p.value_heads);
  const int segments = (rows + segment_rows - 1) / segment_rows;
  if (segments == 1) return;
  const int head = blockIdx.y, column = blockIdx.z * kCombined;
  const int i = threadIdx.x % K, quarter = threadIdx.x / K;
  const int64_t segment_size = static_cast<int64_t>(p.value_dim + K) * K;
  const auto place = [&](int segment) {
    const int64_t at = FirstSegmentSlot(first - p.first_sequence) + segment;
    return p.segments + (at * p.value_heads + head) * segment_size;
  };
  constexpr int kMine = kCombined / 4;  // columns that a thread sums up
  const std::byte* const record = p.state + slot * p.state_stride;
  for (int m = quarter * kMine; m < (quarter + 1) * kMine; ++m) {
    const int64_t row = static_cast<int64_t>(head) * K + i;
    state[i][m] = Number(record, p.half_state, row * p.value_dim + column + m);
    place(segments - 1)[(column + m) * K + i] = state[i][m];
  }
  __syncthreads();
  constexpr int kRows = K < 256 ? K / 4 : 24;  // of the next map that are fetched in advance
  float map[kRows];
  const auto row = [&](int segment, int k) {
    return place(segment) + static_cast<int64_t>(p.value_dim + quarter * (K / 4) + k) * K + i;
  };
#pragma unroll
  for (int k = 0; k < kRows; ++k) map[k] = *row(0, k);
  for (int segment = 0; segment + 1 < segments; ++segment) {
    float* values = place(segment) + column * K;
    float sum[kCombined] = {};
    const auto add = [&](float m, int k) {
      const float* s = state[quarter * (K / 4) + k];
#pragma unroll
      for (int c = 0; c < kCombined; ++c) sum[c] = __fmaf_rn(m, s[c], sum[c]);
    };
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      add(map[k], k);
      if (segment + 2 < segments) map[k] = *row(segment + 1, k);
    }
#pragma unroll 8
    for (int k = kRows; k < K / 4; ++k) add(*row(segment, k), k);
#pragma unroll
    for (int c = 0; c < kCombined; ++c) sums[quarter][c][i] = sum[c];
    __syncthreads();
    for (int c = quarter * kMine; c < (quarter + 1) * kMine; ++c) {
      const float next =
          values[c * K + i] + ((sums[0][c][i] + sums[1][c][i]) + (sums[2][c][i] + sums[3][c][i]));
      values[c * K + i] = next;
      state[i][c] = next;
    }
    __syncthreads();
  }
}

}  // namespace

void Combine(const Problem& p, Stream stream) {
  const dim3 grid(p.sequences - p.first_sequence, p.value_heads, p.value_dim / kCombined);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (p.key_dim == 64) CombineSegments<64><<<grid, 256, 0, cuda_stream>>>(p);
  if (p.key_dim == 128) CombineSegments<128><<<grid, 512, 0, cuda_stream>>>(p);
  if (p.key_dim == 256) CombineSegments<256><<<grid, 1024, 0, cuda_stream>>>(p);
}

}  // namespace eddy::delta_chunk
