// What the kernels of the CUDA delta rule share: their arguments with all strides resolved, and the
// addresses of one value head of one sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/rules/delta_rule/delta_rule_cuda.h"

namespace eddy {

// Floats of the read-outs of one head that one block has summed: |e|^2 and |v|^2 of its columns,
// and the contraction and decay of the head.
inline constexpr int kReadoutParts = 4;
// Least columns of S that one part of the read-outs is for.
inline constexpr int kReadoutColumns = 8;

// A field of all records.
struct DeltaField {
  std::byte* base = nullptr;
  int64_t stride = 0;  // bytes from one slot to the next

  template <typename T>
  __device__ T* At(int32_t slot) const {
    return reinterpret_cast<T*>(base + slot * stride);
  }
};

// DeltaRuleCudaArgs as kernels take them: all strides written down, w never null.
struct DeltaKernelArgs {
  int value_heads = 0, key_dim = 0, value_dim = 0;
  int group = 1;        // value heads that share q and k
  int write_group = 1;  // value heads that share w
  int entries = 0;      // of the ring: C - 1
  int pairs = 0;        // room for them and the token's own: C, up to a power of 2 from 4 on
  int count_groups = 0;
  bool channel_decay = false;
  int state_bytes = 4;  // of a number of S: 4, float, or 2, bfloat16
  DeltaRows q = {}, k = {}, w = {}, v = {}, beta = {}, decay = {};
  DeltaField state = {}, ring_w = {}, ring_n = {}, ring_a = {}, ring_count = {};
  float* out = nullptr;
  int64_t out_stride = 0;
  float* readouts = nullptr;  // [rows, HV, parts, kReadoutParts]; null: not wanted
  int readout_parts = 0;      // blocks that share a head
};

// CHECKs that `args` fit together. `columns`: of S per part of the read-outs, at least
// kReadoutColumns.
DeltaKernelArgs ResolveDeltaArgs(const DeltaRuleCudaArgs& args, int columns);

// Sums what blocks left in args.readout_scratch over the heads of each row: rows
// [first_row, first_row + rows).
void SumDeltaReadouts(const DeltaRuleCudaArgs& args, const DeltaKernelArgs& kernel_args,
                      int first_row, int rows, Stream stream);

// Blocks of a kernel get more than 48 KB of shared memory only if told so before.
template <typename Kernel>
void AllowSharedMemory(Kernel* kernel, int bytes) {
  constexpr int kWithoutAsking = 48 * 1024;
  if (bytes <= kWithoutAsking) return;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

// One value head of one sequence: its part of the record.
struct DeltaHead {
  __device__ DeltaHead(const DeltaKernelArgs& p, int32_t slot, int head)
      : s(p.state.At<std::byte>(slot) + int64_t{head} * p.key_dim * p.value_dim * p.state_bytes) {
    if (p.entries == 0) return;
    w = p.ring_w.At<float>(slot) + int64_t{head} * p.entries * p.key_dim;
    n = p.ring_n.At<float>(slot) + int64_t{head} * p.entries * p.value_dim;
    count = p.ring_count.At<int32_t>(slot) + head * p.count_groups;
    if (p.decay.data == nullptr) return;
    a = p.ring_a.At<float>(slot) + int64_t{head} * p.entries * (p.channel_decay ? p.key_dim : 1);
  }

  std::byte* s;              // [K, V]
  float* w = nullptr;        // [C-1, K]
  float* n = nullptr;        // [C-1, V]
  float* a = nullptr;        // [C-1] or [C-1, K]; null: no decay
  int32_t* count = nullptr;  // [groups of columns]; null: no ring
};

// The inputs of one value head of one row.
struct DeltaInputs {
  __device__ DeltaInputs(const DeltaKernelArgs& p, int64_t row, int head)
      : q(p.q.data + row * p.q.stride + head / p.group * p.key_dim),
        k(p.k.data + row * p.k.stride + head / p.group * p.key_dim),
        w(p.w.data + row * p.w.stride + head / p.write_group * p.key_dim),
        v(p.v.data + row * p.v.stride + head * p.value_dim),
        beta(p.beta.data + row * p.beta.stride + head),
        decay(p.decay.data == nullptr ? nullptr
                                      : p.decay.data + row * p.decay.stride +
                                            head * (p.channel_decay ? p.key_dim : 1)) {}

  const float *q, *k, *w;  // [K]
  const float* v;          // [V]
  const float* beta;
  const float* decay;  // one, or [K]; null: none
};

// Where one block writes its part of the read-outs of a row and head.
__device__ inline float* DeltaReadoutPart(const DeltaKernelArgs& p, int64_t row, int head,
                                          int part) {
  return p.readouts + ((row * p.value_heads + head) * p.readout_parts + part) * kReadoutParts;
}

}  // namespace eddy
