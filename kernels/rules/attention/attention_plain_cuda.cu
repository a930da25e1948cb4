// Attention in fp32 for any head_dim: the exact one, and that of sizes the tensor cores do not
// take.
//
// A block of threads holds a tile of queries and walks over blocks of 32 keys. For scores and
// softmax, the lanes of a warp are the keys and the warp has every fourth query; for the sums, each
// thread has kColumns of the head's numbers, kAttentionThreads apart, of all queries.
#include "base/check.h"
#include "kernels/rules/attention/attention_kernels.h"
#include "kernels/rules/attention/attention_task.cuh"

namespace eddy {
namespace {

constexpr int kWarps = kAttentionThreads / 32;
constexpr float kMasked = -1.0f;  // in the place of a weight

__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

// On a multiprocessor, as registers allow.
constexpr int BlocksAtOnce(int sums_of_thread) {
  return sums_of_thread <= 8 ? 7 : sums_of_thread <= 16 ? 5 : 4;
}

// kQueries a multiple of kWarps, kKeys at most 32.
template <typename T, int kColumns, int kQueries>
class PlainBlock {
 public:
  static constexpr int kKeys = kColumns <= 4 ? 32 : 16;
  static constexpr int kOfWarp = kQueries / kWarps;

  static int SharedBytes(int head_dim) {
    return (kKeys * (head_dim + 1) + kQueries * head_dim) * static_cast<int>(sizeof(float));
  }

  __device__ PlainBlock(const AttentionKernelArgs& p, const AttentionTask& task, float* shared)
      : p_(p),
        task_(task),
        line_(p.pages + static_cast<int64_t>(task.sequence) * p.max_pages),
        queries_count_(task.Queries()),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        tile_(shared),
        queries_(shared + kKeys * (p.head_dim + 1)) {
    for (int i = threadIdx.x; i < kQueries * p.head_dim; i += kAttentionThreads) {
      const int query = i / p.head_dim, at = i % p.head_dim;
      const float* const q = static_cast<const float*>(p.q);
      queries_[at * kQueries + PlaceOf(query)] =
          query < queries_count_ ? q[HeadAt(query) + at] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kOfWarp; ++j) {
      const int query = warp_ + j * kWarps;
      last_[j] = query < queries_count_ ? task.PositionOf(query) : -1;
      first_[j] = FirstKey(p, last_[j]);
    }
  }

  // Reads keys begin .. end; all queries' sums are in the threads then, and their statistics
  // shared.
  __device__ void Attend(int begin, int end) {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums_[c][q] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kOfWarp; ++j) greatest_[j] = -INFINITY, sum_[j] = 0.0f;
    for (int key = begin; key < end; key += kKeys) {
      const int count = min(kKeys, end - key);
      const bool masked = key + count > task_.position + 1 || key < task_.all_from;
      __syncthreads();
      if (threadIdx.x < count) where_[threadIdx.x] = Locate(p_, line_, key + threadIdx.x);
      __syncthreads();
      Load(p_.keys, p_.key_stride, count);
      __syncthreads();
      Weigh(key, count);
      __syncthreads();
      Load(p_.values, p_.value_stride, count);
      __syncthreads();
      masked ? AddValues<true>(count) : AddValues<false>(count);
    }
#pragma unroll
    for (int j = 0; j < kOfWarp; ++j) {
      if (lane_ == 0) statistics_[warp_ + j * kWarps] = {greatest_[j], sum_[j]};
    }
    __syncthreads();
  }

  __device__ void WriteOut() const {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      if (q >= queries_count_) break;
      T* const out = static_cast<T*>(p_.out) + HeadAt(q);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int at = threadIdx.x + c * kAttentionThreads;
        if (at < p_.head_dim) out[at] = FromFloat<T>(sums_[c][q] / statistics_[q].y);
      }
    }
  }

  __device__ void WriteSplit(int split) const {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      if (q >= queries_count_) break;
      const int64_t to = SplitAt(p_, task_, split, q);
      if (threadIdx.x == 0) p_.split_statistics[to] = statistics_[q];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int at = threadIdx.x + c * kAttentionThreads;
        if (at < p_.head_dim) p_.split_sums[to * p_.head_dim + at] = sums_[c][q];
      }
    }
  }

 private:
  // A warp's queries lie side by side.
  __device__ static int PlaceOf(int query) { return query % kWarps * kOfWarp + query / kWarps; }
  // Of the query in [rows, H, d].
  __device__ int64_t HeadAt(int query) const { return task_.HeadAt(query, p_.heads) * p_.head_dim; }

  __device__ void Load(const std::byte* base, int64_t stride, int count) {
    const int d = p_.head_dim;
    for (int row = warp_; row < count; row += kWarps) {
      const PageRow where = where_[row];
      const T* const from = reinterpret_cast<const T*>(base + where.page * stride) +
                            (static_cast<int64_t>(where.row) * p_.kv_heads + task_.kv_head) * d;
#pragma unroll 4
      for (int i = lane_; i < d; i += 32) tile_[row * (d + 1) + i] = ToFloat(from[i]);
    }
  }

  __device__ void Weigh(int first_key, int count) {
    float scores[kOfWarp] = {};
    const float* const key = tile_ + min(lane_, count - 1) * (p_.head_dim + 1);
#pragma unroll 4
    for (int i = 0; i < p_.head_dim; ++i) {
      const float number = key[i];
#pragma unroll
      for (int j = 0; j < kOfWarp; ++j) {
        scores[j] = fmaf(queries_[i * kQueries + warp_ * kOfWarp + j], number, scores[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kOfWarp; ++j) {
      const int at = first_key + lane_;
      const bool read = lane_ < count && at >= first_[j] && at <= last_[j];
      // A score that is not finite means that the sequence's numbers are lost; NaN tells so.
      const float score = !read ? -INFINITY : fabsf(scores[j]) < INFINITY ? scores[j] : NAN;
      float greatest = fmaxf(greatest_[j], score);
#pragma unroll
      for (int o = 16; o > 0; o /= 2) {
        greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, o));
      }
      const float base = greatest == -INFINITY ? 0.0f : greatest;
      const float weight = exp2f(score - base), shrink = exp2f(greatest_[j] - base);
      float sum = weight;
#pragma unroll
      for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      greatest_[j] = greatest;
      sum_[j] = fmaf(sum_[j], shrink, sum);
      const int query = warp_ + j * kWarps;
      if (lane_ < kKeys) weights_[lane_][query] = read ? weight : kMasked;
      if (lane_ == 0) shrink_[query] = shrink;
    }
  }

  template <bool kAnyMasked>
  __device__ void AddValues(int count) {
    const int d = p_.head_dim;
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums_[c][q] *= shrink_[q];
    }
    for (int row = 0; row < count; ++row) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int at = threadIdx.x + c * kAttentionThreads;
        const float value = at < d ? tile_[row * (d + 1) + at] : 0.0f;
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          const float weight = weights_[row][q];
          // A key that is not read may be NaN, which a weight of zero would not hold back.
          if (!kAnyMasked || weight != kMasked) sums_[c][q] = fmaf(weight, value, sums_[c][q]);
        }
      }
    }
  }

  const AttentionKernelArgs& p_;
  const AttentionTask& task_;
  const int32_t* const line_;
  const int queries_count_, lane_, warp_;
  float* const tile_;     // [kKeys, d + 1]: keys, then values
  float* const queries_;  // [d, kQueries]
  float (*weights_)[kQueries] = Weights();
  float* shrink_ = Shrink();
  PageRow* where_ = Where();
  float2* statistics_ = Statistics();
  int first_[kOfWarp], last_[kOfWarp];
  float greatest_[kOfWarp], sum_[kOfWarp];
  float sums_[kColumns][kQueries];

  __device__ static float (*Weights())[kQueries] {
    __shared__ __align__(16) float weights[kKeys][kQueries];
    return weights;
  }
  __device__ static float* Shrink() {
    __shared__ float shrink[kQueries];
    return shrink;
  }
  __device__ static PageRow* Where() {
    __shared__ PageRow where[kKeys];
    return where;
  }
  __device__ static float2* Statistics() {
    __shared__ float2 statistics[kQueries];
    return statistics;
  }
};

// Grid [tiles, head blocks].
template <typename T, int kColumns, int kQueries>
__global__ void __launch_bounds__(kAttentionThreads, BlocksAtOnce(kColumns* kQueries))
    PlainRowsKernel(const __grid_constant__ AttentionKernelArgs p) {
  extern __shared__ __align__(16) float plain_shared[];
  const AttentionTask task = TileTask(p, gridDim.x - 1 - blockIdx.x, blockIdx.y);
  if (task.rows == 0) return;
  if (p.slots[task.sequence] == kNoSlot) return WriteZeros<T>(p, task);
  PlainBlock<T, kColumns, kQueries> block(p, task, plain_shared);
  block.Attend(task.begin, task.end);
  block.WriteOut();
}

// Grid [sequences, blocks_per_row, head blocks], the last running fastest.
template <typename T, int kColumns, int kQueries>
__global__ void __launch_bounds__(kAttentionThreads, BlocksAtOnce(kColumns* kQueries))
    PlainRowKernel(const __grid_constant__ AttentionKernelArgs p) {
  extern __shared__ __align__(16) float plain_shared[];
  const int place = blockIdx.x / p.head_blocks, first_split = place % p.blocks_per_row;
  const AttentionTask task = RowTask(p, place / p.blocks_per_row, blockIdx.x % p.head_blocks);
  if (p.slots[task.sequence] == kNoSlot) {
    if (first_split == 0) WriteZeros<T>(p, task);
    return;
  }
  const Splits splits = SplitsOf(p, task);
  if (first_split >= splits.count) return;
  PlainBlock<T, kColumns, kQueries> block(p, task, plain_shared);
  for (int split = first_split; split < splits.count; split += p.blocks_per_row) {
    const int begin = task.begin + split * splits.length;
    block.Attend(begin, min(begin + splits.length, task.end));
    if (splits.count == 1) {
      block.WriteOut();
    } else {
      block.WriteSplit(split);
      JoinSplits<T>(p, task, splits.count);
    }
    __syncthreads();
  }
}

template <typename T, int kColumns, int kQueries>
void Launch(const AttentionKernelArgs& args, int tiles, Stream stream) {
  const int bytes = PlainBlock<T, kColumns, kQueries>::SharedBytes(args.head_dim);
  const int most = PlainBlock<T, kColumns, kQueries>::SharedBytes(kColumns * kAttentionThreads);
  static const cudaError_t allowed[] = {
      cudaFuncSetAttribute(PlainRowsKernel<T, kColumns, kQueries>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, most),
      cudaFuncSetAttribute(PlainRowKernel<T, kColumns, kQueries>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, most)};
  static_cast<void>(allowed);  // if not, the launch fails too
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (tiles > 0) {
    PlainRowsKernel<T, kColumns, kQueries>
        <<<dim3(tiles, args.head_blocks), kAttentionThreads, bytes, cuda_stream>>>(args);
    return;
  }
  const int sequences = args.end_sequence - args.first_sequence;
  PlainRowKernel<T, kColumns, kQueries><<<sequences * args.blocks_per_row * args.head_blocks,
                                          kAttentionThreads, bytes, cuda_stream>>>(args);
}

// `tiles` 0: one row each.
template <typename T>
void Launch(const AttentionKernelArgs& args, int tiles, Stream stream) {
  const bool few = tiles == 0 && args.heads_per_block <= 4;
  if (args.head_dim <= 128) {
    return few ? Launch<T, 1, 4>(args, tiles, stream) : Launch<T, 1, 16>(args, tiles, stream);
  }
  if (args.head_dim <= 256) {
    return few ? Launch<T, 2, 4>(args, tiles, stream) : Launch<T, 2, 16>(args, tiles, stream);
  }
  if (args.head_dim <= 512) return Launch<T, 4, 8>(args, tiles, stream);
  Launch<T, 8, 4>(args, tiles, stream);
}

void Launch(const AttentionKernelArgs& args, DType type, int tiles, Stream stream) {
  EDDY_CHECK(args.head_dim <= 1024 && args.heads_per_block <= PlainQueries(args.head_dim));
  if (type == DType::kF32) return Launch<float>(args, tiles, stream);
  EDDY_CHECK(type == DType::kBF16);
  Launch<__nv_bfloat16>(args, tiles, stream);
}

}  // namespace

int PlainQueries(int64_t head_dim) { return head_dim <= 256 ? 16 : head_dim <= 512 ? 8 : 4; }

void LaunchPlainRows(const AttentionKernelArgs& args, DType type, int tiles, Stream stream) {
  EDDY_CHECK(tiles > 0);
  Launch(args, type, tiles, stream);
}

void LaunchPlainRow(const AttentionKernelArgs& args, DType type, Stream stream) {
  Launch(args, type, /*tiles=*/0, stream);
}

}  // namespace eddy
