// Prepares the rule's inputs of rows that are not decoding ones: short convolutions, activation,
// norms, step sizes and decays, in one pass; then the histories are moved on.
//
// A warp, or half of one, has one head of q, k or v, or the channel decays of one value head, for a
// tile of rows of which it keeps the convolution's window in registers. It goes through them a few
// at a time, so that what is done to these overlaps, and the next few are on their way meanwhile. A
// window that a tile begins with comes from the rows before, or from the record where the sequence
// begins. Who has a k head computes what its value heads have one number of, a lane for each row.
// The results of a row depend on its sequence alone.
#include <cuda_bf16.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/layers/delta/delta_prepare_cuda.cuh"

namespace eddy {
namespace {

constexpr int kThreads = 128;

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

// Rows that are worked on together. More of them take too many registers.
template <typename T, typename L, int kHistory>
constexpr int BatchRows() {
  return sizeof(typename L::template Raw<T>) == 16 && kHistory <= 3 ? 4 : 1;
}

// `count` rows from `from` on, as far as there is room. Nothing waits for them yet.
template <typename T, typename L, int kBatch>
__device__ __forceinline__ void AskForRows(const T* from, int64_t stride, int count, int dim,
                                           int lane, typename L::template Raw<T> (&raw)[kBatch]) {
#pragma unroll
  for (int u = 0; u < kBatch; ++u) {
    L::LoadRaw(from, u < count ? dim : 0, lane, raw[u]);
    from += stride;
  }
}

// The options that most models have: a convolution, and of q and k SiLU and the L2 norm. `kUsual`
// says so while compiling, which leaves registers for the rows.
bool IsUsual(const DeltaSettings& o) {
  return o.history > 0 && o.activation == Activation::kSilu &&
         o.query_norm == DeltaOptions::Norm::kL2 && o.key_norm == DeltaOptions::Norm::kL2 &&
         !DeltaUsesKeyLength(o);
}

// The activation of a unit's rows, and their norm.
template <typename L, bool kUsual, int kRows, int kElements>
__device__ __forceinline__ void ActivateRows(const DeltaPrepareParams& p, const DeltaUnit& unit,
                                             int lane, float (&x)[kRows][kElements]) {
  const bool is_value = unit.kind == DeltaUnit::kValue, is_key = unit.kind == DeltaUnit::kKey;
  const Activation activation = kUsual || is_value ? Activation::kSilu : p.o.activation;
  if (activation == Activation::kSilu) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) x[u][e] = Silu(x[u][e]);
    }
  } else if (activation != Activation::kNone) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        // e^0 of an entry beyond the vector's end must not count.
        x[u][e] = L::Index(lane, e) < unit.dim ? Activate(activation, x[u][e]) : 0.0f;
      }
    }
  }
  if (is_value) return;
  const DeltaOptions::Norm norm = is_key ? p.o.key_norm : p.o.query_norm;
  const float scale = is_key ? 1.0f : p.o.query_scale;
  if (kUsual || norm == DeltaOptions::Norm::kL2) {
    float factor[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) factor[u] = scale * L2Factor<L>(x[u]);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) x[u][e] *= factor[u];
    }
  } else {
#pragma unroll
    for (int u = 0; u < kRows; ++u) DeltaNormalise<L>(norm, scale, x[u]);
  }
}

// Rows [first, end) of one sequence.
template <typename T, typename L, int kElements, int kHistory, bool kUsual>
__device__ __forceinline__ void PrepareRows(const DeltaPrepareParams& p, const DeltaUnit& unit,
                                            const Sequence& sequence, int first, int end, int lane,
                                            const DeltaTapsHeld<L, kHistory, kElements>& taps) {
  constexpr int kBatch = BatchRows<T, L, kHistory>();
  using Window = float[kHistory][kElements];
  const T* from = static_cast<const T*>(p.a.projected) + first * p.a.projected_stride + unit.column;
  typename L::template Raw<T> raw[kBatch];
  AskForRows<T, L>(from, p.a.projected_stride, end - first, unit.dim, lane, raw);
  // The rows before those of a batch, and the batch.
  float inputs[kHistory + kBatch][kElements];
  FillWindow<L, T>(p, unit, sequence, first, lane, reinterpret_cast<Window&>(inputs[0]));
  T* to = DeltaOutput<T>(p, unit, first);
  float square = 0;  // |k|^2 of the lane's row of kAcross
#pragma unroll 1
  for (int begin = first; begin < end; begin += kBatch) {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) L::Unpack(raw[u], inputs[kHistory + u]);
    from += kBatch * p.a.projected_stride;
    AskForRows<T, L>(from, p.a.projected_stride, end - begin - kBatch, unit.dim, lane, raw);
    float x[kBatch][kElements];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (kUsual || p.o.history > 0) {
        DeltaConvolve<L>(p, unit, lane, taps, reinterpret_cast<Window&>(inputs[u]),
                         inputs[kHistory + u], x[u]);
      } else {
#pragma unroll
        for (int e = 0; e < kElements; ++e) x[u][e] = inputs[kHistory + u][e];
      }
    }
    ActivateRows<L, kUsual>(p, unit, lane, x);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (begin + u < end) L::Store(x[u], unit.dim, lane, to + u * p.a.stride);
    }
    to += kBatch * p.a.stride;
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) inputs[j][e] = inputs[kBatch + j][e];
    }
    if (unit.kind != DeltaUnit::kKey) continue;
    if (!kUsual && DeltaUsesKeyLength(p.o)) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const float of_row = L::Dot(x[u], x[u]);
        square = (begin + u - first) % L::kAcross == lane ? of_row : square;
      }
    }
    const int done = begin + kBatch - first;
    if (done % L::kAcross == 0 || begin + kBatch >= end) {
      const int row = first + (done - 1) / L::kAcross * L::kAcross + lane;
      if (row < end) DeltaRowGates(p, row, unit.head, square);
    }
  }
}

// Where a warp has two units they are of one kind and of one tile, and its halves go in step.
template <typename T, typename L, int kElements, int kHistory, bool kUsual>
__global__ void __launch_bounds__(kThreads, kHistory > 3 || kElements > 8 ? 1
                                            : kElements > 4 && !kUsual    ? 3
                                                                          : 4)
    PrepareRowsKernel(const __grid_constant__ DeltaPrepareParams p) {
  AllowNext();
  const int item = ((gridDim.x - 1 - blockIdx.x) * kThreads + threadIdx.x) / L::kAcross;
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
  Sequence sequence = SequenceOfRow(p, first);
  for (int begin = first; begin < end;) {
    while (begin >= sequence.end) sequence = SequenceAt(p, sequence.index + 1);
    const int until = min(end, sequence.end);
    PrepareRows<T, L, kElements, kHistory, kUsual>(p, unit, sequence, begin, until, lane, taps);
    begin = until;
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
  WaitForPrevious();
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

// So many tiles that a card's multiprocessors have about four blocks each, as many as run at once:
// what a tile begins with is read twice. Long tiles, though, would leave some idle at the end.
int TileRows(const DeltaPrepareParams& p, int items) {
  constexpr int kBlocks = 528, kLeast = 8, kMost = 64, kMultiple = 4;
  const int tiles = std::max(1, kBlocks * items / p.units);
  const int rows = (p.a.part.rows + tiles - 1) / tiles;
  return std::clamp((rows + kMultiple - 1) / kMultiple * kMultiple, kLeast, kMost);
}

template <typename T, int kHistory, int kLanes, int kVector, int kElements, bool kUsual = false>
void Launch(DeltaPrepareParams p, cudaStream_t stream) {
  constexpr int kItems = kThreads / kLanes;  // of a block
  p.tile_rows = TileRows(p, kItems);
  const int64_t tiles = (p.a.part.rows + p.tile_rows - 1) / p.tile_rows;
  const int64_t items = tiles * p.units;
  LaunchDependent(
      stream,
      {.grid = dim3(static_cast<unsigned>((items + kItems - 1) / kItems)), .threads = kThreads},
      PrepareRowsKernel<T, Lanes<kLanes, kVector, kElements>, kElements, kHistory, kUsual>, p);
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
  if constexpr (sizeof(T) == 2 && kHistory <= 3) {
    if (TakesHalves(p, dim) && IsUsual(p.o)) return Launch<T, kHistory, 16, 8, 8, true>(p, stream);
  }
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
  const LaunchShape shape = {.grid = grid, .threads = 256};
  if (args.type == DType::kBF16) {
    LaunchDependent(stream, shape, SaveHistoryKernel<__nv_bfloat16>, params);
  } else {
    LaunchDependent(stream, shape, SaveHistoryKernel<float>, params);
  }
}

}  // namespace eddy
