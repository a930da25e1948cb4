// The chunk form of the decay scan on the tensor cores, for sequences with many rows in a step; how
// a step is cut up, and where results pass by.
//
// A sequence is cut into chunks of 64 rows. With G the sums of the log decays from a chunk's
// beginning, G_c that of the whole chunk and S the state before it, everything at most one:
//   o_t = (e^{G_t} q_t)'S + sum_{j <= t} P_tj v_j,   P_tj = write_j sum_n e^{G_t - G_j} q_tn k_jn
//   S <- e^{G_c} S + sum_j e^{G_c - G_j} write_j k_j v_j'
// Prepare computes P and what goes into the products beside v; walks go along the chunks with the
// state in registers. A long sequence is cut into segments of many chunks: a first walk of all of
// them at once finds what each adds to a state that only decays, Combine hands the states on, and a
// second walk, again of all at once, writes the outputs. What the delta rule's chunks need too is
// taken from there.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/rules/decay_scan/decay_scan_cuda.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"

namespace eddy::decay_chunk {

using delta_chunk::kChunk;
using delta_chunk::kColumns;  // of S, that a warp walks with
using Bf16 = __nv_bfloat16;

inline constexpr int kTileColumns = 4 * kColumns;  // of a block's walk
inline constexpr int kLongRows = 4096;             // shorter sequences are not cut into segments
inline constexpr int kSegmentUnit = 512;

__host__ __device__ constexpr int TilesOf(int value_dim) {
  return (value_dim + kTileColumns - 1) / kTileColumns;
}

// Rows of a segment, a multiple of kChunk: as many segments as fill the device, of 640 rows at
// least, so that a sequence of `rows` gets at most rows / kSegmentUnit.
__host__ __device__ constexpr int SegmentRows(int rows, const DecayScanShape& shape) {
  constexpr int kMultiprocessors = 128, kMostSegments = 8, kLeast = 640;
  const int blocks = shape.key_dim > 128 ? kMultiprocessors : 2 * kMultiprocessors;
  const int tiles = static_cast<int>(shape.states) * TilesOf(static_cast<int>(shape.value_dim));
  const int fill = blocks / tiles < kMostSegments ? blocks / tiles : kMostSegments;
  if (rows < kLongRows || fill < 2) return (rows + kChunk - 1) / kChunk * kChunk;
  const int even = (rows + fill - 1) / fill;
  return ((even < kLeast ? kLeast : even) + kChunk - 1) / kChunk * kChunk;
}

struct Problem {
  DecayScanCudaArgs args;
  DecayPart part;
  int states, outputs, reads, key_dim, value_dim;
  // Scratch. K' is key_dim rounded up to what the kernels are made for; zeros fill it up. Scalar
  // decays leave queries and keys to their heads, vector ones go into them.
  int padded_dim;              // K'
  int query_group, key_group;  // outputs that share a prepared query, states that share a key
  Bf16* queries = nullptr;     // query_scale [e^G] q            [rows, outputs / group, K']
  Bf16* keys = nullptr;        // [e^{G_c - G} write] k          [rows, states / group, K']
  // P; right of the blocks of 16 columns that the diagonal passes nothing is written.
  Bf16* scores = nullptr;        // [rows, outputs, 64]
  float2* factors = nullptr;     // scalar: e^G, e^{G_c - G} write [rows, states]
  float* chunk_decay = nullptr;  // e^{G_c}         [chunk slots, states, 1 or K']
  float* segments = nullptr;     // what segments add, then the states before them
                                 // [segment slots, states, K, V]
};

// Every chunk of a step has a slot of its own, below rows / kDecayChunkRows: the first one of a
// sequence with so many rows before it. The next sequence begins at least rows / kDecayChunkRows
// slots further, and one that is taken here has no more chunks.
__host__ __device__ constexpr int FirstChunkSlot(int rows_before) {
  return rows_before / kDecayChunkRows;
}
// Likewise for segments.
__host__ __device__ constexpr int FirstSegmentSlot(int rows_before) {
  return rows_before / kSegmentUnit;
}

// Enqueue the phases.
void PrepareScalar(const Problem& p, int chunk_slots, Stream stream);
void PrepareVector(const Problem& p, int chunk_slots, Stream stream);
void Walk(const Problem& p, bool outputs, int max_segments, Stream stream);
void Combine(const Problem& p, Stream stream);

// Shared memory that a walk's block takes.
int WalkBytes(int padded_dim);

// The chunk of a block; no rows if there is none.
struct Place {
  int first_row = 0, rows = 0;
};

// All lanes of a warp: looks for the sequence whose chunk slots hold blockIdx.x.
__device__ inline Place FindChunk(const DecayPart& part) {
  const int lane = threadIdx.x % 32, wanted = blockIdx.x;
  const int before = part.row_start[part.first];
  // The last sequence that begins at or before the slot: narrows [low, high) 32-fold.
  int low = part.first, high = part.end;
  while (high - low > 1) {
    const int step = (high - low + 31) / 32;
    const int probe = low + lane * step;
    const bool at_or_before =
        probe < high && FirstChunkSlot(part.row_start[probe] - before) <= wanted;
    const int count = __popc(__ballot_sync(~0u, at_or_before));  // lane 0 always
    low += (count - 1) * step;
    high = min(high, low + step);
  }
  const int first = part.row_start[low], rows = part.row_start[low + 1] - first;
  Place place;
  if (!TakesChunks(rows, part.slots[low])) return place;
  const int begin = (wanted - FirstChunkSlot(first - before)) * kChunk;
  place.first_row = first + begin;
  if (begin < rows) place.rows = min(kChunk, rows - begin);
  return place;
}

}  // namespace eddy::decay_chunk
