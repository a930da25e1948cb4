// What the attention kernels are given, and what of it one block of threads works on.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/step.h"

namespace eddy {

// Splits of a decoding row have so many keys at least, and a multiple of the second.
inline constexpr int kLeastSplit = 256;
inline constexpr int kSplitUnit = 16;
inline constexpr int kAttentionThreads = 128;

// By value to every kernel. "Head block": the query heads, of those that read one head of keys,
// that one block of threads takes together.
struct AttentionKernelArgs {
  const int32_t* row_start = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* pages = nullptr;
  int max_pages = 0, rows_per_page = 0;
  int first_sequence = 0, end_sequence = 0;  // that the launch is about
  int heads = 0, kv_heads = 0, head_dim = 0;
  int head_blocks = 0;         // in all
  int blocks_per_kv_head = 0;  // of those, to each head of keys
  int heads_per_block = 0;     // the last to a head of keys may have fewer
  int window = 0;              // 0: all of the past
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  int64_t key_stride = 0, value_stride = 0;  // bytes from page to page
  const void* q = nullptr;                   // [rows, H, d]; turned and scaled
  void* out = nullptr;                       // [rows, H, d]
  // Sequences of many rows: rows that one block takes.
  int rows_per_tile = 0;
  // Sequences of one row.
  int most_splits = 0;                 // that the rule allows; of the model alone
  int split_places = 0;                // that any sequence can have now
  int blocks_per_row = 0;              // they take the splits of a row and head block in turn
  float* split_sums = nullptr;         // [sequence of launch, split_places, H, d]
  float2* split_statistics = nullptr;  // [sequence of launch, split_places, H]: greatest, sum
  int* arrived = nullptr;              // [sequence of launch, head_blocks]; zero before and after
};

// Some rows of a sequence and some heads of them. Query i is head i % heads of row i / heads.
struct AttentionTask {
  int sequence = 0;
  int row = 0, rows = 0;  // rows of the step
  int position = 0;       // of the first of them
  int head_block = 0;
  int head = 0, heads = 0;  // query heads head .. head + heads
  int kv_head = 0;
  int begin = 0, end = 0;  // keys that any of them reads
  int all_from = 0;        // all of them read all keys from here to `position`

  __device__ int Queries() const { return rows * heads; }
  // Key blocks of the size, and whether some query does not read all of one.
  __device__ int Blocks(int keys) const { return (end - begin + keys - 1) / keys; }
  __device__ bool Masked(int block, int keys) const {
    const int first = begin + block * keys;
    return first + keys > position + 1 || first < all_from;
  }
  __device__ int PositionOf(int query) const { return position + query / heads; }
  // Of the query in [rows, H, d], for H = all_heads, in heads.
  __device__ int64_t HeadAt(int query, int all_heads) const {
    return static_cast<int64_t>(row + query / heads) * all_heads + head + query % heads;
  }
};

// Of the keys of one row; the last may be shorter.
struct Splits {
  int length = 0, count = 0;
};

struct PageRow {
  int page = -1, row = 0;  // -1: no key
};

__device__ inline int FirstKey(const AttentionKernelArgs& p, int position) {
  return p.window == 0 ? 0 : max(0, position - p.window + 1);
}

__device__ inline Splits SplitsOf(const AttentionKernelArgs& p, const AttentionTask& task) {
  const int keys = task.end - task.begin;
  const int wanted = min(p.most_splits, (keys + kLeastSplit - 1) / kLeastSplit);
  const int length = ((keys + wanted - 1) / wanted + kSplitUnit - 1) / kSplitUnit * kSplitUnit;
  return {.length = length, .count = (keys + length - 1) / length};
}

__device__ inline PageRow Locate(const AttentionKernelArgs& p, const int32_t* line, int at) {
  const int index = at / p.rows_per_page;
  return {.page = line[index % p.max_pages], .row = at - index * p.rows_per_page};
}

__device__ inline void TakeKeysAndHeads(const AttentionKernelArgs& p, int head_block,
                                        AttentionTask* task) {
  task->begin = FirstKey(p, task->position);
  task->end = task->position + task->rows;
  task->all_from = FirstKey(p, task->end - 1);
  const int group = p.heads / p.kv_heads;
  task->head_block = head_block;
  task->kv_head = head_block / p.blocks_per_kv_head;
  const int first = head_block % p.blocks_per_kv_head * p.heads_per_block;
  task->head = task->kv_head * group + first;
  task->heads = min(p.heads_per_block, group - first);
}

// The one row of sequence `index` of a launch over such.
__device__ inline AttentionTask RowTask(const AttentionKernelArgs& p, int index, int head_block) {
  AttentionTask task = {.sequence = p.first_sequence + index, .rows = 1};
  task.row = task.sequence;  // sequences of one row come first
  task.position = p.positions[task.sequence];
  TakeKeysAndHeads(p, head_block, &task);
  return task;
}

// The task of a block of a launch over tiles of rows; none if `rows` is 0. Sequence i has the tiles
// from (its first row) / rows_per_tile + i on, counted from the first row and sequence of the
// launch: room for all of its own, without a table.
__device__ inline AttentionTask TileTask(const AttentionKernelArgs& p, int tile, int head_block) {
  const int first_row = p.row_start[p.first_sequence];
  const auto first_tile = [&](int i) {
    return (p.row_start[i] - first_row) / p.rows_per_tile + i - p.first_sequence;
  };
  int low = p.first_sequence, high = p.end_sequence;  // first_tile(low) <= tile
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_tile(middle) <= tile ? low : high) = middle;
  }
  const int offset = (tile - first_tile(low)) * p.rows_per_tile;
  AttentionTask task = {.sequence = low};
  task.row = p.row_start[low] + offset;
  task.rows = max(0, min(p.rows_per_tile, p.row_start[low + 1] - task.row));
  task.position = p.positions[low] + offset;
  TakeKeysAndHeads(p, head_block, &task);
  return task;
}

template <typename T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// 2^x to two units in the last place; what is below the normal numbers becomes 0.
__device__ inline float FastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Whether any of eight bfloat16 is not finite.
__device__ inline bool AnyLost(const uint4& piece) {
  bool found = false;
  for (const uint32_t word : {piece.x, piece.y, piece.z, piece.w}) {
    found |= __vcmpeq2(word & 0x7f807f80u, 0x7f807f80u) != 0;
  }
  return found;
}

// Zeros for the task's rows and heads.
template <typename T>
__device__ inline void WriteZeros(const AttentionKernelArgs& p, const AttentionTask& task) {
  const int width = task.heads * p.head_dim;
  for (int i = threadIdx.x; i < task.rows * width; i += blockDim.x) {
    const int64_t row = task.row + i / width;
    static_cast<T*>(p.out)[(row * p.heads + task.head) * p.head_dim + i % width] =
        FromFloat<T>(0.0f);
  }
}

__device__ inline int64_t SplitAt(const AttentionKernelArgs& p, const AttentionTask& task,
                                  int split, int head) {
  const int64_t sequence = task.sequence - p.first_sequence;
  return (sequence * p.split_places + split) * p.heads + task.head + head;
}

// Called by all threads when a split's sums are written. The block that is the last of the row's
// splits and this head block to come joins them all, in their order, into `out`.
template <typename T>
__device__ inline void JoinSplits(const AttentionKernelArgs& p, const AttentionTask& task,
                                  int count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int* const arrived =
        p.arrived + (task.sequence - p.first_sequence) * p.head_blocks + task.head_block;
    last = atomicAdd(arrived, 1) == count - 1;
    if (last) *arrived = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  const int half = p.head_dim / 2;
  for (int i = threadIdx.x; i < task.heads * half; i += kAttentionThreads) {
    const int head = i / half, pair = i % half;
    float greatest = -INFINITY;
    for (int s = 0; s < count; ++s) {
      greatest = fmaxf(greatest, __ldcg(p.split_statistics + SplitAt(p, task, s, head)).x);
    }
    float sum = 0.0f;
    float2 values = {0.0f, 0.0f};
#pragma unroll 4
    for (int s = 0; s < count; ++s) {
      const int64_t at = SplitAt(p, task, s, head);
      const float2 statistics = __ldcg(p.split_statistics + at);
      const float2 part =
          __ldcg(reinterpret_cast<const float2*>(p.split_sums + at * p.head_dim) + pair);
      const float weight = exp2f(statistics.x - greatest);
      sum = fmaf(weight, statistics.y, sum);
      values.x = fmaf(weight, part.x, values.x);
      values.y = fmaf(weight, part.y, values.y);
    }
    T* const out = static_cast<T*>(p.out) + task.HeadAt(head, p.heads) * p.head_dim;
    out[2 * pair] = FromFloat<T>(values.x / sum);
    out[2 * pair + 1] = FromFloat<T>(values.y / sum);
  }
}

}  // namespace eddy
