#include <cuda_runtime.h>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_grams.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_invert.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_vector.cuh"

namespace eddy::delta_chunk {
namespace {

// The chunk of this block; no rows if there is none.
struct Place {
  int first_row = 0, rows = 0;
  int slot = kNoSlot;
};

// All lanes of a warp: looks for the sequence whose chunk slots hold blockIdx.x.
__device__ Place FindChunk(const Problem& p) {
  const int lane = threadIdx.x % 32, wanted = blockIdx.x;
  const auto first_slot = [&](int sequence) {
    return FirstChunkSlot(p.row_start[sequence] - p.first_sequence, sequence - p.first_sequence);
  };
  // The last sequence that begins at or before the slot: narrows [low, high) 32-fold.
  int low = p.first_sequence, high = p.sequences;
  while (high - low > 1) {
    const int step = (high - low + 31) / 32;
    const int probe = low + lane * step;
    const bool before = probe < high && first_slot(probe) <= wanted;
    const int count = __popc(__ballot_sync(~0u, before));  // lane 0 always: low is before
    low += (count - 1) * step;
    high = min(high, low + step);
  }
  const int first = p.row_start[low], rows = p.row_start[low + 1] - first;
  const int begin = (wanted - first_slot(low)) * kChunk;
  Place place{.first_row = first + begin, .slot = p.slots[low]};
  if (begin < rows) place.rows = min(kChunk, rows - begin);
  return place;
}

__device__ void ZeroOutputs(const Problem& p, const Place& place, int head) {
  for (int i = threadIdx.x; i < place.rows * p.value_dim; i += kPrepareThreads) {
    const int64_t row = place.first_row + i / p.value_dim;
    const int64_t at = (row * p.value_heads + head) * p.value_dim + i % p.value_dim;
    if (p.out_f32) {
      static_cast<float*>(p.out)[at] = 0;
    } else {
      static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16(0);
    }
  }
}

// A warp's 16 rows of T diag(scale), as left operands.
__device__ void ReadInverse(const float* x, const float* scale, uint32_t (&a)[4][4]) {
  const GramPlace place;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = place.block * 16 + place.g + i % 2 * 8;
      const int column = k * 16 + i / 2 * 8 + 2 * place.t;
      a[k][i] = 0;
      if (k > place.block) continue;
      const float2 f = *reinterpret_cast<const float2*>(x + row * kXPitch + column);
      const float2 s = *reinterpret_cast<const float2*>(scale + column);
      a[k][i] = PackBf16(f.x * s.x, f.y * s.y);
    }
  }
}

// to[row of the warp] = a . block, for a block [64, 64] of a matrix in shared memory. Of the 64
// columns `columns` are stored. `staging` [64, 64] is the half's, and each warp's rows its own.
// Adds zero to `check`, or NaN if a row of the chunk is lost: one of the left operand loses all
// columns of a row, one of the right one a column of all rows.
__device__ void Multiply(const uint32_t (&a)[4][4], uint32_t block, int columns, int rows,
                         int64_t stride, __nv_bfloat16* to, std::byte* staging, float (&check)[2]) {
  const GramPlace place;
  Tiles sums[1] = {};
  MultiplyWrites<64>(a, block, place.lane, sums);
  FinishProducts<0>(sums[0]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    StageTile(place, i, sums[0][i], staging);
#pragma unroll
    for (int j = 0; j < (i == 0 ? 3 : 2); ++j) {
      check[j % 2] = __fmaf_rn(sums[0][i][j], 0.0f, check[j % 2]);
    }
  }
  StoreStaged(place, columns / 8, rows, stride, staging, to);
}

// By any warp, for the walk to see. A row that is lost may show in all rows of the chunk, since
// products with the zeros of T and P do not remove what is not finite.
template <int K, bool kVector>
__device__ void LoseChunk(const Problem& p, int rows, int64_t head_row, int head) {
  const int lane = threadIdx.x % 32;
  if constexpr (kVector) {
    float* to = p.chunk_decay + (static_cast<int64_t>(blockIdx.x) * p.value_heads + head) * K;
    for (int d = lane; d < K; d += 32) to[d] = NAN;
  } else {
    float2* to = p.factors + head_row;
    for (int row = lane; row < rows; row += 32) {
      to[static_cast<int64_t>(row) * p.value_heads] = {NAN, NAN};
    }
  }
}

// -T diag(beta) [e^G k], by the first half of the threads. `keys` in shared memory are [64, K].
template <int K>
__device__ void WriteKeys(const Problem& p, const uint32_t (&a)[4][4], uint32_t keys, int rows,
                          int64_t head_row, std::byte* staging, float (&check)[2]) {
#pragma unroll 1
  for (int block = 0; block < K / 64; ++block) {
    Multiply(a, keys + block * kChunk * 128, 64, rows, static_cast<int64_t>(p.value_heads) * K,
             p.wy_keys + head_row * K + block * 64, staging, check);
  }
}

// T diag(beta) V, by the second half of the threads, a tile of columns after the other; the first
// two are there.
template <typename LoadTile>
__device__ void WriteValues(const Problem& p, const uint32_t (&a)[4][4], const std::byte* values,
                            int rows, int64_t head_row, std::byte* staging, float (&check)[2],
                            LoadTile load) {
  constexpr int kHalf = kPrepareThreads / 2;
  const int tiles = (p.value_dim + kValueTile - 1) / kValueTile;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile > 1) {
      WaitCopies<0>();
      PublishToProducts();
      BarrierSync(1, kHalf);
    }
    const int column = tile * kValueTile;
    Multiply(a, SharedAddress(values + tile % 2 * kBlockBytes), p.value_dim - column, rows,
             static_cast<int64_t>(p.value_heads) * p.value_dim,
             p.wy_values + head_row * p.value_dim + column, staging, check);
    if (tile + 2 < tiles) {
      BarrierSync(1, kHalf);
      load(tile + 2);
      CommitCopies();
    }
  }
}

// On one multiprocessor, by the shared memory that they take.
template <int K, bool kVector>
constexpr int Blocks() {
  return K == 256 ? 1 : (kVector ? 2 : 3);
}

// Grid: chunk slots, value heads.
template <int K, bool kVector>
__global__ void __launch_bounds__(kPrepareThreads, Blocks<K, kVector>())
    PrepareChunk(const Problem p) {
  extern __shared__ __align__(1024) std::byte shared[];
  AllowNext();
  const Place place = FindChunk(p);
  WaitForPrevious();
  if (place.rows == 0) return;
  const int head = blockIdx.y, thread = threadIdx.x;
  if (place.slot == kNoSlot) {
    ZeroOutputs(p, place, head);
    return;
  }
  using L = PrepareLayout<K, kVector>;
  const int64_t row = place.first_row, head_row = row * p.value_heads + head;
  std::byte *keys = shared + L::kKeys, *queries = shared + L::kQueries;
  std::byte* writes = p.has_w ? shared + L::kWrites : keys;
  std::byte* values = shared + L::kValues;
  const auto load = [&](const __nv_bfloat16* from, int64_t stride, int key_head, std::byte* to) {
    CopyMatrix<K, kPrepareThreads>(from + row * stride + key_head * K, stride, place.rows, K,
                                   thread, SharedAddress(to));
  };
  constexpr int kHalf = kPrepareThreads / 2;
  const auto load_values = [&](int tile) {  // by half of the threads
    const int column = tile * kValueTile;
    CopyMatrix<kValueTile, kHalf>(
        p.v + row * p.v_stride + static_cast<int64_t>(head) * p.value_dim + column, p.v_stride,
        place.rows, p.value_dim - column, thread % kHalf,
        SharedAddress(values + tile % 2 * kBlockBytes));
  };
  load(p.k, p.k_stride, head / p.group, keys);
  load(p.q, p.q_stride, head / p.group, queries);
  if (p.has_w) load(p.w, p.w_stride, head, writes);
  auto* x = reinterpret_cast<float*>(shared + L::kX);
  auto* decays = reinterpret_cast<float*>(shared + L::kDecays);
  auto* value_scale = reinterpret_cast<float*>(shared + L::kScales);
  float* key_scale = value_scale + kChunk;
  if constexpr (kVector) LoadVectorDecays<K>(p, head_row, place.rows, decays);
  CommitCopies();
  const auto load_first_values = [&] {
    if (thread / kHalf * kValueTile < p.value_dim) load_values(thread / kHalf);
    CommitCopies();
  };
  if (!L::kOverQueries) load_first_values();

  const int64_t scalar_at = head_row + static_cast<int64_t>(thread) * p.value_heads;
  const float beta = thread < place.rows ? p.beta[scalar_at] : 0.0f;
  if (!kVector && thread < 32) SumScalarDecays(p, head_row, place.rows, decays);
  WaitCopies<L::kOverQueries ? 0 : 1>();
  PublishToProducts();
  __syncthreads();
  if constexpr (kVector) SumVectorDecays<K>(decays, x);
  if (thread < kChunk) {
    value_scale[thread] = beta;
    key_scale[thread] = kVector ? -beta : -beta * Exp2(decays[thread]);
    if (!kVector && thread < place.rows) {
      p.factors[scalar_at] = {Exp2(decays[thread]), Exp2(decays[place.rows - 1] - decays[thread])};
    }
  }
  __syncthreads();
  const GramInputs in{.keys = SharedAddress(keys),
                      .queries = SharedAddress(queries),
                      .writes = SharedAddress(writes),
                      .decays = decays,
                      .beta = value_scale,
                      .rows = place.rows,
                      .score_stride = static_cast<int64_t>(p.value_heads) * kChunk};
  __nv_bfloat16* scores = p.scores + head_row * kChunk;
  if constexpr (kVector) {
    VectorGrams<K>(in, x, scores);
  } else {
    ScalarGrams<K>(in, queries, x, scores);
  }
  __syncthreads();
  if (L::kOverQueries) load_first_values();
  Invert(x);
  if constexpr (kVector) {
    ApplyDecays<K>(p, place.rows, decays, head_row, keys, queries, writes);
    StoreChunkDecay<K>(p, decays + (place.rows - 1) * (K + kDecayPad), head);
  }
  WaitCopies<0>();
  PublishToProducts();
  uint32_t a[4][4];
  ReadInverse(x, thread < kHalf ? key_scale : value_scale, a);
  __syncthreads();
  float check[2] = {};
  if (thread < kHalf) {
    WriteKeys<K>(p, a, in.keys, place.rows, head_row, shared + L::kX, check);
  } else {
    WriteValues(p, a, values, place.rows, head_row, shared + L::kX + kChunk * 128, check,
                load_values);
  }
  if (__any_sync(~0u, check[0] + check[1] != 0.0f)) [[unlikely]]
    LoseChunk<K, kVector>(p, place.rows, head_row, head);
}

template <int K, bool kVector>
void Launch(const Problem& p, int chunk_slots, Stream stream) {
  const int bytes = PrepareLayout<K, kVector>::Bytes(p.has_w);
  const auto kernel = PrepareChunk<K, kVector>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  LaunchDependent(static_cast<cudaStream_t>(stream),
                  {.grid = dim3(chunk_slots, p.value_heads),
                   .threads = kPrepareThreads,
                   .shared_bytes = static_cast<size_t>(bytes)},
                  kernel, p);
}

}  // namespace

void Prepare(const Problem& p, bool vector_decay, int chunk_slots, Stream stream) {
  if (vector_decay) {
    if (p.key_dim == 64) Launch<64, true>(p, chunk_slots, stream);
    if (p.key_dim == 128) Launch<128, true>(p, chunk_slots, stream);
    if (p.key_dim == 256) Launch<256, true>(p, chunk_slots, stream);
  } else {
    if (p.key_dim == 64) Launch<64, false>(p, chunk_slots, stream);
    if (p.key_dim == 128) Launch<128, false>(p, chunk_slots, stream);
    if (p.key_dim == 256) Launch<256, false>(p, chunk_slots, stream);
  }
}

}  // namespace eddy::delta_chunk
