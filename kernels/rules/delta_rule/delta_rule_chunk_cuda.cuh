// What the kernels of the chunk form share: how a step is cut up, and where results pass by.
//
// A sequence is cut into chunks of 64 rows. Prepare computes for every chunk what does not depend
// on the state; Scan walks along the chunks with the state in registers. A long sequence is cut
// into segments of many chunks first. A segment is an affine map of its initial state, S -> M S +
// B: a first walk of all segments at once finds M and B, Combine applies them in turn and leaves
// every segment's initial state, and a second walk, again of all at once, writes the outputs.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.h"

namespace eddy::delta_chunk {

inline constexpr int kChunk = 64;
inline constexpr int kColumns = 16;     // of S, that a warp walks with
inline constexpr int kLongRows = 4096;  // shorter sequences are not cut into segments
inline constexpr int kSegmentUnit = 512;

// Most segments of one sequence: with fewer heads more are needed to fill the device.
__host__ __device__ constexpr int MostSegments(int value_heads) {
  return value_heads >= 64 ? 1 : (value_heads >= 8 ? 64 / value_heads : 8);
}

// Rows of a segment, a multiple of kChunk. A long sequence gets at most rows / kSegmentUnit.
__host__ __device__ constexpr int SegmentRows(int rows, int value_heads) {
  const int most = rows < kLongRows ? 1 : MostSegments(value_heads);
  const int even = (rows + most - 1) / most;
  const int segment = even < 2 * kSegmentUnit ? 2 * kSegmentUnit : even;
  return most == 1 ? rows + kChunk : (segment + kChunk - 1) / kChunk * kChunk;
}

// No sequence of at most `rows` rows has more segments.
__host__ __device__ constexpr int SegmentBound(int rows, int value_heads) {
  if (rows < kLongRows) return 1;
  const int bound = (rows - 1) / (2 * kSegmentUnit) + 1;
  return bound < MostSegments(value_heads) ? bound : MostSegments(value_heads);
}

struct Problem {
  int heads, value_heads, key_dim, value_dim;
  int group;                      // value heads that share a key head
  int w_group;                    // value heads that share a write key: 1, or `group` if w = k
  int first_sequence, sequences;  // those before have one row
  const int32_t* row_start;
  const int32_t* slots;
  const __nv_bfloat16 *q, *k, *w, *v;
  int64_t q_stride, k_stride, w_stride, v_stride;
  bool has_w;
  const float* beta;
  const float* log_decay;  // null: no decay
  std::byte* state;
  int64_t state_stride;
  bool half_state;  // S is bfloat16
  void* out;
  bool out_f32;
  float* squares;  // sums of N^2 over kColumns [rows, HV, V / kColumns]; null: nobody asks

  // Scratch. T is (I + X)^-1 of delta_rule.h.
  __nv_bfloat16* wy_keys = nullptr;    // -T diag(beta) [e^G k]    [rows, HV, K]
  __nv_bfloat16* wy_values = nullptr;  // T diag(beta) V           [rows, HV, V]
  // P; right of the blocks of 16 columns that the diagonal passes nothing is written.
  __nv_bfloat16* scores = nullptr;   // [rows, HV, 64]
  float2* factors = nullptr;         // scalar decay: e^G, e^{G_c - G}    [rows, HV]
  __nv_bfloat16* queries = nullptr;  // vector decay: e^G q               [rows, HV, K]
  __nv_bfloat16* writes = nullptr;   // vector decay: e^{G_c - G} w       [rows, HV, K]
  float* chunk_decay = nullptr;      // vector decay: e^{G_c}             [chunk slots, HV, K]
  float* segments = nullptr;         // B', then M'              [segment slots, HV, V + K, K]
};

// Every chunk of a step has a slot of its own, below rows / 64 + sequences: the first one of a
// sequence that is number `index` of these, with so many rows before it. The next sequence begins
// at least rows / 64 + 1 slots further, and a sequence has no more chunks.
__host__ __device__ constexpr int FirstChunkSlot(int rows_before, int index) {
  return rows_before / kChunk + index;
}

// Likewise for segments, of which a sequence has at most rows / kSegmentUnit.
__host__ __device__ constexpr int FirstSegmentSlot(int rows_before) {
  return rows_before / kSegmentUnit;
}

// S of a value head of a slot from `column` on, in the record. T: float, or __nv_bfloat16 if
// p.half_state.
template <typename T>
__device__ inline T* RecordAt(const Problem& p, int slot, int head, int column) {
  return reinterpret_cast<T*>(p.state + slot * p.state_stride) +
         static_cast<int64_t>(head) * p.key_dim * p.value_dim + column;
}
__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void Write(float x, float* to) { *to = x; }
__device__ inline void Write(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }

// Where 16-byte piece `piece` of row `row` of a bf16 matrix [64, width] lies in shared memory: in
// blocks of 64 columns, and the pieces of a row in a block permuted so that eight rows lie in
// different banks. wgmma calls this the 128-byte swizzle.
__device__ inline uint32_t PieceOffset(int row, int piece) {
  return static_cast<uint32_t>((piece / 8 * kChunk + row) * 128 + (((piece ^ row) & 7) << 4));
}

// Copies the first `rows` rows of a matrix [64, kWidth] to shared memory in the background, zeros
// behind them and from `columns` on. kThreads threads call.
template <int kWidth, int kThreads>
__device__ inline void CopyMatrix(const __nv_bfloat16* from, int64_t stride, int rows, int columns,
                                  int thread, uint32_t to) {
  constexpr int kPieces = kWidth / 8, kStep = kThreads / kPieces;
  const int piece = thread % kPieces, first = thread / kPieces;
  const __nv_bfloat16* at = from + first * stride + piece * 8;
  if (rows == kChunk && columns >= kWidth) {
#pragma unroll
    for (int row = 0; row < kChunk; row += kStep, at += kStep * stride) {
      CopyAsync16(to + PieceOffset(first + row, piece), at);
    }
  } else {
    const int valid = piece * 8 < columns ? rows : 0;
    for (int row = first; row < kChunk; row += kStep, at += kStep * stride) {
      CopyAsync16(to + PieceOffset(row, piece), row < valid ? at : from, row < valid);
    }
  }
}

// The most shared memory a block may have on the current device; as on Hopper if there is none.
inline constexpr int kHopperShared = 227 * 1024;
int SharedBytes();

// Enqueue the phases.
void Prepare(const Problem& p, bool vector_decay, int chunk_slots, Stream stream);
void ScanTransitions(const Problem& p, bool vector_decay, int max_segments, Stream stream);
void Combine(const Problem& p, Stream stream);
void ScanOutputs(const Problem& p, bool vector_decay, int max_segments, Stream stream);

// The read-outs of rows [first_row, first_row + rows), from p.squares.
void TellRows(const Problem& p, const DeltaReadouts& to, int first_row, int rows, Stream stream);

}  // namespace eddy::delta_chunk
