#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"

namespace eddy::delta_chunk {
namespace {

// Turns the maps of a sequence's segments into the segments' initial states: the place of B' of
// segment i gets the state after it, and that of the last segment, whose map nobody needs, the
// state before the first, which the second walk may not read from the record that its last segment
// writes. Grid: sequences, value heads, tiles of Combined<K> columns. A thread has two neighbours
// of K, in one of as many slices of what is summed over as there are columns; and then their sums
// in the column of that number.
template <int K>
constexpr int Combined = K < 256 ? 8 : 4;
template <int K>
constexpr int Threads = K / 2 * Combined<K>;

// Number i of a record's S. Apart, since the walk behind it would have to share its registers.
__device__ __noinline__ float Number(const std::byte* s, bool half, int64_t i) {
  return half ? ToFloat(reinterpret_cast<const __nv_bfloat16*>(s)[i])
              : reinterpret_cast<const float*>(s)[i];
}

template <int K>
__global__ void __launch_bounds__(Threads<K>) CombineSegments(const Problem p) {
  constexpr int kCombined = Combined<K>, kSlices = kCombined, kSummed = K / kSlices;
  __shared__ alignas(16) float state[K][kCombined];
  __shared__ float2 sums[kSlices][kCombined][K / 2];
  // Columns of a row are permuted, so that the threads of a warp write to different banks.
  constexpr int kMask = (kSummed / 2 < kCombined ? kSummed / 2 : kCombined) - 1;
  const auto in_state = [](int i, int c) -> float& { return state[i][c ^ (i / 2 & kMask)]; };
  const int sequence = p.first_sequence + blockIdx.x;
  const int first = p.row_start[sequence];
  const int rows = p.row_start[sequence + 1] - first;
  const int slot = p.slots[sequence];
  if (rows == 0 || slot == kNoSlot) return;
  const int segment_rows = SegmentRows(rows, p.value_heads);
  const int segments = (rows + segment_rows - 1) / segment_rows;
  if (segments == 1) return;
  const int head = blockIdx.y, column = blockIdx.z * kCombined;
  const int pair = threadIdx.x % (K / 2), slice = threadIdx.x / (K / 2);
  const int64_t segment_size = static_cast<int64_t>(p.value_dim + K) * K;
  const auto place = [&](int segment) {
    const int64_t at = FirstSegmentSlot(first - p.first_sequence) + segment;
    return p.segments + (at * p.value_heads + head) * segment_size;
  };
  const std::byte* const record = p.state + slot * p.state_stride;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = 2 * pair + j;
    const int64_t row = static_cast<int64_t>(head) * K + i;
    const float of_record = Number(record, p.half_state, row * p.value_dim + column + slice);
    in_state(i, slice) = of_record;
    place(segments - 1)[(column + slice) * K + i] = of_record;
  }
  __syncthreads();
  constexpr int kRows = kSummed < 32 ? kSummed : 24;  // of the next map that are asked for early
  float2 map[kRows];
  const auto row = [&](int segment, int k) {
    return reinterpret_cast<const float2*>(
        place(segment) + static_cast<int64_t>(p.value_dim + slice * kSummed + k) * K + 2 * pair);
  };
#pragma unroll
  for (int k = 0; k < kRows; ++k) map[k] = *row(0, k);
  for (int segment = 0; segment + 1 < segments; ++segment) {
    auto* const value = reinterpret_cast<float2*>(place(segment) + (column + slice) * K + 2 * pair);
    float2 next = *value;
    float2 sum[kCombined] = {};
    const auto add = [&](float2 m, int k) {
      const float* s = state[slice * kSummed + k];
#pragma unroll
      for (int c = 0; c < kCombined; ++c) {
        const float of_state = s[c ^ (k / 2 & kMask)];  // slices begin at multiples of the mask
        sum[c].x = __fmaf_rn(m.x, of_state, sum[c].x);
        sum[c].y = __fmaf_rn(m.y, of_state, sum[c].y);
      }
    };
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      add(map[k], k);
      if (segment + 2 < segments) map[k] = *row(segment + 1, k);
    }
#pragma unroll 4
    for (int k = kRows; k < kSummed; ++k) add(*row(segment, k), k);
#pragma unroll
    for (int c = 0; c < kCombined; ++c) sums[slice][c][pair] = sum[c];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      next.x += sums[i][slice][pair].x;
      next.y += sums[i][slice][pair].y;
    }
    *value = next;
    in_state(2 * pair, slice) = next.x;
    in_state(2 * pair + 1, slice) = next.y;
    __syncthreads();
  }
}

}  // namespace

void Combine(const Problem& p, Stream stream) {
  const auto launch = [&](auto key_dim) {
    constexpr int K = decltype(key_dim)::value;
    const dim3 grid(p.sequences - p.first_sequence, p.value_heads, p.value_dim / Combined<K>);
    CombineSegments<K><<<grid, Threads<K>, 0, static_cast<cudaStream_t>(stream)>>>(p);
  };
  if (p.key_dim == 64) launch(std::integral_constant<int, 64>());
  if (p.key_dim == 128) launch(std::integral_constant<int, 128>());
  if (p.key_dim == 256) launch(std::integral_constant<int, 256>());
}

}  // namespace eddy::delta_chunk
