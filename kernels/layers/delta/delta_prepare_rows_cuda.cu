// Prepares the rule's inputs of rows that are not decoding ones: short convolutions, activation,
// norms, step sizes and decays, in one pass; then the histories are moved on.
//
// A warp, or half of one, has one head of q, k or v, or the channel decays of one value head, for a
// tile of rows of which it keeps the convolution's window in registers; the next rows are on their
// way meanwhile. A window that a tile begins with comes from
// the rows before, or from the record where the sequence begins. Who has a k head computes what its
// value heads have one number of: at the end, a lane for each row. The results of a row depend on
// its sequence alone.
#include <cuda_bf16.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/layers/delta/delta_prepare_cuda.cuh"

namespace eddy {
namespace {

constexpr int kThreads = 128;
// Rows of a tile, at most 32. A window of W - 1 rows is read again for each tile, and so are the
// taps; but it takes many tiles to keep the card busy.
constexpr int kMostTileRows = 32;
int TileRows(int rows) { return rows >= 16384 ? kMostTileRows : (rows >= 4096 ? 16 : 8); }

// Rows of a part are counted from its first one. Where sequence `i` begins and ends; one for a
// warp.
struct Sequence {
  int index, begin, end;
  int32_t slot;
};

__device__ Sequence SequenceAt(const DeltaPrepareParams& p, int index) {
  return {index, Uniform(p.row_start[index] - p.a.part.first_row),
          Uniform(p.row_start[index + 1] - p.a.part.first_row), Uniform(p.slots[index])};
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

// The rows ahead of a thread, of each its elements. Where they are 16 bytes they wait in shared
// memory, since copies to there come in order: of loads to registers, whoever waits for one tends
// to wait for all of them.
constexpr int kRingRows = 8;
template <typename T, typename L, bool kRing>
struct RowsAhead;

template <typename T, typename L>
struct RowsAhead<T, L, true> {
  static constexpr int kRows = kRingRows;
  using Raw = typename L::template Raw<T>;

  __device__ RowsAhead(const T* at, int64_t stride, int end, int dim, int lane, Raw* room)
      : at_(at + L::Index(lane, 0)),
        stride_(stride),
        end_(end),
        inside_(L::Index(lane, 0) < dim),
        room_(room + threadIdx.x) {}
  // Rows from `first` on, in turn.
  __device__ void Begin(int first) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) Ask(first + u, u);
  }
  // The oldest one; asks for the one kRows behind it.
  __device__ Raw Take(int row, int first) {
    const int place = (row - first) % kRows;
    WaitCopies<kRows - 1>();
    const Raw raw = room_[place * kThreads];
    Ask(row + kRows, place);
    return raw;
  }

 private:
  __device__ void Ask(int row, int place) {
    const bool wanted = inside_ && row < end_;
    CopyAsync16(SharedAddress(room_ + place * kThreads), wanted ? at_ + row * stride_ : at_,
                wanted);
    CommitCopies();
  }
  const T* const at_;
  const int64_t stride_;
  const int end_;
  const bool inside_;
  Raw* const room_;
};

template <typename T, typename L>
struct RowsAhead<T, L, false> {
  using Raw = typename L::template Raw<T>;

  __device__ RowsAhead(const T* at, int64_t stride, int end, int dim, int lane, Raw*)
      : at_(at), stride_(stride), end_(end), dim_(dim), lane_(lane) {}
  __device__ void Begin(int row) { L::LoadRaw(at_ + row * stride_, dim_, lane_, next_); }
  __device__ Raw Take(int row, int) {
    const Raw raw = next_;
    Begin(min(row + 1, end_ - 1));
    return raw;
  }

 private:
  const T* const at_;
  const int64_t stride_;
  const int end_, dim_, lane_;
  Raw next_;
};

// Where a warp has two units they are of one kind and of one tile, and its halves go in step.
template <typename T, typename L, int kElements, int kHistory>
__global__ void __launch_bounds__(kThreads, kHistory > 3 || kElements > 8 ? 1
                                            : kElements > 4               ? 4
                                                                          : 5)
    PrepareRowsKernel(const __grid_constant__ DeltaPrepareParams p) {
  using Raw = typename L::template Raw<T>;
  constexpr bool kRing = sizeof(Raw) == 16 && L::kRun == kElements;
  using Ahead = RowsAhead<T, L, kRing>;
  __shared__ Raw room[kRing ? kRingRows * kThreads : 1];
  constexpr int kSquares = kMostTileRows / L::kAcross;
  // Rows that are gone through without moving the window. More take too many registers.
  constexpr int kBatch = kRing && kHistory <= 3 ? 3 : 1;
  AllowNext();
  const int item = (blockIdx.x * kThreads + threadIdx.x) / L::kAcross;
  const int lane = threadIdx.x % L::kAcross;
  const int first = Uniform(item / p.units * p.tile_rows);
  DeltaUnit unit = DeltaUnitOf(p, item % p.units);
  unit.kind = static_cast<DeltaUnit::Kind>(Uniform(unit.kind));
  const DeltaTapsHeld<L, kHistory, kElements> taps(p, unit, lane);
  WaitForPrevious();
  const int end = min(first + p.tile_rows, p.a.part.rows);
  if (first >= end) return;
  if (unit.kind == DeltaUnit::kDecay) {
    DeltaChannelDecay<L, kElements <= 4 ? 4 : 2, kElements>(p, first, end, unit.head, lane);
    return;
  }
  const T* const column = static_cast<const T*>(p.a.projected) + unit.column;
  Ahead ahead(column, p.a.projected_stride, end, unit.dim, lane, room);
  ahead.Begin(first);
  Sequence sequence = SequenceOfRow(p, first);
  // The rows before those of a batch, and the batch.
  float inputs[kHistory + kBatch][kElements];
  using Window = float[kHistory][kElements];
  float squares[kSquares] = {};  // |k|^2 of the lane's rows
  FillWindow<L, T>(p, unit, sequence, first, lane, reinterpret_cast<Window&>(inputs[0]));
  T* to = DeltaOutput<T>(p, unit, first);
  for (int begin = first; begin < end; begin += kBatch) {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int row = begin + u;
      if (row >= end) break;
      Window& window = reinterpret_cast<Window&>(inputs[u]);
      if (row >= sequence.end) {
        while (row >= sequence.end) sequence = SequenceAt(p, sequence.index + 1);
        FillWindow<L, T>(p, unit, sequence, row, lane, window);
      }
      float(&given)[kElements] = inputs[kHistory + u];
      float x[kElements];
      L::Unpack(ahead.Take(row, first), given);
      if (p.o.history > 0) {
        DeltaConvolve<L>(p, unit, lane, taps, window, given, x);
      } else {
#pragma unroll
        for (int e = 0; e < kElements; ++e) x[e] = given[e];
      }
      DeltaActivate<L>(p, unit, lane, x);
      L::Store(x, unit.dim, lane, to);
      to += p.a.stride;
      if (unit.kind != DeltaUnit::kKey || !DeltaUsesKeyLength(p.o)) continue;
      const float of_row = L::Dot(x, x);
#pragma unroll
      for (int i = 0; i < kSquares; ++i) {
        squares[i] = i * L::kAcross + lane == row - first ? of_row : squares[i];
      }
    }
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) inputs[j][e] = inputs[kBatch + j][e];
    }
  }
  if (unit.kind != DeltaUnit::kKey) return;
#pragma unroll
  for (int i = 0; i < kSquares; ++i) {
    const int row = first + i * L::kAcross + lane;
    if (row < end) DeltaRowGates(p, row, unit.head, squares[i]);
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

template <typename T, int kHistory, int kLanes, int kVector, int kElements>
void Launch(const DeltaPrepareParams& p, cudaStream_t stream) {
  constexpr int kItems = kThreads / kLanes;
  const int64_t tiles = (p.a.part.rows + p.tile_rows - 1) / p.tile_rows;
  const int64_t items = tiles * p.units;
  LaunchDependent(
      stream,
      {.grid = dim3(static_cast<unsigned>((items + kItems - 1) / kItems)), .threads = kThreads},
      PrepareRowsKernel<T, Lanes<kLanes, kVector, kElements>, kElements, kHistory>, p);
}

// Whether units can be half a warp each, with 16 bytes of bfloat16 a lane.
bool TakesHalves(const DeltaPrepareParams& p, int dim) {
  const DeltaSettings& o = p.o;
  return dim <= 128 && o.heads % 2 == 0 && o.value_heads % 2 == 0 && o.key_dim % 8 == 0 &&
         o.value_dim % 8 == 0 && p.a.projected_stride % 8 == 0 && p.a.stride % 8 == 0;
}

template <typename T, int kHistory>
void LaunchForDim(const DeltaPrepareParams& p, cudaStream_t stream) {
  const int dim = std::max(p.o.key_dim, p.o.value_dim);
  EDDY_CHECK(dim <= 512);
  if (!DeltaTakesFour(p)) return Launch<T, kHistory, 32, 1, 16>(p, stream);
  if constexpr (sizeof(T) == 2) {
    if (TakesHalves(p, dim)) return Launch<T, kHistory, 16, 8, 8>(p, stream);
  }
  if (dim <= 128) return Launch<T, kHistory, 32, 4, 4>(p, stream);
  if (dim <= 256) return Launch<T, kHistory, 32, 4, 8>(p, stream);
  Launch<T, kHistory, 32, 4, 16>(p, stream);
}

template <typename T>
void LaunchRows(const DeltaPrepareParams& p, cudaStream_t stream) {
  // One less than DeltaTaps says.
  if (p.o.history <= 3) return LaunchForDim<T, 3>(p, stream);
  LaunchForDim<T, 7>(p, stream);
}

}  // namespace

void LaunchDeltaPrepareRows(DeltaPrepareParams params, Stream stream) {
  params.tile_rows = TileRows(params.a.part.rows);
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
