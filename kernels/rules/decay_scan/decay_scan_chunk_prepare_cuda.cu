// Preparation of chunks with one decay for each state. q k' is the same for all states that share
// a key and a query, so a block has several of them.
#include <cuda_runtime.h>

#include "kernels/rules/decay_scan/decay_scan_chunk_cuda.cuh"
#include "kernels/rules/decay_scan/decay_scan_chunk_round.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_grams.cuh"

namespace eddy::decay_chunk {
namespace {

using delta_chunk::Exp2;
using delta_chunk::GramPlace;
using delta_chunk::kBlockBytes;
using delta_chunk::PieceOffset;
using delta_chunk::Tiles;

// The halves of a block's threads take turns at the outputs.
constexpr int kThreads = 256;
constexpr int kMostOutputs = 8;  // of a block

// Neighbouring outputs that share a query and a key.
int Sharing(const Problem& p) {
  int a = p.part.states_per_key, b = p.part.outputs_per_query;
  if (p.reads > 1) return 1;
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// By a warp: inclusive sums of the chunk's log2 decays, which stop behind `rows`, and the writes;
// to shared memory and what walks need of them to device memory.
__device__ void SumDecays(const Problem& p, const Place& place, int state, float* sums,
                          float* writes) {
  const int lane = threadIdx.x % 32, row = 2 * lane;
  const int64_t at = static_cast<int64_t>(place.first_row + row) * p.states + state;
  float decay[2], write[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool there = row + i < place.rows;
    decay[i] = there ? Log2OfFactor(p.args.decay[at + i * p.states]) : 0.0f;
    write[i] = there && p.args.write != nullptr ? p.args.write[at + i * p.states] : 1.0f;
  }
  float sum = decay[0] + decay[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(~0u, sum, distance);
    if (lane >= distance) sum += other;
  }
  // Not sum - own, by which a lost decay would reach the row before it.
  float before = __shfl_up_sync(~0u, sum, 1);
  if (lane == 0) before = 0.0f;
  const float sum_of[2] = {before + decay[0], sum};
  const float all = __shfl_sync(~0u, sum, 31);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[row + i] = sum_of[i];
    writes[row + i] = write[i];
    if (row + i >= place.rows) continue;
    p.factors[at + i * p.states] = {Exp2(sum_of[i]), Exp2(all - sum_of[i]) * write[i]};
  }
  if (lane == 0) p.chunk_decay[static_cast<int64_t>(blockIdx.x) * p.states + state] = Exp2(all);
}

// A warp's 16 rows of P of one output, which pass by `staging`.
__device__ void StoreScores(const Tiles& gram, const float* sums, const float* writes, int rows,
                            int64_t stride, std::byte* staging, Bf16* to) {
  const GramPlace place;
  const int row = place.block * 16 + place.g, tiles = 2 * place.block + 2;
  const float now[2] = {sums[row], sums[row + 8]};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n >= tiles) break;
    const int column = n * 8 + 2 * place.t;
    const float2 since = *reinterpret_cast<const float2*>(sums + column);
    const float2 write = *reinterpret_cast<const float2*>(writes + column);
    float scores[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float between = Exp2(now[i / 2] - (i % 2 == 0 ? since.x : since.y));
      const float scale = between * (i % 2 == 0 ? write.x : write.y);
      scores[i] = column + i % 2 > row + i / 2 * 8 ? 0.0f : gram[n][i] * scale;
    }
    delta_chunk::StageTile(place, n, scores, staging);
  }
  delta_chunk::StoreStaged(place, tiles, rows, stride, staging, to);
}

// Grid: chunk slots; groups of outputs that share, in parts of kMostOutputs.
template <int K>
__global__ void __launch_bounds__(kThreads) PrepareChunk(const Problem p, int share, int parts) {
  extern __shared__ __align__(1024) std::byte shared[];
  __shared__ __align__(16) float sums[kMostOutputs][kChunk], writes[kMostOutputs][kChunk];
  const Place place = FindChunk(p.part);
  if (place.rows == 0) return;
  const int group = blockIdx.y / parts, part = blockIdx.y % parts;
  const int first = group * share + part * kMostOutputs;
  const int count = min(kMostOutputs, share - part * kMostOutputs);
  const int state = first / p.reads, query = first / p.query_group, key = state / p.key_group;
  const bool first_of_query = first % p.query_group == 0;
  const bool first_of_key = first % (p.key_group * p.reads) == 0;
  std::byte *queries = shared, *keys = shared + kChunk * K * 2;
  const int64_t row = place.first_row;
  const int query_heads = p.outputs / p.query_group, key_heads = p.states / p.key_group;
  RoundRows<K, kThreads>({.from = p.args.q + row * p.args.query_stride + query * p.key_dim,
                          .stride = p.args.query_stride,
                          .rows = place.rows,
                          .columns = p.key_dim,
                          .scale = p.args.query_scale},
                         queries,
                         first_of_query ? p.queries + (row * query_heads + query) * K : nullptr,
                         static_cast<int64_t>(query_heads) * K);
  RoundRows<K, kThreads>({.from = p.args.k + row * p.args.key_stride + key * p.key_dim,
                          .stride = p.args.key_stride,
                          .rows = place.rows,
                          .columns = p.key_dim},
                         keys, first_of_key ? p.keys + (row * key_heads + key) * K : nullptr,
                         static_cast<int64_t>(key_heads) * K);
  const int warp = threadIdx.x / 32;
  for (int i = warp; i < count; i += kThreads / 32) {
    SumDecays(p, place, (first + i) / p.reads, sums[i], writes[i]);
  }
  delta_chunk::PublishToProducts();
  __syncthreads();
  const GramPlace gram;
  Tiles products = {}, unused;
#pragma unroll 1
  for (int block = 0; block < K / 64; ++block) {
    uint32_t a[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      LoadTiles(a[k], SharedAddress(queries) + PieceOffset(gram.block * 16 + gram.lane % 16,
                                                           block * 8 + 2 * k + gram.lane / 16));
    }
    delta_chunk::MultiplyState<64, /*kOutputs=*/false>(a, SharedAddress(keys) + block * kBlockBytes,
                                                       0, gram.lane, /*first=*/true, products,
                                                       unused);
    delta_chunk::FinishProducts<0>(products);
  }
  __syncthreads();  // all have read queries and keys
  for (int i = gram.side; i < count; i += kThreads / 128) {
    StoreScores(products, sums[i], writes[i], place.rows, static_cast<int64_t>(p.outputs) * kChunk,
                gram.side == 0 ? queries : keys, p.scores + (row * p.outputs + first + i) * kChunk);
  }
}

template <int K>
void Launch(const Problem& p, int chunk_slots, Stream stream) {
  constexpr int kBytes = 2 * kChunk * K * 2;
  const int share = Sharing(p), parts = (share + kMostOutputs - 1) / kMostOutputs;
  cudaFuncSetAttribute(PrepareChunk<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(chunk_slots, p.outputs / share * parts);
  PrepareChunk<K><<<grid, kThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(p, share, parts);
}

}  // namespace

void PrepareScalar(const Problem& p, int chunk_slots, Stream stream) {
  if (p.padded_dim == 64) Launch<64>(p, chunk_slots, stream);
  if (p.padded_dim == 128) Launch<128>(p, chunk_slots, stream);
  if (p.padded_dim == 256) Launch<256>(p, chunk_slots, stream);
}

}  // namespace eddy::decay_chunk
