// Prepares the rule's inputs of rows that are not decoding ones: short convolutions, activation,
// norms, step sizes and decays, in one pass; then the histories are moved on.
//
// A warp has one head of q, k or v, or the channel decays of one value head, for a tile of rows of
// which it keeps the convolution's window in registers. A window that a tile begins with comes from
// the rows before, or from the record where the sequence begins. The warp of a k head computes what
// its value heads have one number of: at the end, a row a lane. The results of a row depend on its
// sequence alone.
#include <cuda_bf16.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/layers/delta/delta_prepare_cuda.cuh"

namespace eddy {
namespace {

constexpr int kWarps = 4;
// A window of W - 1 rows is read again for each tile: of the longer one, a tenth more for W = 4.
// It needs many rows to keep the card busy, the shorter one fewer. At most 32, a row a lane.
constexpr int kLongTile = 32, kShortTile = 8, kManyRows = 16384;

// Rows of a part are counted from its first one. Where sequence `i` begins and ends.
struct Sequence {
  int index, begin, end;
  int32_t slot;
};

__device__ Sequence SequenceAt(const DeltaPrepareParams& p, int index) {
  return {index, p.row_start[index] - p.a.part.first_row,
          p.row_start[index + 1] - p.a.part.first_row, p.slots[index]};
}

__device__ Sequence SequenceOfRow(const DeltaPrepareParams& p, int row) {
  int low = p.a.part.first_sequence, high = low + p.a.part.sequences - 1;
  while (low < high) {  // the last one that begins at `row` or before it
    const int middle = (low + high + 1) / 2;
    if (p.row_start[middle] - p.a.part.first_row <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return SequenceAt(p, low);
}

// window[j]: the inputs of row - (kHistory - j), from the rows before or from the record.
template <typename L, typename T, int kHistory, int kElements>
__device__ __forceinline__ void FillWindow(const DeltaPrepareParams& p, const DeltaUnit& unit,
                                           const Sequence& sequence, int row, int lane,
                                           float (&window)[kHistory][kElements]) {
  const FieldView& field = DeltaHistoryOf(p.a, unit);
  const int64_t width =
      int64_t{unit.dim} * (unit.kind == DeltaUnit::kValue ? p.o.value_heads : p.o.heads);
#pragma unroll
  for (int j = 0; j < kHistory; ++j) {
    const int back = kHistory - j;
#pragma unroll
    for (int e = 0; e < kElements; ++e) window[j][e] = 0.0f;
    if (back > p.o.history) continue;
    const int at = row - back - sequence.begin;
    if (at >= 0) {
      const T* x = static_cast<const T*>(p.a.projected) +
                   int64_t{row - back} * p.a.projected_stride + unit.column;
      L::Load(x, unit.dim, lane, window[j]);
    } else if (sequence.slot != kNoSlot) {
      const float* x = FieldAt<const float>(field, sequence.slot) + (p.o.history + at) * width;
      L::Load(x + unit.channel, unit.dim, lane, window[j]);
    }
  }
}

template <typename T, int kVector, int kElements, int kHistory>
__global__ void __launch_bounds__(kWarps * 32, kElements <= 4 && kHistory <= 3 ? 5 : 1)
    PrepareRowsKernel(const __grid_constant__ DeltaPrepareParams p) {
  using L = Lanes<32, kVector, kElements>;
  constexpr int kAhead = kElements <= 4 ? 4 : (kElements <= 8 ? 2 : 1);  // rows read at once
  AllowNext();
  const int item = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = item / p.units * p.tile_rows;
  const DeltaUnit unit = DeltaUnitOf(p, item % p.units);
  const DeltaTapsHeld<L, kHistory, kElements> taps(p, unit, lane);
  WaitForPrevious();
  const int end = min(first + p.tile_rows, p.a.part.rows);
  if (first >= end) return;
  if (unit.kind == DeltaUnit::kDecay) {
    DeltaChannelDecay<L, kAhead, kElements>(p, first, end, unit.head, lane);
    return;
  }
  const T* const column = static_cast<const T*>(p.a.projected) + unit.column;
  Sequence sequence = SequenceOfRow(p, first);
  float window[kHistory][kElements];
  float square = 0;  // |k|^2 of the lane's row
  FillWindow<L, T>(p, unit, sequence, first, lane, window);
  for (int begin = first; begin < end; begin += kAhead) {
    float ahead[kAhead][kElements];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int row = min(begin + u, end - 1);
      L::Load(column + row * p.a.projected_stride, unit.dim, lane, ahead[u]);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int row = begin + u;
      if (row >= end) break;
      if (row >= sequence.end) {
        while (row >= sequence.end) sequence = SequenceAt(p, sequence.index + 1);
        FillWindow<L, T>(p, unit, sequence, row, lane, window);
      }
      float x[kElements];
      if (p.o.history > 0) {
        DeltaConvolve<L>(p, unit, lane, taps, window, ahead[u], x);
        DeltaShift(ahead[u], window);
      } else {
#pragma unroll
        for (int e = 0; e < kElements; ++e) x[e] = ahead[u][e];
      }
      DeltaActivate<L>(p, unit, lane, x);
      DeltaStore<L, T>(p, unit, row, lane, x);
      if (unit.kind != DeltaUnit::kKey || !DeltaUsesKeyLength(p.o)) continue;
      const float of_row = L::Dot(x, x);
      square = lane == row - first ? of_row : square;
    }
  }
  if (unit.kind == DeltaUnit::kKey && first + lane < end) {
    DeltaRowGates(p, first + lane, unit.head, square);
  }
}

// grid: channels of q, k and v in groups of threads, sequences. One channel a thread.
template <typename T>
__global__ void __launch_bounds__(256)
    SaveHistoryKernel(const __grid_constant__ DeltaPrepareParams p) {
  const int q_width = p.o.heads * p.o.key_dim, v_width = p.o.value_heads * p.o.value_dim;
  const int index = blockIdx.x * 256 + threadIdx.x;
  const Sequence sequence = SequenceAt(p, p.a.part.first_sequence + blockIdx.y);
  const int rows = sequence.end - sequence.begin;
  if (index >= 2 * q_width + v_width || sequence.slot == kNoSlot || rows == 0) return;
  const bool is_q = index < q_width, is_k = !is_q && index < 2 * q_width;
  const int channel = index - (is_q ? 0 : (is_k ? q_width : 2 * q_width));
  const int width = is_q || is_k ? q_width : v_width;
  const FieldView& field = is_q ? p.a.conv_q : (is_k ? p.a.conv_k : p.a.conv_v);
  float* history = FieldAt<float>(field, sequence.slot) + channel;
  const T* x = static_cast<const T*>(p.a.projected) + channel +
               (is_q ? 0 : (is_k ? p.a.k_column : p.a.v_column));
  // Oldest first, so that none is overwritten before it has moved.
  for (int j = 0; j < p.o.history; ++j) {
    const int at = rows - p.o.history + j;
    history[int64_t{j} * width] = at >= 0 ? ToFloat(x[(sequence.begin + at) * p.a.projected_stride])
                                          : history[int64_t{p.o.history + at} * width];
  }
}

template <typename T, int kVector, int kElements, int kHistory>
void Launch(const DeltaPrepareParams& p, cudaStream_t stream) {
  const int64_t tiles = (p.a.part.rows + p.tile_rows - 1) / p.tile_rows;
  const int64_t items = tiles * p.units;
  LaunchDependent(
      stream,
      {.grid = dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), .threads = kWarps * 32},
      PrepareRowsKernel<T, kVector, kElements, kHistory>, p);
}

template <typename T, int kHistory>
void LaunchForDim(const DeltaPrepareParams& p, cudaStream_t stream) {
  const int dim = std::max(p.o.key_dim, p.o.value_dim);
  EDDY_CHECK(dim <= 512);
  if (!DeltaTakesFour(p)) return Launch<T, 1, 16, kHistory>(p, stream);
  if (dim <= 128) return Launch<T, 4, 4, kHistory>(p, stream);
  if (dim <= 256) return Launch<T, 4, 8, kHistory>(p, stream);
  Launch<T, 4, 16, kHistory>(p, stream);
}

template <typename T>
void LaunchRows(const DeltaPrepareParams& p, cudaStream_t stream) {
  // One less than DeltaTaps says.
  if (p.o.history <= 3) return LaunchForDim<T, 3>(p, stream);
  LaunchForDim<T, 7>(p, stream);
}

}  // namespace

void LaunchDeltaPrepareRows(DeltaPrepareParams params, Stream stream) {
  params.tile_rows = params.a.part.rows >= kManyRows ? kLongTile : kShortTile;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (params.a.type == DType::kBF16) {
    LaunchRows<__nv_bfloat16>(params, cuda_stream);
  } else {
    LaunchRows<float>(params, cuda_stream);
  }
}

void DeltaSaveHistoryCuda(const Step& step, const DeltaOptions& options,
                          const DeltaPrepareArgs& args) {
  if (args.part.rows == 0 || options.conv_width == 0) return;
  const DeltaPrepareParams params = DeltaPrepareParamsOf(step, options, args);
  const int64_t channels = 2 * options.q_width() + options.v_width();
  const dim3 grid(static_cast<unsigned>((channels + 255) / 256),
                  static_cast<unsigned>(args.part.sequences));
  const auto stream = static_cast<cudaStream_t>(step.stream);
  if (args.type == DType::kBF16) {
    SaveHistoryKernel<__nv_bfloat16><<<grid, 256, 0, stream>>>(params);
  } else {
    SaveHistoryKernel<float><<<grid, 256, 0, stream>>>(params);
  }
}

}  // namespace eddy
