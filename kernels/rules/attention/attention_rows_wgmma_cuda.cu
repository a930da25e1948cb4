// Many rows of a sequence at a time, by warpgroups (sm_90a): one copies keys and values, two more
// have 64 queries each, and take the next scores while the last values are being added; in the
// manner of Shah et al. 2024, arXiv 2407.08608.
#include "base/check.h"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/rules/attention/attention_kernels.h"
#include "kernels/rules/attention/attention_task.cuh"

namespace eddy {
namespace {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 3 * kGroup;
constexpr int kQueries = 64;  // of a warpgroup
constexpr int kKeys = 128;    // of a block
constexpr int kStages = 2;    // blocks in shared memory
static_assert(2 * kQueries == kMmaQueries);

template <int kDim>
struct Layout {  // of shared memory, in bytes
  static constexpr int kTileBytes = kKeys * kDim * 2;
  static constexpr int kQueryBytes = kMmaQueries * kDim * 2;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kLost = kQueryBytes + kStages * kStageBytes;
  static constexpr int kBarriers = kLost + kStages * kKeys;
  static constexpr int kBytes = kBarriers + 4 * kStages * 8;
};

// Shared memory of a block. Tile 2 j holds the keys of key block j, tile 2 j + 1 its values.
template <int kDim>
struct Shared {
  using Of = Layout<kDim>;
  unsigned char* base;
  uint32_t queries;
  __device__ explicit Shared(unsigned char* memory)
      : base(memory), queries(SharedAddress(memory)) {}
  __device__ static int TileAt(int tile) {
    return Of::kQueryBytes + tile / 2 % kStages * Of::kStageBytes + tile % 2 * Of::kTileBytes;
  }
  __device__ uint32_t Tile(int tile) const { return queries + TileAt(tile); }
  // Which values of the block were not finite, and have been replaced by zeros.
  __device__ bool* Lost(int block) const {
    return reinterpret_cast<bool*>(base + Of::kLost + block % kStages * kKeys);
  }
  __device__ uint32_t Full(int tile) const {
    return queries + Of::kBarriers + tile % (2 * kStages) * 8;
  }
  __device__ uint32_t Empty(int tile) const { return Full(tile) + 2 * kStages * 8; }
  __device__ static int Phase(int tile) { return tile / (2 * kStages) % 2; }
};

#ifdef EDDY_WGMMA

constexpr int kCopierRegisters = 40, kWorkerRegisters = 232;

// Copies tiles into shared memory in their order, as their places become free.
template <int kDim>
class Copier {
 public:
  __device__ Copier(const AttentionKernelArgs& p, const AttentionTask& task,
                    const Shared<kDim>& shared)
      : p_(p),
        task_(task),
        shared_(shared),
        line_(p.pages + static_cast<int64_t>(task.sequence) * p.max_pages),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x % kGroup / 32) {}

  __device__ void Run() {
    PageRow next = Find(0);
    for (int block = 0; block < task_.Blocks(kKeys); ++block) {
      const PageRow now = next;
      next = Find(block + 1);
      const int keys = 2 * block, values = keys + 1;
      AwaitPhase(shared_.Empty(keys), Shared<kDim>::Phase(keys) ^ 1);
      Copy(p_.keys, p_.key_stride, now, shared_.Tile(keys));
      ArriveWithCopies(shared_.Full(keys));
      AwaitPhase(shared_.Empty(values), Shared<kDim>::Phase(values) ^ 1);
      Copy(p_.values, p_.value_stride, now, shared_.Tile(values));
      if (task_.Masked(block, kKeys)) {
        CommitCopies();
        WaitCopies<0>();
        TakeOutLostValues(values);
        Arrive(shared_.Full(values));
      } else {
        ArriveWithCopies(shared_.Full(values));
      }
    }
  }

 private:
  static constexpr int kPieces = kDim / 8;  // of 16 bytes, in a row
  static constexpr int kRowsAtOnce = 32 / kPieces;

  // Where this lane's key of a block lies.
  __device__ PageRow Find(int block) const {
    const int key = task_.begin + block * kKeys + warp_ * 32 + lane_;
    return key < task_.end ? Locate(p_, line_, key) : PageRow{};
  }

  __device__ void Copy(const std::byte* base, int64_t stride, const PageRow& of_lane,
                       uint32_t tile) const {
    const int piece = lane_ % kPieces;
    const int64_t row_bytes = static_cast<int64_t>(p_.kv_heads) * kDim * 2;
    base += task_.kv_head * kDim * 2 + piece * 16;
#pragma unroll 4
    for (int i = 0; i < 32 / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + lane_ / kPieces;
      const int page = __shfl_sync(~0u, of_lane.page, row);
      const int64_t within = __shfl_sync(~0u, of_lane.row, row) * row_bytes;
      const bool valid = page >= 0;
      CopyAsync16(tile + PanelByte(kKeys, warp_ * 32 + row, piece),
                  base + (valid ? page * stride + within : 0), valid);
    }
  }

  // Zeros the values that are not finite and notes their keys: a row that reads one of them is
  // lost, but one that does not must not meet it, not even with a weight of zero. Each thread sees
  // what it has copied itself.
  __device__ void TakeOutLostValues(int tile) const {
    const int piece = lane_ % kPieces, first = lane_ / kPieces * kPieces;
    const uint32_t of_row = (kPieces == 32 ? ~0u : (1u << kPieces) - 1) << first;
    bool* const lost = shared_.Lost(tile / 2);
    for (int i = 0; i < 32 / kRowsAtOnce; ++i) {
      const int row = warp_ * 32 + i * kRowsAtOnce + lane_ / kPieces;
      auto* const at = reinterpret_cast<uint4*>(shared_.base + Shared<kDim>::TileAt(tile) +
                                                PanelByte(kKeys, row, piece));
      const bool found = (__ballot_sync(~0u, AnyLost(*at)) & of_row) != 0;
      if (found) *at = uint4{};
      if (piece == 0) lost[row] = found;
    }
  }

  const AttentionKernelArgs& p_;
  const AttentionTask& task_;
  const Shared<kDim>& shared_;
  const int32_t* const line_;
  const int lane_, warp_;
};

// Attends for the 64 queries of a warpgroup. The lane has two of them, as in attention_mma.cuh.
template <int kDim>
class Worker {
 public:
  __device__ Worker(const AttentionKernelArgs& p, const AttentionTask& task,
                    const Shared<kDim>& shared)
      : p_(p),
        task_(task),
        shared_(shared),
        lane_(threadIdx.x % 32),
        first_query_((threadIdx.x / kGroup - 1) * kQueries) {
    const int row = first_query_ + threadIdx.x % kGroup / 32 * 16 + lane_ / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) query_[half] = row + half * 8;
  }

  __device__ void Run() {
    CopyQueries();
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) values_[i] = 0.0f;
    const int blocks = task_.Blocks(kKeys);
    Score(0);
    WgmmaWait<0>();
    HoldRegisters(scores_);
    Release(0);
    if (task_.Masked(0, kKeys)) Mask(0);
    Weigh();
    Pack();
    for (int block = 1; block < blocks; ++block) {
      Score(block);
      AddValues(block - 1);
      WgmmaWait<1>();
      HoldRegisters(scores_);
      Release(2 * block);
      if (task_.Masked(block, kKeys)) Mask(block);
      Weigh();
      HoldRegisters(scores_);  // the work on them is to be done while the products run
      WgmmaWait<0>();
      HoldRegisters(values_);
      HoldRegisters(weights_);
      Release(2 * block - 1);
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) values_[i] *= shrink_[i / 2 % 2];
      Pack();
    }
    AddValues(blocks - 1);
    WgmmaWait<0>();
    HoldRegisters(values_);
    WriteOut();
  }

 private:
  // Those of this warpgroup; it alone waits for them.
  __device__ void CopyQueries() const {
    const int thread = threadIdx.x % kGroup;
    for (int i = thread; i < kQueries * kDim / 8; i += kGroup) {
      const int query = first_query_ + i / (kDim / 8), piece = i % (kDim / 8);
      const bool valid = query < task_.Queries();
      const auto* const from = static_cast<const __nv_bfloat16*>(p_.q) +
                               (valid ? task_.HeadAt(query, p_.heads) * kDim : 0);
      CopyAsync16(shared_.queries + PanelByte(kMmaQueries, query, piece), from + piece * 8, valid);
    }
    CommitCopies();
    WaitCopies<0>();
    WgmmaPublish();
    asm volatile("bar.sync %0, %1;\n" ::"r"(static_cast<int>(threadIdx.x) / kGroup), "n"(kGroup)
                 : "memory");
  }

  __device__ void Await(int tile) const {
    AwaitPhase(shared_.Full(tile), Shared<kDim>::Phase(tile));
    WgmmaPublish();
  }
  __device__ void Release(int tile) const {
    __syncwarp();  // all lanes have read which values are lost
    if (lane_ == 0) Arrive(shared_.Empty(tile));
  }

  __device__ void Score(int block) {
    Await(2 * block);
    const uint32_t keys = shared_.Tile(2 * block);
    const uint32_t queries = shared_.queries + first_query_ * 128;
    HoldRegisters(scores_);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int panel = step / 4, within = step % 4 * 32;
      MultiplyAdd64x128x16(scores_, RowsOperand(queries + panel * kMmaQueries * 128 + within),
                           RowsOperand(keys + panel * kKeys * 128 + within), step > 0);
    }
    WgmmaCommit();
  }

  __device__ void AddValues(int block) {
    const int tile = 2 * block + 1;
    Await(tile);
    const uint32_t values = shared_.Tile(tile);
    HoldRegisters(values_);
    HoldRegisters(weights_);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const uint32_t a[4] = {weights_[4 * step], weights_[4 * step + 1], weights_[4 * step + 2],
                             weights_[4 * step + 3]};
      const uint64_t b = ColumnsOperand(values + step * 16 * 128, kKeys * 128);
      if constexpr (kDim == 128) {
        MultiplyAdd64x128x16(values_, a, b);
      } else {
        MultiplyAdd64x64x16(values_, a, b);
      }
    }
    WgmmaCommit();
  }

  __device__ void Mask(int block) {
    const int tile = 2 * block + 1, first_key = task_.begin + block * kKeys;
    Await(tile);  // what is lost is known then
    const bool* const lost = shared_.Lost(block);
    int first[2], last[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool valid = query_[half] < task_.Queries();
      last[half] = valid ? task_.PositionOf(query_[half]) : -1;
      first[half] = FirstKey(p_, last[half]);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int column = i / 4 * 8 + lane_ % 4 * 2 + i % 2, half = i / 2 % 2;
      const int key = first_key + column;
      const bool read = key >= first[half] && key <= last[half];
      scores_[i] = !read ? -INFINITY : lost[column] ? NAN : scores_[i];
    }
  }

  // One step of the online softmax: scores become weights.
  __device__ void Weigh() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float greatest = greatest_[half];
#pragma unroll
      for (int i = 2 * half; i < kKeys / 2; i += 4) {
        greatest = fmaxf(greatest, fmaxf(scores_[i], scores_[i + 1]));
      }
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
      // While a row has read nothing, its greatest is -infinity, which has no difference to itself.
      const float base = greatest == -INFINITY ? 0.0f : greatest;
      shrink_[half] = FastExp2(greatest_[half] - base);
      greatest_[half] = greatest;
      float sum = 0.0f;
#pragma unroll
      for (int i = 2 * half; i < kKeys / 2; i += 4) {
        scores_[i] = FastExp2(scores_[i] - base);
        scores_[i + 1] = FastExp2(scores_[i + 1] - base);
        sum += scores_[i] + scores_[i + 1];
      }
      sum_[half] = fmaf(sum_[half], shrink_[half], sum);
    }
  }

  __device__ void Pack() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      weights_[i] = PackBf16(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

  __device__ void WriteOut() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (query_[half] >= task_.Queries()) continue;
      auto* const out =
          static_cast<__nv_bfloat16*>(p_.out) + task_.HeadAt(query_[half], p_.heads) * kDim;
      const float scale = 1.0f / sum;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const float* const pair = values_ + 4 * n + 2 * half;
        *reinterpret_cast<uint32_t*>(out + n * 8 + lane_ % 4 * 2) =
            PackBf16(pair[0] * scale, pair[1] * scale);
      }
    }
  }

  const AttentionKernelArgs& p_;
  const AttentionTask& task_;
  const Shared<kDim>& shared_;
  const int lane_, first_query_;
  int query_[2];
  float scores_[kKeys / 2];      // [64, kKeys] of the warpgroup
  uint32_t weights_[kKeys / 4];  // the same as pairs of bfloat16
  float values_[kDim / 2];       // [64, kDim]
  float greatest_[2] = {-INFINITY, -INFINITY}, sum_[2] = {}, shrink_[2] = {};
};

#endif

// Grid [tiles, head blocks]. Later tiles read more keys, so they come first.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    WgmmaRowsKernel(const __grid_constant__ AttentionKernelArgs p) {
#ifdef EDDY_WGMMA
  extern __shared__ __align__(1024) unsigned char memory[];
  const AttentionTask task = TileTask(p, gridDim.x - 1 - blockIdx.x, blockIdx.y);
  if (task.rows == 0) return;
  if (p.slots[task.sequence] == kNoSlot) return WriteZeros<__nv_bfloat16>(p, task);
  const Shared<kDim> shared(memory);
  if (threadIdx.x == 0) {
    for (int tile = 0; tile < 2 * kStages; ++tile) {
      InitBarrier(shared.Full(tile), kGroup);
      InitBarrier(shared.Empty(tile), 2 * kGroup / 32);  // a lane of each working warp
    }
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    LimitRegisters<kCopierRegisters>();
    Copier<kDim>(p, task, shared).Run();
  } else {
    ExtendRegisters<kWorkerRegisters>();
    Worker<kDim>(p, task, shared).Run();
  }
#endif
}

template <int kDim>
void Launch(const AttentionKernelArgs& args, int tiles, Stream stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      WgmmaRowsKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout<kDim>::kBytes);
  static_cast<void>(allowed);  // if not, the launch fails too
  WgmmaRowsKernel<kDim><<<dim3(tiles, args.head_blocks), kThreads, Layout<kDim>::kBytes,
                          static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace

void LaunchWgmmaRows(const AttentionKernelArgs& args, int tiles, Stream stream) {
  EDDY_CHECK(args.head_dim == 64 || args.head_dim == 128);
  if (args.head_dim == 64) return Launch<64>(args, tiles, stream);
  Launch<128>(args, tiles, stream);
}

}  // namespace eddy
