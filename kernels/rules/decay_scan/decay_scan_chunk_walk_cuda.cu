#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/rules/decay_scan/decay_scan_chunk_cuda.cuh"
#include "kernels/rules/decay_scan/decay_scan_chunk_walker.cuh"

namespace eddy::decay_chunk {
namespace {

// Each stage has loaders of its own, so that two chunks are on their way together.
constexpr int kStages = 2;
constexpr int kWalkers = 128, kLoaders = 64;
constexpr int kThreads = kWalkers + kStages * kLoaders;

// Blocks on one multiprocessor, by shared memory. Two want more registers for those that walk than
// for those that load, which only Hopper gives.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <int K>
constexpr int kBlocksOf = 1;
#else
template <int K>
constexpr int kBlocksOf = K == 256 ? 1 : 2;
#endif

// Barriers of the walkers and the stage's loaders: a stage is full; is empty.
constexpr int kMeeting = kWalkers + kLoaders;
__device__ inline int Full(int stage) { return 1 + stage; }
__device__ inline int Empty(int stage) { return 1 + kStages + stage; }

// Shared memory: stages, then the factors of each.
template <int K, bool kVector, bool kOutputs>
struct Plan {
  using S = Stage<K, kOutputs>;
  static constexpr int kFactors = kVector ? K * 4 : kChunk * 8;
  static constexpr int kBytes = kStages * (S::kBytes + kFactors);
};

struct Walk {
  int first_row = 0, rows = 0;  // of the segment
  int chunk_slot = 0;           // of its first chunk
  int slot = kNoSlot;
  int segment = 0, segments = 1;
  int segment_slot = 0;  // of the sequence's first segment
};

// The segment `segment` of the `index`-th sequence; no rows if there is none.
__device__ Walk FindWalk(const Problem& p, int index, int segment) {
  Walk walk{.segment = segment};
  const int sequence = p.part.first + index;
  const int first = p.part.row_start[sequence];
  const int rows = p.part.row_start[sequence + 1] - first;
  walk.slot = p.part.slots[sequence];
  if (!TakesChunks(rows, walk.slot)) return walk;
  const int segment_rows = SegmentRows(rows, p.args.shape);
  walk.segments = (rows + segment_rows - 1) / segment_rows;
  if (segment >= walk.segments) return walk;
  const int before = first - p.part.row_start[p.part.first];
  walk.first_row = first + segment * segment_rows;
  walk.rows = min(segment_rows, first + rows - walk.first_row);
  walk.chunk_slot = FirstChunkSlot(before) + segment * (segment_rows / kChunk);
  walk.segment_slot = FirstSegmentSlot(before);
  return walk;
}

__device__ float* SegmentState(const Problem& p, int segment_slot, int state) {
  return p.segments +
         (static_cast<int64_t>(segment_slot) * p.states + state) * p.key_dim * p.value_dim;
}

// What a chunk of the walk needs, by the loaders: `output` is read, columns [column, ..) walk.
template <int K, bool kVector, bool kOutputs>
__device__ void LoadStage(const Problem& p, const Walk& walk, int chunk, int output, int column,
                          uint32_t stage, uint32_t factors) {
  using S = Stage<K, kOutputs>;
  const int thread = threadIdx.x % kLoaders, state = output / p.reads;
  const int64_t row = walk.first_row + chunk * kChunk;
  const int rows = min(kChunk, walk.rows - chunk * kChunk);
  const int64_t key_stride = static_cast<int64_t>(p.states / p.key_group) * K;
  delta_chunk::CopyMatrix<K, kLoaders>(p.keys + row * key_stride + state / p.key_group * K,
                                       key_stride, rows, K, thread, stage + S::kKeys);
  if constexpr (kOutputs) {
    const int64_t query_stride = static_cast<int64_t>(p.outputs / p.query_group) * K;
    delta_chunk::CopyMatrix<K, kLoaders>(
        p.queries + row * query_stride + output / p.query_group * K, query_stride, rows, K, thread,
        stage + S::kQueries);
    // P, with zeros right of the blocks of 16 columns that are written.
    constexpr int kStep = kLoaders / 8;
    const int piece = thread % 8, first = thread / 8;
    const int64_t stride = static_cast<int64_t>(p.outputs) * kChunk;
    const Bf16* from = p.scores + row * stride + output * kChunk + first * stride + piece * 8;
    const uint32_t to = stage + S::kScores + delta_chunk::PieceOffset(first, piece);
#pragma unroll
    for (int i = 0; i < kChunk; i += kStep, from += kStep * stride) {
      const bool here = first + i < rows && piece <= (first + i) / 16 * 2 + 1;
      CopyAsync16(to + i * 128, here ? from : p.scores, here);
    }
  }
  // Each warp's columns of v in a slab of its own.
  const float* values =
      p.args.v + row * p.args.value_stride + static_cast<int64_t>(state) * p.value_dim + column;
  constexpr int kStep = kLoaders / 16;
  const int piece = thread % 16, first = thread / 16;
  const int valid = column + piece * 4 < p.value_dim ? rows : 0;
  const float* from = values + first * p.args.value_stride + piece * 4;
  const uint32_t slab = stage + S::kSlabs + piece / 4 * kSlab;
  const uint32_t to[2] = {slab + SlabOffset(first, piece % 4),
                          slab + SlabOffset(first + kStep, piece % 4)};
  static_assert(kStep == 4);  // two steps are the eight rows of SlabOffset
#pragma unroll
  for (int i = 0; i < kChunk; i += kStep, from += kStep * p.args.value_stride) {
    const bool here = first + i < valid;
    CopyAsync16(to[i / kStep % 2] + i / 8 * 512, here ? from : values, here);
  }
  if constexpr (kVector) {
    const int64_t at = static_cast<int64_t>(walk.chunk_slot + chunk) * p.states + state;
    if (thread < K / 4) {
      CopyAsync16(factors + thread * 16, p.chunk_decay + at * K + thread * 4, true);
    }
  } else if (thread < kChunk) {
    const bool here = thread < rows;
    CopyAsync8(factors + thread * 8, p.factors + (row + (here ? thread : 0)) * p.states + state,
               here);
  }
}

// The part of the loaders of a stage. Each read of a chunk takes a step, in turns of the stages.
template <int K, bool kVector, bool kOutputs>
__device__ void LoadChunks(const Problem& p, const Walk& walk, int state, int column,
                           uint32_t shared) {
  using L = Plan<K, kVector, kOutputs>;
  const int chunks = (walk.rows + kChunk - 1) / kChunk, reads = kOutputs ? p.reads : 1;
  const int index = (threadIdx.x - kWalkers) / kLoaders;
  for (int step = index; step < chunks * reads; step += kStages) {
    if (step >= kStages) BarrierSync(Empty(index), kMeeting);
    LoadStage<K, kVector, kOutputs>(p, walk, step / reads, state * p.reads + step % reads, column,
                                    shared + index * L::S::kBytes,
                                    shared + kStages * L::S::kBytes + index * L::kFactors);
    WaitForCopies();
    delta_chunk::PublishToProducts();
    BarrierArrive(Full(index), kMeeting);
  }
}

// The walkers' part. The last step of a chunk writes.
template <int K, bool kVector, bool kOutputs>
__device__ void WalkChunks(const Problem& p, const Walk& walk, int state, int column,
                           std::byte* shared) {
  const int chunks = (walk.rows + kChunk - 1) / kChunk, steps = chunks * (kOutputs ? p.reads : 1);
  if (chunks == 0) return;
  using L = Plan<K, kVector, kOutputs>;
  using S = typename L::S;
  const int warp = threadIdx.x / 32;
  column += warp * kColumns;
  const int columns = p.value_dim - column;  // to the right of which nothing is
  Walker<K, kVector, kOutputs> walker(threadIdx.x % 32);
  const auto for_each = [&](float* memory, auto visit) {
    walker.ForEach(memory + column, p.key_dim, columns, p.value_dim, visit);
  };
  float* const record = FieldAt<float>(p.args.state, walk.slot) +
                        static_cast<int64_t>(state) * p.key_dim * p.value_dim;
  if constexpr (kOutputs) {
    // The last segment's place holds the first one's state; see CombineSegments.
    const int from = walk.segment == 0 ? walk.segments - 1 : walk.segment - 1;
    for_each(walk.segments == 1 ? record : SegmentState(p, walk.segment_slot + from, state),
             [](float& element, const float* at) { element = *at; });
  }
  const int64_t stride = static_cast<int64_t>(p.outputs) * p.value_dim;
  int step = 0;
  const auto walk_step = [&](int chunk, int read, auto writes) {
    const int index = step % kStages, rows = min(kChunk, walk.rows - chunk * kChunk);
    std::byte* const stage = shared + index * S::kBytes;
    std::byte* const slab = stage + S::kSlabs + warp * kSlab;
    const auto* factors =
        reinterpret_cast<const float2*>(shared + kStages * S::kBytes + index * L::kFactors);
    BarrierSync(Full(index), kMeeting);
    Tiles o = {};
    walker.template Chunk<decltype(writes)::value>(slab, factors, SharedAddress(stage), rows, o);
    if constexpr (kOutputs) {
      float* to = p.args.out + (walk.first_row + chunk * kChunk) * stride +
                  int64_t{state * p.reads + read} * p.value_dim + column;
      walker.StoreOutputs(o, slab, rows, columns, stride, to);
    }
    if constexpr (decltype(writes)::value) walker.Finish();
    if (++step + kStages <= steps) BarrierArrive(Empty(index), kMeeting);
  };
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int read = 0; kOutputs && read + 1 < p.reads; ++read) {
      walk_step(chunk, read, std::false_type());
    }
    walk_step(chunk, p.reads - 1, std::true_type());
  }
  if constexpr (kOutputs) {
    if (walk.segment < walk.segments - 1) return;
    const bool lost = walker.lost < kChunk;
    for_each(record, [&](float element, float* at) { *at = lost ? NAN : element; });
  } else {
    const bool lost = walker.lost < kChunk;
    for_each(SegmentState(p, walk.segment_slot + walk.segment, state),
             [&](float element, float* at) { *at = lost ? NAN : element; });
  }
}

// Grid: segments and in them tiles of columns, so that those who read the same run at the same
// time; states.
template <int K, bool kVector, bool kOutputs>
__global__ void __launch_bounds__(kThreads, kBlocksOf<K>)
    WalkSegments(const Problem p, int max_segments, int tiles) {
  extern __shared__ __align__(1024) std::byte shared[];
  const int tile = blockIdx.x % tiles, block = blockIdx.x / tiles;
  const int state = blockIdx.y, column = tile * kTileColumns;
  const auto find = [&] {
    Walk walk = FindWalk(p, block / max_segments, block % max_segments);
    // Nobody needs what the last segment adds.
    if (!kOutputs && walk.segment == walk.segments - 1) walk.rows = 0;
    return walk;
  };
  if (threadIdx.x < kWalkers) {
    if constexpr (kBlocksOf<K> == 2) ExtendRegisters<192>();
    WalkChunks<K, kVector, kOutputs>(p, find(), state, column, shared);
  } else {
    if constexpr (kBlocksOf<K> == 2) LimitRegisters<64>();
    LoadChunks<K, kVector, kOutputs>(p, find(), state, column, SharedAddress(shared));
  }
}

// Turns what a sequence's segments add into the segments' initial states: the place of segment i
// gets the state after it, and that of the last segment, which needs no map, the state before the
// first, which the second walk may not read from the record that its last segment writes. x runs
// over elements of a state, four for each thread, y over states, z over sequences.
constexpr int kCombineThreads = 128;
__global__ void __launch_bounds__(kCombineThreads) CombineSegments(const Problem p) {
  const Walk walk = FindWalk(p, blockIdx.z, 0);
  const int size = p.key_dim * p.value_dim, state = blockIdx.y;
  const int at = (blockIdx.x * kCombineThreads + threadIdx.x) * 4;
  if (walk.rows == 0 || walk.segments == 1 || at >= size) return;
  const int chunks = walk.rows / kChunk;  // of every segment but the last
  const int decays = p.args.channel_decay ? p.padded_dim : 1;
  const int channel = p.args.channel_decay ? at / p.value_dim : 0;
  const int64_t stride = static_cast<int64_t>(p.states) * decays;
  const float* decay = p.chunk_decay + walk.chunk_slot * stride + state * decays + channel;
  Floats<4> s = LoadFloats<4>(FieldAt<float>(p.args.state, walk.slot),
                              static_cast<int64_t>(state) * size + at);
  StoreFloats(SegmentState(p, walk.segment_slot + walk.segments - 1, state), at, s);
  const auto fetch = [&](int segment, float& all) {
    all = 1;
#pragma unroll 16
    for (int chunk = 0; chunk < chunks; ++chunk, decay += stride) all *= *decay;
    return LoadFloats<4>(SegmentState(p, walk.segment_slot + segment, state), at);
  };
  float all;
  Floats<4> added = fetch(0, all);
  for (int segment = 0; segment + 1 < walk.segments; ++segment) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s.v[i] = __fmaf_rn(all, s.v[i], added.v[i]);
    // Before the store, which it need not wait for.
    if (segment + 2 < walk.segments) added = fetch(segment + 1, all);
    StoreFloats(SegmentState(p, walk.segment_slot + segment, state), at, s);
  }
}

template <int K, bool kVector, bool kOutputs>
void Launch(const Problem& p, int max_segments, Stream stream) {
  constexpr int kBytes = Plan<K, kVector, kOutputs>::kBytes;
  const auto kernel = WalkSegments<K, kVector, kOutputs>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int tiles = TilesOf(p.value_dim);
  const dim3 grid((p.part.end - p.part.first) * max_segments * tiles, p.states);
  kernel<<<grid, kThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(p, max_segments, tiles);
}

template <int K>
void Launch(const Problem& p, bool outputs, int max_segments, Stream stream) {
  const bool vector = p.args.channel_decay;
  if (outputs && vector) return Launch<K, true, true>(p, max_segments, stream);
  if (outputs) return Launch<K, false, true>(p, max_segments, stream);
  if (vector) return Launch<K, true, false>(p, max_segments, stream);
  Launch<K, false, false>(p, max_segments, stream);
}

}  // namespace

int WalkBytes(int padded_dim) {
  if (padded_dim == 64) return Plan<64, true, true>::kBytes;
  if (padded_dim == 128) return Plan<128, true, true>::kBytes;
  return Plan<256, true, true>::kBytes;
}

void Walk(const Problem& p, bool outputs, int max_segments, Stream stream) {
  if (p.padded_dim == 64) Launch<64>(p, outputs, max_segments, stream);
  if (p.padded_dim == 128) Launch<128>(p, outputs, max_segments, stream);
  if (p.padded_dim == 256) Launch<256>(p, outputs, max_segments, stream);
}

void Combine(const Problem& p, Stream stream) {
  const int size = p.key_dim * p.value_dim;
  const dim3 grid((size + 4 * kCombineThreads - 1) / (4 * kCombineThreads), p.states,
                  p.part.end - p.part.first);
  CombineSegments<<<grid, kCombineThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

}  // namespace eddy::decay_chunk
