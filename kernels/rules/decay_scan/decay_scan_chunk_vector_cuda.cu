// Preparation of chunks with a decay for each key channel. A block takes slices of the channels one
// after another, so that two blocks fit on a multiprocessor.
#include <cuda_runtime.h>

#include "kernels/rules/decay_scan/decay_scan_chunk_cuda.cuh"
#include "kernels/rules/decay_scan/decay_scan_chunk_round.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_vector.cuh"

namespace eddy::decay_chunk {
namespace {

using delta_chunk::Between;
using delta_chunk::Exp2;
using delta_chunk::GramPlace;
using delta_chunk::kDecayPad;
using delta_chunk::PieceOffset;
using delta_chunk::ReadElement;
using delta_chunk::Scale;

constexpr int kThreads = 512;
constexpr int kMostChannels = 128;  // of a slice

// Byte offsets in shared memory; K is a slice's width here and in what follows.
template <int K>
struct Layout {
  static constexpr int kPitch = K + kDecayPad;
  static constexpr int kMatrix = kChunk * K * 2;
  static constexpr int kQueries = 0, kKeys = kMatrix, kSums = 2 * kMatrix;
  static constexpr int kWrites = kSums + kChunk * kPitch * 4, kTotals = kWrites + kChunk * 4;
  static constexpr int kBytes = kTotals + kThreads * 4;
};

// Inclusive sums of the chunk's log2 decays, [64, K + kDecayPad], which stop behind `rows`. Threads
// sum parts of a column, whose totals pass by `totals`.
template <int K>
__device__ void SumDecays(const float* decay, int64_t stride, int rows, int columns, float* sums,
                          float* totals) {
  constexpr int kParts = kThreads / K, kRows = kChunk / kParts, kPitch = Layout<K>::kPitch;
  const int d = threadIdx.x % K, part = threadIdx.x / K;
  const float* from = decay + part * kRows * stride + d;
  float own[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    own[i] = part * kRows + i < rows && d < columns ? from[i * stride] : 1.0f;
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) own[i] = sum += Log2OfFactor(own[i]);
  totals[threadIdx.x] = sum;
  __syncthreads();
  float before = 0;
#pragma unroll
  for (int i = 0; i < kParts - 1; ++i) {
    if (i < part) before += totals[i * K + d];
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) sums[(part * kRows + i) * kPitch + d] = before + own[i];
}

struct ScoreInputs {
  uint32_t queries, keys;  // shared addresses
  const float* sums;
};

// A warp's part of P: the 16 rows of its block and the 16 columns of block `side`, as two C tiles.
using Scores = float[2][4];

// The same sums as in AddScores, element by element, of the block on the diagonal.
template <int K>
__device__ void AddDiagonalScores(const ScoreInputs& in, const GramPlace& place,
                                  float (&to)[2][4]) {
  constexpr int kPitch = Layout<K>::kPitch;
#pragma unroll
  for (int at = 0; at < 8; ++at) {
    const int i = place.block * 16 + place.g + at / 2 % 2 * 8;
    const int j = place.block * 16 + at / 4 * 8 + 2 * place.t + at % 2;
    float sum = 0;
    for (int d = 0; d < K && j <= i; ++d) {
      const float between = Exp2(in.sums[i * kPitch + d] - in.sums[j * kPitch + d]);
      const float key = between * ReadElement<K>(in.keys, j, d);
      sum = __fmaf_rn(key, ReadElement<K>(in.queries, i, d), sum);
    }
    to[at / 4][at % 4] += sum;
  }
}

// Adds what the slice's channels give to P. e^{G_i - G_j} goes into the operands, as e^{G_i - R} of
// the left and e^{R - G_j} of the right one with R the first row of the warp's block of 16 rows:
// both are at most one for the blocks left of the diagonal. On the diagonal the second one grows
// with the decay inside of 16 rows; where that passes 2^kSteep, the block is computed without it.
template <int K>
__device__ void AddScores(const ScoreInputs& in, const GramPlace& place, Scores& sums) {
  constexpr int kPitch = Layout<K>::kPitch;
  constexpr float kSteep = 80;
  const int lane = place.lane, column = place.side * 16;
  if (place.side > place.block) return;
  const float* block = in.sums + place.block * 16 * kPitch;
  if (place.side == place.block) {
    bool steep = false;
    for (int d = lane; d < K; d += 32) steep |= !(block[d] - block[15 * kPitch + d] <= kSteep);
    if (__any_sync(~0u, steep)) return AddDiagonalScores<K>(in, place, sums);
  }
  const auto decay = [&](const float* row, int k, int half) {
    return *reinterpret_cast<const float2*>(row + k * 16 + half * 8 + 2 * place.t);
  };
#pragma unroll 2
  for (int k = 0; k < K / 16; ++k) {
    uint32_t query[4], key[4];
    LoadTiles(query, in.queries + PieceOffset(place.block * 16 + lane % 16, 2 * k + lane / 16));
    LoadTiles(key, in.keys + PieceOffset(column + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* query_row = block + (place.g + i % 2 * 8) * kPitch;
      const float* key_row = in.sums + (column + place.g + i / 2 * 8) * kPitch;
      query[i] = Scale(query[i], Between(decay(query_row, k, i / 2), decay(block, k, i / 2)));
      key[i] = Scale(key[i], Between(decay(block, k, i % 2), decay(key_row, k, i % 2)));
    }
    Mma(sums[0], query, key[0], key[1]);
    Mma(sums[1], query, key[2], key[3]);
  }
}

__device__ void StoreScores(const Scores& sums, const GramPlace& place, const float* writes,
                            int rows, int64_t stride, Bf16* to) {
  if (place.side > place.block) return;
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {  // C tiles, rows g and g + 8
    const int n = tile / 2, low = tile % 2;
    const int i = place.block * 16 + place.g + 8 * low;
    const int column = place.side * 16 + n * 8 + 2 * place.t;
    if (i >= rows) continue;
    float scores[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = column + j;
      scores[j] = at <= i ? sums[n][2 * low + j] * writes[at] : 0.0f;
    }
    *reinterpret_cast<uint32_t*>(to + i * stride + column) = PackBf16(scores[0], scores[1]);
  }
}

// Rows of a matrix in shared memory times what `scale` gives for a row and two channels.
template <int K, typename ScaleOf>
__device__ void StoreScaled(const std::byte* from, int rows, int64_t stride, Bf16* to,
                            ScaleOf scale) {
  constexpr int kPieces = K / 8;
  for (int i = threadIdx.x; i < rows * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    uint4 packed = *reinterpret_cast<const uint4*>(from + PieceOffset(row, piece));
    packed.x = Scale(packed.x, scale(row, piece * 8));
    packed.y = Scale(packed.y, scale(row, piece * 8 + 2));
    packed.z = Scale(packed.z, scale(row, piece * 8 + 4));
    packed.w = Scale(packed.w, scale(row, piece * 8 + 6));
    *reinterpret_cast<uint4*>(to + row * stride + piece * 8) = packed;
  }
}

// One slice of the chunk's channels, from `first` on: adds to P, and stores queries and keys.
template <int K>
__device__ void PrepareSlice(const Problem& p, const Place& place, int first, std::byte* shared,
                             Scores& scores) {
  using L = Layout<K>;
  const int output = blockIdx.y, state = output / p.reads;
  std::byte *queries = shared + L::kQueries, *keys = shared + L::kKeys;
  auto* sums = reinterpret_cast<float*>(shared + L::kSums);
  const auto* writes = reinterpret_cast<const float*>(shared + L::kWrites);
  const int64_t row = place.first_row, at = row * p.states + state;
  const DecayScanCudaArgs& args = p.args;
  const int64_t query = output / p.part.outputs_per_query, key = state / p.part.states_per_key;
  const int columns = p.key_dim - first;
  RoundRows<K, kThreads>({.from = args.q + row * args.query_stride + query * p.key_dim + first,
                          .stride = args.query_stride,
                          .rows = place.rows,
                          .columns = columns,
                          .scale = args.query_scale},
                         queries, nullptr, 0);
  RoundRows<K, kThreads>({.from = args.k + row * args.key_stride + key * p.key_dim + first,
                          .stride = args.key_stride,
                          .rows = place.rows,
                          .columns = columns},
                         keys, nullptr, 0);
  SumDecays<K>(args.decay + at * p.key_dim + first, static_cast<int64_t>(p.states) * p.key_dim,
               place.rows, columns, sums, reinterpret_cast<float*>(shared + L::kTotals));
  __syncthreads();
  AddScores<K>({SharedAddress(queries), SharedAddress(keys), sums}, GramPlace(), scores);
  const auto sum = [&](int i, int d) {
    return *reinterpret_cast<const float2*>(sums + i * L::kPitch + d);
  };
  StoreScaled<K>(queries, place.rows, static_cast<int64_t>(p.outputs) * p.padded_dim,
                 p.queries + (row * p.outputs + output) * p.padded_dim + first, [&](int i, int d) {
                   return Between(sum(i, d), {0.0f, 0.0f});
                 });
  if (output % p.reads != 0) return;
  const int last = kChunk - 1;  // rows that are not there do not decay
  StoreScaled<K>(keys, place.rows, static_cast<int64_t>(p.states) * p.padded_dim,
                 p.keys + at * p.padded_dim + first, [&](int i, int d) {
                   const float2 left = Between(sum(last, d), sum(i, d));
                   return float2{left.x * writes[i], left.y * writes[i]};
                 });
  float* decays =
      p.chunk_decay + (static_cast<int64_t>(blockIdx.x) * p.states + state) * p.padded_dim + first;
  for (int d = threadIdx.x; d < K; d += kThreads) decays[d] = Exp2(sums[last * L::kPitch + d]);
}

// Grid: chunk slots, outputs.
template <int K>
__global__ void __launch_bounds__(kThreads, 2) PrepareChunk(const Problem p) {
  extern __shared__ __align__(1024) std::byte shared[];
  const Place place = FindChunk(p.part);
  if (place.rows == 0) return;
  auto* writes = reinterpret_cast<float*>(shared + Layout<K>::kWrites);
  if (threadIdx.x < kChunk) {
    const int64_t row = place.first_row + threadIdx.x;
    const bool given = p.args.write != nullptr && threadIdx.x < place.rows;
    writes[threadIdx.x] = given ? p.args.write[row * p.states + blockIdx.y / p.reads] : 1.0f;
  }
  const DecayScanCudaArgs& args = p.args;
  const int output = blockIdx.y, state = output / p.reads;
  // All slices' rows are on their way before the first one is waited for.
  if (threadIdx.x < 3 * kChunk && threadIdx.x % kChunk < place.rows) {
    const int64_t row = place.first_row + threadIdx.x % kChunk;
    const float* from = args.decay + (row * p.states + state) * p.key_dim;
    if (threadIdx.x >= kChunk) {
      from = args.q + row * args.query_stride + output / p.part.outputs_per_query * p.key_dim;
    }
    if (threadIdx.x >= 2 * kChunk) {
      from = args.k + row * args.key_stride + state / p.part.states_per_key * p.key_dim;
    }
    PrefetchRow(from, p.key_dim);
  }
  Scores scores = {};
  for (int first = 0; first < p.padded_dim; first += K) {
    if (first > 0) __syncthreads();
    PrepareSlice<K>(p, place, first, shared, scores);
  }
  StoreScores(scores, GramPlace(), writes, place.rows, static_cast<int64_t>(p.outputs) * kChunk,
              p.scores + (int64_t{place.first_row} * p.outputs + blockIdx.y) * kChunk);
}

template <int K>
void Launch(const Problem& p, int chunk_slots, Stream stream) {
  constexpr int kBytes = Layout<K>::kBytes;
  cudaFuncSetAttribute(PrepareChunk<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(chunk_slots, p.outputs);
  PrepareChunk<K><<<grid, kThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(p);
}

}  // namespace

void PrepareVector(const Problem& p, int chunk_slots, Stream stream) {
  if (p.padded_dim < kMostChannels) {
    Launch<64>(p, chunk_slots, stream);
  } else {
    Launch<kMostChannels>(p, chunk_slots, stream);
  }
}

}  // namespace eddy::decay_chunk
