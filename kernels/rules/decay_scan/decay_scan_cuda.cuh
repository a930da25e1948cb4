// What the kernels of the decay scan share.
#pragma once

#include "kernels/rules/decay_scan/decay_scan_cuda.h"

namespace eddy {

// Sequences [first, end) of a step, and how heads go together.
struct DecayPart {
  const int32_t* row_start;
  const int32_t* slots;
  int first, end;
  int states_per_key, outputs_per_query;
};

inline DecayPart MakeDecayPart(const Step& step, const DecayScanShape& s, int first, int end) {
  return {.row_start = step.row_start,
          .slots = step.slots,
          .first = first,
          .end = end,
          .states_per_key = static_cast<int>(s.states / s.key_heads),
          .outputs_per_query = static_cast<int>(s.states * s.reads / s.query_heads)};
}

// Where the vectors of one state lie in a row.
struct DecayHead {
  const float* q;  // its first query; the others are key_dim apart
  const float* k;
  const float* v;      // null: ones
  const float* write;  // null: one
  const float* decay;  // one factor, or K of them
  float* out;          // [reads, V]
};

__device__ inline DecayHead HeadOfRow(const DecayScanCudaArgs& p, const DecayPart& part,
                                      int64_t row, int state) {
  const DecayScanShape& s = p.shape;
  const int output = state * static_cast<int>(s.reads);
  const int64_t at = row * s.states + state;
  return {.q = p.q + row * p.query_stride + output / part.outputs_per_query * s.key_dim,
          .k = p.k + row * p.key_stride + state / part.states_per_key * s.key_dim,
          .v = p.v == nullptr ? nullptr : p.v + row * p.value_stride + state * s.value_dim,
          .write = p.write == nullptr ? nullptr : p.write + at,
          .decay = p.decay + (p.channel_decay ? at * s.key_dim : at),
          .out = p.out + (row * s.states * s.reads + output) * s.value_dim};
}

// Fewer rows of a sequence go token by token, whatever else is in the step.
inline constexpr int kDecayChunkRows = 32;
__host__ __device__ inline bool TakesChunks(int rows, int32_t slot) {
  return rows >= kDecayChunkRows && slot != kNoSlot;
}

// Sequences [first, end) of the step, by states that travel through memory for every row.
void LaunchDecaySteps(const Step& step, const DecayScanCudaArgs& args, int first, int end);
// The same, by states that stay in registers; if `leave_long`, without those of TakesChunks. False
// if the vectors of a row do not fit.
bool LaunchDecayRows(const Step& step, const DecayScanCudaArgs& args, int first, int end,
                     bool leave_long);
// Those of TakesChunks among the sequences behind the first step.single_row_sequences, in chunks.
void LaunchDecayChunks(const Step& step, const DecayScanCudaArgs& args);
// The same for states of one column that is written with ones, in float, if they fit.
bool DecayColumnFits(const DecayScanCudaArgs& args);
void LaunchDecayColumns(const Step& step, const DecayScanCudaArgs& args);

}  // namespace eddy
