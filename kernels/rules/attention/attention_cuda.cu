#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cuda/compiled_for.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/rules/attention/attention_cuda.h"
#include "kernels/rules/attention/attention_kernels.h"
#include "kernels/rules/attention/attention_task.cuh"

namespace eddy {
namespace {

// Blocks wanted for a single row, so that it has the whole device at work if it reads far enough.
constexpr int kBlocksForARow = 256;
constexpr int kLeastOfMostSplits = 8, kMostOfMostSplits = 128;
// Sums of splits that there is room for, in rows: a launch takes no more sequences than that.
constexpr int kSplitPlaces = 4096;
// Blocks of a launch over single rows: some waves of them, to even out rows of different lengths.
constexpr int kRowBlocks = 4096;
constexpr int kTurnThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

// How the heads fall into head blocks.
struct HeadBlocks {
  HeadBlocks(const AttentionShape& shape, int most_heads) {
    const auto group = static_cast<int>(shape.heads / shape.kv_heads);
    per_kv_head = (group + most_heads - 1) / most_heads;
    heads = (group + per_kv_head - 1) / per_kv_head;
    all = static_cast<int>(shape.kv_heads) * per_kv_head;
  }
  int MostSplits() const {
    return std::clamp((kBlocksForARow + all - 1) / all, kLeastOfMostSplits, kMostOfMostSplits);
  }
  int per_kv_head = 0, heads = 0, all = 0;
};

// Whatever the type: scratch is asked for before it is known.
int64_t ArrivedBytes(const AttentionShape& shape) {
  const HeadBlocks finest(shape, PlainQueries(shape.head_dim));
  return (kSplitPlaces * finest.all * static_cast<int64_t>(sizeof(int)) + 255) / 256 * 256;
}
int64_t StatisticsBytes(const AttentionShape& shape) {
  return kSplitPlaces * shape.heads * static_cast<int64_t>(sizeof(float2));
}
int64_t SumsBytes(const AttentionShape& shape) {
  return kSplitPlaces * shape.heads * shape.head_dim * static_cast<int64_t>(sizeof(float));
}

struct TurnArgs {
  AttentionCudaArgs rule = {};
  const int32_t* row_start = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* pages = nullptr;
  int max_pages = 0, rows_per_page = 0, sequences = 0, single_row_sequences = 0;
  float scale = 0.0f;  // of the scores
  void* turned = nullptr;
  int* arrived = nullptr;
  int arrived_count = 0;
};

__device__ int SequenceOf(const TurnArgs& a, int row) {
  if (row < a.single_row_sequences) return row;
  int low = a.single_row_sequences, high = a.sequences;  // row_start[low] <= row < row_start[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (a.row_start[middle] <= row ? low : high) = middle;
  }
  return low;
}

// One row of q, k and v, and where its key and value go.
template <typename T, typename Query>
class RowTurner {
 public:
  __device__ RowTurner(const TurnArgs& a, int sequence, int row, int position, const float2* turns)
      : p_(a.rule),
        scale_(a.scale),
        heads_(static_cast<int>(a.rule.shape.heads)),
        kv_heads_(static_cast<int>(a.rule.shape.kv_heads)),
        half_(static_cast<int>(a.rule.shape.head_dim / 2)),
        offset_(row * a.rule.qkv_stride),
        turns_(turns),
        turned_(static_cast<Query*>(a.turned) + static_cast<int64_t>(row) * heads_ * 2 * half_) {
    const int64_t line = static_cast<int64_t>(sequence) * a.max_pages;
    const int64_t page = a.pages[line + position / a.rows_per_page % a.max_pages];
    const int64_t within = static_cast<int64_t>(position % a.rows_per_page) * kv_heads_ * 2 * half_;
    keys_ = reinterpret_cast<T*>(p_.keys.base + page * p_.keys.stride) + within;
    values_ = reinterpret_cast<T*>(p_.values.base + page * p_.values.stride) + within;
  }

  // A thread has the same pair of numbers of every so manieth head. Some at a time, all of which
  // are loaded before the first is stored: the loads are on their way together.
  __device__ void Turn() const {
    constexpr int kAtOnce = 4;
    const int lanes = min(half_, kTurnThreads), step = kTurnThreads / lanes;
    const int lane = threadIdx.x % lanes, all = heads_ + kv_heads_;
    if (threadIdx.x >= lanes * step) return;
    for (int pair = lane; pair < half_; pair += lanes) {
      for (int first = threadIdx.x / lanes; first < all; first += kAtOnce * step) {
        float2 pairs[kAtOnce];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          const int head = first + n * step;
          if (head < all) pairs[n] = Load(head, pair);
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          const int head = first + n * step;
          if (head < all) Store(head, pair, pairs[n]);
        }
      }
    }
  }

  __device__ void StoreValues() const {
    const int count = kv_heads_ * half_;
    for (int i = threadIdx.x; i < count; i += kTurnThreads) {
      const float x = Biased(p_.v, p_.v_bias, i), y = Biased(p_.v, p_.v_bias, i + count);
      values_[i] = FromFloat<T>(x), values_[i + count] = FromFloat<T>(y);
    }
  }

 private:
  __device__ float Biased(const float* x, const float* bias, int at) const {
    return bias == nullptr ? x[offset_ + at] : x[offset_ + at] + bias[at];
  }
  // Infinity becomes NaN: it makes NaN of every score then, where a score of minus infinity would
  // go unnoticed.
  __device__ static float NanIfLost(float x) { return fmaf(x, 0.0f, x); }

  // Heads of queries, then those of keys.
  __device__ float2 Load(int head, int pair) const {
    const bool query = head < heads_;
    const float* const from = query ? p_.q : p_.k;
    const float* const bias = query ? p_.q_bias : p_.k_bias;
    const int low = (query ? head : head - heads_) * 2 * half_ + pair;
    return {Biased(from, bias, low), Biased(from, bias, low + half_)};
  }
  __device__ void Store(int head, int pair, const float2& numbers) const {
    const float2 turn = turns_[pair];
    const float left = NanIfLost(numbers.x * turn.x - numbers.y * turn.y);
    const float right = NanIfLost(numbers.y * turn.x + numbers.x * turn.y);
    if (head < heads_) {
      const int low = head * 2 * half_ + pair, high = low + half_;
      turned_[low] = FromFloat<Query>(left * scale_);
      turned_[high] = FromFloat<Query>(right * scale_);
    } else {
      const int low = (head - heads_) * 2 * half_ + pair, high = low + half_;
      keys_[low] = FromFloat<T>(left), keys_[high] = FromFloat<T>(right);
    }
  }

  const AttentionCudaArgs& p_;
  const float scale_;
  const int heads_, kv_heads_, half_;
  const int64_t offset_;       // of the row in q, k and v
  const float2* const turns_;  // cosine and sine [d / 2]
  Query* const turned_;
  T *keys_, *values_;
};

// Grid [rows]; the first block also zeros the counters of the splits.
template <typename T, typename Query>
__global__ void __launch_bounds__(kTurnThreads) TurnKernel(const __grid_constant__ TurnArgs a) {
  extern __shared__ float2 turns[];
  const int row = blockIdx.x, sequence = SequenceOf(a, row);
  const int position = a.positions[sequence] + row - a.row_start[sequence];
  for (int i = threadIdx.x; i < a.rule.shape.head_dim / 2; i += kTurnThreads) {
    // In double: a float angle of a late position would be off by its last digits.
    double sine, cosine;
    sincos(static_cast<double>(position) * a.rule.frequencies[i], &sine, &cosine);
    turns[i] = {static_cast<float>(cosine), static_cast<float>(sine)};
  }
  WaitForPrevious();
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < a.arrived_count; i += kTurnThreads) a.arrived[i] = 0;
  }
  if (a.slots[sequence] == kNoSlot) return;
  __syncthreads();
  const RowTurner<T, Query> turner(a, sequence, row, position, turns);
  turner.Turn();
  turner.StoreValues();
}

// One call's way through the kernels.
class Attention {
 public:
  Attention(const Step& step, const AttentionCudaArgs& args)
      : step_(step),
        rule_(args),
        mma_(MmaAttentionTakes(args.type, args.shape.head_dim)),
        most_heads_(mma_ ? kMmaHeads : PlainQueries(args.shape.head_dim)),
        blocks_(args.shape, most_heads_) {
    auto* at = static_cast<std::byte*>(args.scratch);
    arrived_ = reinterpret_cast<int*>(at);
    statistics_ = reinterpret_cast<float2*>(at += ArrivedBytes(args.shape));
    sums_ = reinterpret_cast<float*>(at += StatisticsBytes(args.shape));
    turned_ = at + SumsBytes(args.shape);
  }

  void Turn() const {
    const TurnArgs args = {
        .rule = rule_,
        .row_start = step_.row_start,
        .slots = step_.slots,
        .positions = step_.positions,
        .pages = step_.pages,
        .max_pages = step_.max_pages,
        .rows_per_page = static_cast<int>(rule_.keys.shape[0]),
        .sequences = step_.sequences,
        .single_row_sequences = step_.single_row_sequences,
        .scale = kLog2E / std::sqrt(static_cast<float>(rule_.shape.head_dim)),
        .turned = turned_,
        .arrived = arrived_,
        .arrived_count = std::min(step_.single_row_sequences, SequencesOfLaunch()) * blocks_.all};
    const size_t shared = static_cast<size_t>(rule_.shape.head_dim) / 2 * sizeof(float2);
    const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(step_.rows)),
                               .threads = kTurnThreads,
                               .shared_bytes = shared};
    const auto kernel = rule_.type == DType::kF32 ? TurnKernel<float, float>
                        : mma_                    ? TurnKernel<__nv_bfloat16, __nv_bfloat16>
                                                  : TurnKernel<__nv_bfloat16, float>;
    const auto stream = static_cast<cudaStream_t>(step_.stream);
    if (step_.rows == step_.single_row_sequences) {
      LaunchDependent(stream, shape, kernel, args);
    } else {
      // Early blocks of many rows would only be in the way of what runs ahead.
      kernel<<<shape.grid, shape.threads, shape.shared_bytes, stream>>>(args);
    }
  }

  void AttendSingleRows() const {
    const int most = SequencesOfLaunch();
    AttentionKernelArgs args = KernelArgs();
    for (int first = 0; first < step_.single_row_sequences; first += most) {
      const int sequences = std::min(most, step_.single_row_sequences - first);
      args.first_sequence = first;
      args.end_sequence = first + sequences;
      args.blocks_per_row =
          std::clamp(kRowBlocks / (sequences * blocks_.all), 1, args.split_places);
      if (mma_) {
        LaunchMmaRow(args, step_.stream);
      } else {
        LaunchPlainRow(args, rule_.type, step_.stream);
      }
    }
  }

  void AttendManyRows() const {
    const int sequences = step_.sequences - step_.single_row_sequences;
    const int rows = step_.rows - step_.single_row_sequences;
    if (sequences == 0 || rows == 0) return;
    AttentionKernelArgs args = KernelArgs();
    args.first_sequence = step_.single_row_sequences;
    args.end_sequence = step_.sequences;
    const int queries = mma_ ? kMmaQueries : PlainQueries(rule_.shape.head_dim);
    args.rows_per_tile = queries / blocks_.heads;
    const int tiles = rows / args.rows_per_tile + sequences;
    if (mma_ && TakesWarpgroups(sequences)) {
      LaunchWgmmaRows(args, tiles, step_.stream);
    } else if (mma_) {
      LaunchMmaRows(args, tiles, step_.stream);
    } else {
      LaunchPlainRows(args, rule_.type, tiles, step_.stream);
    }
  }

 private:
  // Measured on an H200: many short prompts are faster in the smaller blocks of warps, of which two
  // fit on a multiprocessor; long prompts, and few rows with a long past, in those of warpgroups.
  bool TakesWarpgroups(int sequences) const {
    constexpr int kShortRows = 1024, kManySequences = 8;
    if (!KernelsCompiledFor().warpgroups || rule_.tiles == AttentionTiles::kWarps) return false;
    if (rule_.tiles == AttentionTiles::kWarpgroups) return true;
    return step_.max_rows_per_sequence >= kShortRows || sequences < kManySequences;
  }

  // Of the keys that any row can read, in a line of so many pages.
  int SplitPlaces() const {
    int64_t keys = step_.max_pages * rule_.keys.shape[0];
    if (rule_.window > 0) keys = std::min(keys, rule_.window);
    const int64_t splits = (keys + kLeastSplit - 1) / kLeastSplit;
    return static_cast<int>(std::min<int64_t>(blocks_.MostSplits(), splits));
  }
  int SequencesOfLaunch() const { return kSplitPlaces / SplitPlaces(); }

  AttentionKernelArgs KernelArgs() const {
    return {.row_start = step_.row_start,
            .slots = step_.slots,
            .positions = step_.positions,
            .pages = step_.pages,
            .max_pages = step_.max_pages,
            .rows_per_page = static_cast<int>(rule_.keys.shape[0]),
            .heads = static_cast<int>(rule_.shape.heads),
            .kv_heads = static_cast<int>(rule_.shape.kv_heads),
            .head_dim = static_cast<int>(rule_.shape.head_dim),
            .head_blocks = blocks_.all,
            .blocks_per_kv_head = blocks_.per_kv_head,
            .heads_per_block = blocks_.heads,
            .window = static_cast<int>(rule_.window),
            .keys = rule_.keys.base,
            .values = rule_.values.base,
            .key_stride = rule_.keys.stride,
            .value_stride = rule_.values.stride,
            .q = turned_,
            .out = rule_.out,
            .most_splits = blocks_.MostSplits(),
            .split_places = SplitPlaces(),
            .split_sums = sums_,
            .split_statistics = statistics_,
            .arrived = arrived_};
  }

  const Step& step_;
  const AttentionCudaArgs& rule_;
  const bool mma_;
  const int most_heads_;
  const HeadBlocks blocks_;
  int* arrived_;
  float2* statistics_;
  float* sums_;
  void* turned_;
};

}  // namespace

int64_t AttentionCudaScratchBytes(const AttentionShape& shape) {
  return ArrivedBytes(shape) + StatisticsBytes(shape) + SumsBytes(shape);
}

int64_t AttentionCudaScratchBytesPerRow(const AttentionShape& shape) {
  return shape.heads * shape.head_dim * static_cast<int64_t>(sizeof(float));
}

void AttentionCuda(const Step& step, const AttentionCudaArgs& args) {
  EDDY_CHECK(args.shape.head_dim % 2 == 0 && args.shape.heads % args.shape.kv_heads == 0);
  if (step.rows == 0) return;
  const Attention attention(step, args);
  attention.Turn();
  attention.AttendSingleRows();
  attention.AttendManyRows();
}

}  // namespace eddy
