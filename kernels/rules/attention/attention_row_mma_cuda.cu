// One row of a sequence, on tensor cores: the query heads that share keys are the rows of a tile of
// 16. Each warp works through 16 keys at a time on its own, copies in flight ahead of it; the warps
// of a block join at the end of a split.
#include "base/check.h"
#include "kernels/rules/attention/attention_kernels.h"
#include "kernels/rules/attention/attention_mma.cuh"

namespace eddy {
namespace {

constexpr int kWarps = kAttentionThreads / 32;
constexpr int kStages = 2;     // one is worked on, the other is on its way
constexpr int kJoinHeads = 4;  // that the warps join at a time
static_assert(kMmaHeads == 16 && kMmaHeads % kJoinHeads == 0);

template <int kDim>
struct Layout {                              // of shared memory, in bytes
  static constexpr int kKeys = 2048 / kDim;  // of a warp, at a time
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  static constexpr int kStageBytes = 2 * kKeyBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  // What the warps join: greatest and sum [kWarps, kJoinHeads], and values [kWarps, kJoinHeads,
  // kDim].
  static constexpr int kStatistics = kWarps * kWarpBytes;
  static constexpr int kSums = kStatistics + kWarps * kJoinHeads * 8;
  static constexpr int kBytes = kSums + kWarps * kJoinHeads * kDim * 4;
};

// The fragments of the task's heads; rows beyond them are zero.
template <int kDim>
__device__ void LoadQueries(const AttentionKernelArgs& p, const AttentionTask& task,
                            uint32_t (&to)[kDim / 16][4]) {
  const int lane = threadIdx.x % 32;
  const auto* const q = static_cast<const __nv_bfloat16*>(p.q) +
                        (static_cast<int64_t>(task.row) * p.heads + task.head) * kDim;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = lane / 4 + i % 2 * 8, at = step * 16 + i / 2 * 8 + lane % 4 * 2;
      to[step][i] =
          head < task.heads ? *reinterpret_cast<const uint32_t*>(q + head * kDim + at) : 0u;
    }
  }
}

// A warp's way through the splits of its block: of each its share of keys, 16 at a time, kWarps *
// 16 apart. Copies run ahead of it, into the next split too.
template <int kDim>
class Warp {
  static constexpr int kKeys = Layout<kDim>::kKeys;

 public:
  __device__ Warp(const AttentionKernelArgs& p, const AttentionTask& task, const Splits& splits,
                  int first_split, uint32_t stages)
      : p_(p),
        task_(task),
        splits_(splits),
        line_(p.pages + static_cast<int64_t>(task.sequence) * p.max_pages),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        stages_(stages),
        ahead_split_(first_split),
        ahead_(FirstOf(first_split)) {
    Settle();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) CopyAhead();
    LoadQueries<kDim>(p, task, queries_);
  }

  // The splits in the order of the walk.
  __device__ void Attend(int split, MmaSums<kDim, 1>* sums) {
    const auto query = [&](int, int step, uint32_t(&a)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = queries_[step][i];
    };
    const int end = EndOf(split);
    for (int key = FirstOf(split); key < end; key += kWarps * kKeys) {
      WaitCopies<kStages - 2>();
      __syncwarp();
      CopyAhead();
      const uint32_t keys = stages_ + used_ * Layout<kDim>::kStageBytes;
      used_ = (used_ + 1) % kStages;
      float scores[1][kKeys / 8][4];
      Score<kDim>(query, keys, scores);
      if (end - key < kKeys) Mask(end - key, scores[0]);
      Weigh(scores, sums);
      AddValues(scores, keys + Layout<kDim>::kKeyBytes, sums);
    }
  }

 private:
  __device__ int FirstOf(int split) const {
    return task_.begin + split * splits_.length + warp_ * kKeys;
  }
  __device__ int EndOf(int split) const {
    return min(task_.begin + (split + 1) * splits_.length, task_.end);
  }
  // Goes on to the split that has the next keys to copy, and looks up where they lie.
  __device__ void Settle() {
    while (ahead_split_ < splits_.count && ahead_ >= EndOf(ahead_split_)) {
      ahead_split_ += p_.blocks_per_row;
      ahead_ = FirstOf(ahead_split_);
    }
    if (ahead_split_ >= splits_.count) return;
    const int key = ahead_ + lane_;
    where_ = lane_ < kKeys && key < EndOf(ahead_split_) ? Locate(p_, line_, key) : PageRow{};
  }
  __device__ void CopyAhead() {
    if (ahead_split_ < splits_.count) {
      const uint32_t keys = stages_ + copied_ * Layout<kDim>::kStageBytes;
      copied_ = (copied_ + 1) % kStages;
      CopyKeys<kDim, kKeys>(p_, task_.kv_head, where_, keys, keys + Layout<kDim>::kKeyBytes);
      ahead_ += kWarps * kKeys;
      Settle();
    }
    CommitCopies();  // also when empty, so that groups can be counted
  }
  // All but the first `left` keys do not exist.
  __device__ void Mask(int left, float (&scores)[kKeys / 8][4]) const {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int column = i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      if (column >= left) scores[i / 4][i % 4] = -INFINITY;
    }
  }

  const AttentionKernelArgs& p_;
  const AttentionTask& task_;
  const Splits& splits_;
  const int32_t* const line_;
  const int lane_, warp_;
  const uint32_t stages_;
  uint32_t queries_[kDim / 16][4];
  int ahead_split_, ahead_;    // what is copied next
  PageRow where_ = {};         // the lane's key of that
  int copied_ = 0, used_ = 0;  // next stages
};

// Puts the warp's sums of kJoinHeads heads from `first` on where the others see them.
template <int kDim>
__device__ void ShareSums(const MmaSums<kDim, 1>& sums, int first, float* values,
                          float2* statistics) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = half * 8 + lane / 4 - first;
    if (head < 0 || head >= kJoinHeads) continue;
    if (lane % 4 == 0) statistics[head] = {sums.greatest[0][half], sums.sum[0][half]};
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<float2*>(values + head * kDim + n * 8 + lane % 4 * 2) = {
          sums.values[0][n][2 * half], sums.values[0][n][2 * half + 1]};
    }
  }
}

// Joins the warps, in their order, for kJoinHeads heads from `first` on. The only split of a row
// goes to `out` at once.
template <int kDim>
__device__ void JoinWarps(const AttentionKernelArgs& p, const AttentionTask& task, int first,
                          const float* values, const float2* statistics, int split, int count) {
  const int heads = min(kJoinHeads, task.heads - first);
  for (int i = threadIdx.x; i < heads * kDim / 2; i += kAttentionThreads) {
    const int head = i / (kDim / 2), at = i % (kDim / 2) * 2;
    float greatest = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      greatest = fmaxf(greatest, statistics[w * kJoinHeads + head].x);
    }
    float sum = 0.0f;
    float2 all = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 of_warp = statistics[w * kJoinHeads + head];
      const float2 part =
          *reinterpret_cast<const float2*>(values + (w * kJoinHeads + head) * kDim + at);
      const float weight = FastExp2(of_warp.x - greatest);
      sum = fmaf(weight, of_warp.y, sum);
      all.x = fmaf(weight, part.x, all.x);
      all.y = fmaf(weight, part.y, all.y);
    }
    if (count == 1) {
      const int64_t to = task.HeadAt(first + head, p.heads) * kDim + at;
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + to) =
          PackBf16(all.x / sum, all.y / sum);
      continue;
    }
    const int64_t to = SplitAt(p, task, split, first + head);
    *reinterpret_cast<float2*>(p.split_sums + to * kDim + at) = all;
    if (at == 0) p.split_statistics[to] = {greatest, sum};
  }
}

// Grid [sequences, blocks_per_row, head blocks], the last running fastest: heads whose keys are
// neighbours in memory are read at about the same time.
template <int kDim>
__global__ void __launch_bounds__(kAttentionThreads, 3)
    MmaRowKernel(const __grid_constant__ AttentionKernelArgs p) {
  using Shared = Layout<kDim>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int place = blockIdx.x / p.head_blocks, first_split = place % p.blocks_per_row;
  const AttentionTask task = RowTask(p, place / p.blocks_per_row, blockIdx.x % p.head_blocks);
  if (p.slots[task.sequence] == kNoSlot) {
    if (first_split == 0) WriteZeros<__nv_bfloat16>(p, task);
    return;
  }
  const Splits splits = SplitsOf(p, task);
  if (first_split >= splits.count) return;
  const int warp = threadIdx.x / 32;
  float2* const statistics = reinterpret_cast<float2*>(shared + Shared::kStatistics);
  float* const values = reinterpret_cast<float*>(shared + Shared::kSums);
  Warp<kDim> walk(p, task, splits, first_split, SharedAddress(shared) + warp * Shared::kWarpBytes);
  for (int split = first_split; split < splits.count; split += p.blocks_per_row) {
    MmaSums<kDim, 1> sums;
    sums.Clear();
    walk.Attend(split, &sums);
    sums.Finish();
    for (int first = 0; first < task.heads; first += kJoinHeads) {
      ShareSums<kDim>(sums, first, values + warp * kJoinHeads * kDim,
                      statistics + warp * kJoinHeads);
      __syncthreads();
      JoinWarps<kDim>(p, task, first, values, statistics, split, splits.count);
      __syncthreads();
    }
    if (splits.count > 1) JoinSplits<__nv_bfloat16>(p, task, splits.count);
  }
  WaitCopies<0>();
}

template <int kDim>
void Launch(const AttentionKernelArgs& args, Stream stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      MmaRowKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout<kDim>::kBytes);
  static_cast<void>(allowed);  // if not, the launch fails too
  const int sequences = args.end_sequence - args.first_sequence;
  MmaRowKernel<kDim><<<sequences * args.blocks_per_row * args.head_blocks, kAttentionThreads,
                       Layout<kDim>::kBytes, static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace

void LaunchMmaRow(const AttentionKernelArgs& args, Stream stream) {
  EDDY_CHECK(args.head_dim == 64 || args.head_dim == 128);
  if (args.head_dim == 64) return Launch<64>(args, stream);
  Launch<128>(args, stream);
}

}  // namespace eddy
