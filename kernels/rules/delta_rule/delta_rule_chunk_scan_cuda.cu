#include <cuda_runtime.h>

#include <climits>
#include <type_traits>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/compiled_for.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_lost.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_walker.cuh"

namespace eddy::delta_chunk {
namespace {

struct Walk {
  int first_row = 0, rows = 0;  // of the segment
  int chunk_slot = 0;           // of its first chunk
  int slot = kNoSlot;
  int segment = 0, segments = 1;
  int segment_slot = 0;  // of the sequence's first segment
  int tile = 0;          // of columns
  __device__ int Chunks() const { return (rows + kChunk - 1) / kChunk; }
};

// The segment of this block; no rows if there is none.
__device__ Walk FindWalk(const Problem& p, int max_segments, int tiles) {
  Walk walk;
  walk.tile = blockIdx.x % tiles;
  const int block = blockIdx.x / tiles, index = block / max_segments;
  const int sequence = p.first_sequence + index;
  walk.segment = block % max_segments;
  const int first = p.row_start[sequence];
  const int rows = p.row_start[sequence + 1] - first;
  walk.slot = p.slots[sequence];
  if (rows == 0 || walk.slot == kNoSlot) return walk;
  const int segment_rows = SegmentRows(rows, p.value_heads);
  walk.segments = (rows + segment_rows - 1) / segment_rows;
  if (walk.segment >= walk.segments) return walk;
  const int before = first - p.first_sequence;
  walk.first_row = first + walk.segment * segment_rows;
  walk.rows = min(segment_rows, first + rows - walk.first_row);
  walk.chunk_slot = FirstChunkSlot(before, index) + walk.segment * (segment_rows / kChunk);
  walk.segment_slot = FirstSegmentSlot(before);
  return walk;
}

// The warps' columns of U, each warp's in a slab of its own.
template <int kWarps, int kThreads>
__device__ inline void LoadSlabs(const __nv_bfloat16* values, int64_t stride, int rows, int columns,
                                 int thread, uint32_t to) {
  constexpr int kPieces = kWarps * 2, kStep = kThreads / kPieces;
  const int piece = thread % kPieces, first = thread / kPieces;
  const __nv_bfloat16* at = values + first * stride + piece * 8;
  const int valid = piece * 8 < columns ? rows : 0;
  to += piece / 2 * kSlab;
#pragma unroll
  for (int row = 0; row < kChunk; row += kStep, at += kStep * stride) {
    const bool here = first + row < valid;
    CopyAsync16(to + SlabOffset(first + row, piece % 2), here ? at : values, here);
  }
}

// P, with zeros right of the blocks of 16 columns that are written.
template <int kThreads>
__device__ inline void LoadScores(const __nv_bfloat16* scores, int64_t stride, int rows, int thread,
                                  uint32_t to) {
  const int piece = thread % 8, first = thread / 8;
  const __nv_bfloat16* at = scores + first * stride + piece * 8;
#pragma unroll
  for (int row = 0; row < kChunk; row += kThreads / 8, at += kThreads / 8 * stride) {
    const bool here = first + row < rows && piece <= (first + row) / 16 * 2 + 1;
    CopyAsync16(to + PieceOffset(first + row, piece), here ? at : scores, here);
  }
}

// What a chunk of the walk needs, by kThreads threads.
template <int K, bool kVector, bool kOutputs, int kWarps, int kThreads>
__device__ void LoadStage(const Problem& p, const Walk& walk, int chunk, int head, int thread,
                          uint32_t to) {
  using S = Stage<K, kOutputs>;
  const int64_t row = walk.first_row + chunk * kChunk;
  const int rows = min(kChunk, walk.rows - chunk * kChunk);
  const int64_t head_row = row * p.value_heads + head;
  const auto load = [&](const __nv_bfloat16* from, int64_t stride, uint32_t at) {
    CopyMatrix<K, kThreads>(from, stride, rows, K, thread, to + at);
  };
  const int64_t scratch_stride = static_cast<int64_t>(p.value_heads) * K;
  load(p.wy_keys + head_row * K, scratch_stride, S::kKeys);
  if constexpr (kVector) {
    load(p.writes + head_row * K, scratch_stride, S::kWrites);
    if (thread < K / 4) {
      const int64_t slot = walk.chunk_slot + chunk;
      CopyAsync16(to + S::kFactors + thread * 16,
                  p.chunk_decay + (slot * p.value_heads + head) * K + thread * 4);
    }
  } else {
    load(p.w + row * p.w_stride + head / p.w_group * K, p.w_stride, S::kWrites);
    if (thread < kChunk) {
      const bool valid = thread < rows;
      CopyAsync8(to + S::kFactors + thread * 8,
                 p.factors + head_row + (valid ? static_cast<int64_t>(thread) * p.value_heads : 0),
                 valid);
    }
  }
  const int column = walk.tile * kWarps * kColumns;
  LoadSlabs<kWarps, kThreads>(p.wy_values + head_row * p.value_dim + column,
                              static_cast<int64_t>(p.value_heads) * p.value_dim, rows,
                              p.value_dim - column, thread, to + S::kSlabs);
  if constexpr (kOutputs) {
    if constexpr (kVector) {
      load(p.queries + head_row * K, scratch_stride, S::kQueries);
    } else {
      load(p.q + row * p.q_stride + head / p.group * K, p.q_stride, S::kQueries);
    }
    LoadScores<kThreads>(p.scores + head_row * kChunk, static_cast<int64_t>(p.value_heads) * kChunk,
                         rows, thread, to + S::kScores);
  }
}

// How a block walks: kWarps warps multiply, kLoaders warps behind them load.
template <int K, bool kOutputs, int kWarps>
struct Plan {
  static constexpr int kLoaders = 4;
  // The registers of a multiprocessor are too few for all warps to have as many as walking takes.
  static constexpr bool kUneven = kOutputs && kWarps == 8;
  static constexpr int kThreads = (kWarps + kLoaders) * 32;
  static constexpr int kStageBytes = Stage<K, kOutputs>::Bytes(kWarps);
};

constexpr int kNoneLost = INT_MAX;

// Barriers: one of kMostStages stages is full; is empty; the loaders have ended; all have, and a
// chunk is lost.
constexpr int kMostStages = 3;
__device__ inline int Full(int stage) { return 1 + stage; }
__device__ inline int Empty(int stage) { return 1 + kMostStages + stage; }
constexpr int kLoaded = 1 + 2 * kMostStages, kLost = kLoaded + 1;

// The loaders' part: keeps all stages but one ahead of the walk along so many chunks. The walkers
// find in `lost_chunk` the first of them in which a row is lost (LoseChunk), or kNoneLost.
template <int K, bool kVector, bool kOutputs, int kWarps>
__device__ void LoadChunks(const Problem& p, const Walk& walk, int head, int chunks, int stages,
                           std::byte* memory, int* lost_chunk) {
  using P = Plan<K, kOutputs, kWarps>;
  const int behind = stages - 2;  // chunks on their way when one is reported
  const int thread = threadIdx.x - kWarps * 32;
  const uint32_t shared = SharedAddress(memory);
  for (int chunk = 0; chunk < chunks + behind; ++chunk) {
    const int stage = chunk % stages;
    if (chunk < chunks) {
      if (chunk >= stages) BarrierSync(Empty(stage), P::kThreads);
      LoadStage<K, kVector, kOutputs, kWarps, P::kLoaders * 32>(p, walk, chunk, head, thread,
                                                                shared + stage * P::kStageBytes);
    }
    CommitCopies();
    if (chunk < behind) continue;
    if (behind == 0) {
      WaitCopies<0>();
    } else {
      WaitCopies<kMostStages - 2>();
    }
    PublishToProducts();
    if (kOutputs && thread == 0) {  // which has copied the first factor itself
      const std::byte* stage = memory + (chunk - behind) % stages * P::kStageBytes;
      const float factor = *reinterpret_cast<const float*>(stage + Stage<K, kOutputs>::kFactors);
      if (isnan(factor)) *lost_chunk = min(*lost_chunk, chunk - behind);
    }
    BarrierArrive(Full((chunk - behind) % stages), P::kThreads);
  }
}

// The same for a whole walk, and once more as far as a lost chunk.
template <int K, bool kVector, bool kOutputs, int kWarps>
__device__ void LoadAll(const Problem& p, const Walk& walk, int head, int stages, std::byte* memory,
                        int* lost_chunk) {
  const auto load = [&](int chunks) {
    LoadChunks<K, kVector, kOutputs, kWarps>(p, walk, head, chunks, stages, memory, lost_chunk);
  };
  if (threadIdx.x == kWarps * 32) *lost_chunk = kNoneLost;
  load(walk.Chunks());
  if constexpr (kOutputs) {
    BarrierSync(kLoaded, Plan<K, kOutputs, kWarps>::kLoaders * 32);
    const int lost = *lost_chunk;
    if (lost == kNoneLost) return;
    BarrierSync(kLost, Plan<K, kOutputs, kWarps>::kThreads);  // all stages are free
    load(lost);
  }
}

// The walkers' part.
template <int K, bool kVector, bool kOutputs, int kWarps>
__device__ void WalkChunks(const Problem& p, const Walk& walk, int head, int warp, int stages,
                           std::byte* shared, const int& lost_chunk) {
  using S = Stage<K, kOutputs>;
  using P = Plan<K, kOutputs, kWarps>;
  const int column = (walk.tile * kWarps + warp) * kColumns;
  const int columns = kOutputs ? p.value_dim : p.value_dim + K;
  const bool active = column < columns;
  // Products take four warps, of which the last may have no columns.
  const bool multiplies = column - warp % 4 * kColumns < columns;

  Walker<K, kVector, kOutputs> walker(threadIdx.x % 32);
  // Addresses are made anew whenever they are needed: the walk has no registers to keep them in.
  const auto anew = [](int64_t at) {
    asm volatile("" : "+l"(at));
    return at;
  };
  const auto segment_rows = [&](int segment) {
    const int64_t place = static_cast<int64_t>(walk.segment_slot + segment) * p.value_heads + head;
    return p.segments + (anew(place) * (p.value_dim + K) + column) * K;
  };
  const auto own_column = [&] { return static_cast<int>(anew(column)); };
  const int64_t stride = static_cast<int64_t>(p.value_heads) * p.value_dim;
  // Along so many chunks from the beginning.
  const auto walk_along = [&](int chunks) {
    if (active) {
      if constexpr (!kOutputs) {
        if (column >= p.value_dim) walker.SetIdentity(column - p.value_dim);
      } else if (walk.segments == 1) {
        if (p.half_state) {
          walker.LoadRecord(RecordAt<const __nv_bfloat16>(p, walk.slot, head, own_column()),
                            p.value_dim);
        } else {
          walker.LoadRecord(RecordAt<const float>(p, walk.slot, head, own_column()), p.value_dim);
        }
      } else {
        // The last segment's place holds the first one's state; see CombineSegments.
        walker.LoadRows(segment_rows(walk.segment == 0 ? walk.segments - 1 : walk.segment - 1));
      }
    }
    int64_t at = walk.first_row * stride + static_cast<int64_t>(head) * p.value_dim + column;
    for (int chunk = 0, index = 0; chunk < chunks; ++chunk, at += kChunk * stride) {
      BarrierSync(Full(index), P::kThreads);
      if (multiplies) {
        std::byte* stage = shared + index * P::kStageBytes;
        std::byte* slab = stage + S::kSlabs + warp * kSlab;
        const int rows = min(kChunk, walk.rows - chunk * kChunk);
        Tiles o;
        // Every 16 columns have a sum for each row.
        float* const squares =
            kOutputs && active && p.squares != nullptr ? p.squares + at / kColumns : nullptr;
        walker.Chunk(stage, SharedAddress(stage), SharedAddress(slab), rows, o, squares,
                     stride / kColumns);
        if (kOutputs && active) {
          if (p.out_f32) {
            StoreOutputs(o, threadIdx.x % 32, rows, stride, static_cast<float*>(p.out) + at);
          } else {
            StoreOutputs(o, slab, threadIdx.x % 32, rows, stride,
                         static_cast<__nv_bfloat16*>(p.out) + at);
          }
        }
        walker.Finish();
      }
      if (chunk + stages < chunks) BarrierArrive(Empty(index), P::kThreads);
      index = index + 1 == stages ? 0 : index + 1;
    }
  };
  if constexpr (!kOutputs) {
    walk_along(walk.Chunks());
    if (active) walker.StoreRows(segment_rows(walk.segment));
  } else {
    int chunks = walk.Chunks();
    while (true) {
      walk_along(chunks);
      if (chunks < walk.Chunks() || lost_chunk == kNoneLost) break;
      chunks = lost_chunk;
      BarrierSync(kLost, P::kThreads);
    }
    if (!active) return;
    if (lost_chunk != kNoneLost) [[unlikely]] {
      const int row = lost_chunk * kChunk;
      StepRows(p, walk.first_row + row, min(kChunk, walk.rows - row), head, column, walker);
    }
    if (walk.segment < walk.segments - 1) return;
    if (p.half_state) {
      walker.StoreRecord(RecordAt<__nv_bfloat16>(p, walk.slot, head, own_column()), p.value_dim);
    } else {
      walker.StoreRecord(RecordAt<float>(p, walk.slot, head, own_column()), p.value_dim);
    }
  }
}

// Grid: segments and in them tiles of columns, so that those who read the same run at the same
// time; value heads. A tile has 16 columns for each warp. Without outputs the columns are V of the
// zero state and then K of the identity.
//
// The decays of a chunk in which a row is lost are NaN, and so is the state behind it. A block that
// has met one walks again as far as there, and takes that chunk's rows one by one.
template <int K, bool kVector, bool kOutputs, int kWarps>
__global__ void __launch_bounds__(Plan<K, kOutputs, kWarps>::kThreads, 1)
    Scan(const Problem p, int max_segments, int tiles, int stages) {
  using P = Plan<K, kOutputs, kWarps>;
  extern __shared__ __align__(1024) std::byte shared[];
  // Who follows may read states before it waits, so it must not start while they are written.
  if constexpr (!kOutputs) AllowNext();
  const Walk walk = FindWalk(p, max_segments, tiles);
  WaitForPrevious();
  if (walk.rows == 0 || (!kOutputs && walk.segment == walk.segments - 1)) return;
  const int head = blockIdx.y, warp = threadIdx.x / 32;
  __shared__ int lost_chunk;
  if (warp >= kWarps) {
    if constexpr (P::kUneven) LimitRegisters<88>();
    LoadAll<K, kVector, kOutputs, kWarps>(p, walk, head, stages, shared, &lost_chunk);
  } else {
    if constexpr (P::kUneven) ExtendRegisters<208>();
    WalkChunks<K, kVector, kOutputs, kWarps>(p, walk, head, warp, stages, shared, lost_chunk);
  }
}

template <int K, bool kVector, bool kOutputs, int kWarps>
void LaunchScan(const Problem& p, int max_segments, int shared_bytes, Stream stream) {
  using P = Plan<K, kOutputs, kWarps>;
  const int columns = p.value_dim + (kOutputs ? 0 : K);
  const int tiles = (columns + kWarps * kColumns - 1) / (kWarps * kColumns);
  const int walks = (p.sequences - p.first_sequence) * max_segments;
  const int stages = P::kStageBytes * kMostStages <= shared_bytes ? kMostStages : kMostStages - 1;
  const int bytes = stages * P::kStageBytes;
  const auto kernel = Scan<K, kVector, kOutputs, kWarps>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  LaunchDependent(static_cast<cudaStream_t>(stream),
                  {.grid = dim3(walks * tiles, p.value_heads),
                   .threads = P::kThreads,
                   .shared_bytes = static_cast<size_t>(bytes)},
                  kernel, p, max_segments, tiles, stages);
}

// Wide tiles of columns read an operand less often, narrow ones keep more multiprocessors busy; the
// bits do not depend on it. Wide ones want code that gives warps registers of others.
template <int K, bool kVector, bool kOutputs>
void LaunchScan(const Problem& p, int max_segments, Stream stream) {
  constexpr int kWanted = 100;  // blocks
  const int64_t walks = static_cast<int64_t>(p.sequences - p.first_sequence) * max_segments;
  const int columns = p.value_dim + (kOutputs ? 0 : K), shared = SharedBytes();
  if constexpr (K < 256) {
    if (KernelsCompiledFor().warpgroups && walks * p.value_heads * (columns / 128) >= kWanted) {
      LaunchScan<K, kVector, kOutputs, 8>(p, max_segments, shared, stream);
      return;
    }
  }
  LaunchScan<K, kVector, kOutputs, 4>(p, max_segments, shared, stream);
}

template <bool kOutputs>
void LaunchScan(const Problem& p, bool vector_decay, int max_segments, Stream stream) {
  const auto launch = [&](auto key_dim) {
    constexpr int K = decltype(key_dim)::value;
    if (vector_decay) {
      LaunchScan<K, true, kOutputs>(p, max_segments, stream);
    } else {
      LaunchScan<K, false, kOutputs>(p, max_segments, stream);
    }
  };
  if (p.key_dim == 64) launch(std::integral_constant<int, 64>());
  if (p.key_dim == 128) launch(std::integral_constant<int, 128>());
  if (p.key_dim == 256) launch(std::integral_constant<int, 256>());
}

}  // namespace

void ScanTransitions(const Problem& p, bool vector_decay, int max_segments, Stream stream) {
  LaunchScan</*kOutputs=*/false>(p, vector_decay, max_segments, stream);
}

void ScanOutputs(const Problem& p, bool vector_decay, int max_segments, Stream stream) {
  LaunchScan</*kOutputs=*/true>(p, vector_decay, max_segments, stream);
}

}  // namespace eddy::delta_chunk
