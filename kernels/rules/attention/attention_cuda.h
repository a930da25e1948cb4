// The rule of kernels/rules/attention/attention.h on the GPU.
//
// Scores carry a factor log2(e), so that the softmax takes powers of two. A decoding row's keys are
// cut into splits, which blocks attend to at the same time; the block that is the last to arrive
// joins them in their order (Dao et al. 2023, "Flash-Decoding"). Into how many splits depends on
// the row's own position and on the model alone, so company never changes a bit.
//
// Float keys take fp32 arithmetic throughout. Bfloat16 keys of 64 and 128 numbers take the tensor
// cores, with queries and weights of the softmax rounded to bfloat16 and fp32 sums; other sizes
// take the fp32 kernel.
#pragma once

#include <cstdint>

#include "kernels/rules/attention/attention.h"
#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// Which kernel takes sequences of many rows, where the tensor cores do: that of single warps, which
// every device has, or that of warpgroups (sm_90a). Tests and benches choose; kBest goes by the
// rows of the step.
enum class AttentionTiles : uint8_t { kBest, kWarps, kWarpgroups };

struct AttentionCudaArgs {
  AttentionShape shape = {};  // head_dim <= 1024
  int64_t window = 0;
  DType type = DType::kF32;             // of keys, values and `out`
  const double* frequencies = nullptr;  // [d / 2]; RopeFrequencies, in device memory
  // Not turned yet, without biases; a row's numbers are packed, rows qkv_stride numbers apart.
  const float* q = nullptr;       // [rows, H, d]
  const float* k = nullptr;       // [rows, HKV, d]
  const float* v = nullptr;       // [rows, HKV, d]
  int64_t qkv_stride = 0;         // of all three
  const float* q_bias = nullptr;  // [H, d]; null: none. Likewise:
  const float* k_bias = nullptr;  // [HKV, d]
  const float* v_bias = nullptr;  // [HKV, d]
  FieldView keys = {};            // [rows_per_page, HKV, d]; turned
  FieldView values = {};          // likewise
  void* out = nullptr;            // [rows, H, d], packed
  // On a multiple of 256; AttentionCudaScratchBytes + rows * AttentionCudaScratchBytesPerRow.
  void* scratch = nullptr;
  AttentionTiles tiles = AttentionTiles::kBest;
};

int64_t AttentionCudaScratchBytes(const AttentionShape& shape);
int64_t AttentionCudaScratchBytesPerRow(const AttentionShape& shape);

// Writes keys and values of all rows, then attends. Rows of kNoSlot become zeros, and no page is
// touched for them. Keys that a row does not read, NaN or not, change nothing of its output.
// Enqueues on step.stream; no waiting, no allocation.
void AttentionCuda(const Step& step, const AttentionCudaArgs& args);

}  // namespace eddy
