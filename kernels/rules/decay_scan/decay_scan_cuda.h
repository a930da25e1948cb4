// CUDA twin of DecayScanCpu: formulas and heads in decay_scan.h. What layers scale keys, values and
// queries with is applied on the way:
//   S <- diag(a) S + k (write v)',   o = query_scale S'q
// Engine thread; enqueues on step.stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/scratch.h"
#include "kernels/rules/decay_scan/decay_scan.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct DecayScanCudaArgs {
  DecayScanShape shape = {};  // key_dim <= 1024
  // Rows lie `*_stride` elements apart.
  const float* q = nullptr;  // [rows, query_heads, K]
  const float* k = nullptr;  // [rows, key_heads, K]
  const float* v = nullptr;  // [rows, states, V]; null: ones
  int64_t query_stride = 0, key_stride = 0, value_stride = 0;
  float query_scale = 1;
  const float* write = nullptr;  // [rows, states], dense; null: ones
  const float* decay = nullptr;  // factors e^g, dense: [rows, states], or [rows, states, K]
  bool channel_decay = false;    // the latter
  FieldView state = {};          // [states, K, V] fp32
  float* out = nullptr;          // [rows, states * reads, V], dense
  // Lets prompts go in chunks, with operands of products in bfloat16: DecayChunkScratchBytesPerRow
  // for each row of the step, 256-aligned. Null: everything in float.
  void* scratch = nullptr;
};

// Whether prompts of the shape can go in chunks: K at most 256 and a multiple of 8, V one of 4.
bool DecayChunkFits(const DecayScanShape& shape);
// 0 if they cannot.
int64_t DecayChunkScratchBytesPerRow(const DecayScanShape& shape, bool channel_decay);

// What a layer gives as DecayScanCudaArgs::scratch: null in float.
inline void* TakeDecayScratch(const DecayScanShape& shape, bool channel_decay, DType matrices,
                              ScratchCutter* cutter) {
  if (matrices != DType::kBF16) return nullptr;
  constexpr int64_t kFloat = sizeof(float);
  return cutter->Floats(DecayChunkScratchBytesPerRow(shape, channel_decay) / kFloat);
}

// Decoding sequences read and write their state once (again for every four reads behind the first
// four). Of other sequences the state stays in registers while the tokens go by, one after another,
// or chunks of them (decay_scan_chunk_cuda.cuh), which is a matter of the sequence's own rows in
// the step and of the shape. Rows of kNoSlot become zeros.
void DecayScanCuda(const Step& step, const DecayScanCudaArgs& args);

}  // namespace eddy
