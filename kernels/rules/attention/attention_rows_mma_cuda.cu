// Many rows of a sequence at a time, on tensor cores: in the manner of Dao 2023, arXiv 2307.08691,
// with the heads that share keys side by side in a tile.
#include "base/check.h"
#include "kernels/rules/attention/attention_kernels.h"
#include "kernels/rules/attention/attention_mma.cuh"

namespace eddy {
namespace {

constexpr int kWarps = kAttentionThreads / 32;
constexpr int kTiles = kMmaQueries / kWarps / 16;  // m tiles of a warp
constexpr int kKeys = 16 * kWarps;                 // of a block; each warp copies 16 of them

template <int kDim>
struct Layout {  // of shared memory
  static constexpr int kQueryBytes = kMmaQueries * kDim * 2;
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  static constexpr int kStageBytes = 2 * kKeyBytes;
  static constexpr int kLostBytes = kKeys;
  static constexpr int kBytes = kQueryBytes + 2 * kStageBytes + kLostBytes;
};

// Query i of the task is head i % heads of row i / heads.
template <int kDim>
__device__ void CopyQueries(const AttentionKernelArgs& p, const AttentionTask& task, uint32_t to) {
  using Tile = MmaTile<kDim>;
  for (int i = threadIdx.x; i < kMmaQueries * Tile::kPieces; i += kAttentionThreads) {
    const int query = i / Tile::kPieces, piece = i % Tile::kPieces;
    const bool valid = query < task.Queries();
    const auto* const from =
        static_cast<const __nv_bfloat16*>(p.q) + (valid ? task.HeadAt(query, p.heads) * kDim : 0);
    CopyAsync16(Tile::At(to, query, piece), from + piece * 8, valid);
  }
}

// Zeros the values that are not finite and notes their keys in `lost`: a row that reads one of them
// is lost, but one that does not must not meet it, not even with a weight of zero.
template <int kDim>
__device__ void TakeOutLostValues(uint32_t values, unsigned char* base, bool* lost) {
  using Tile = MmaTile<kDim>;
  constexpr int kMine = Tile::kPieces * kKeys / kAttentionThreads;
  const int key = threadIdx.x / 2, first = threadIdx.x % 2 * kMine;
  const uint32_t start = SharedAddress(base);
  bool found = false;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    found |=
        AnyLost(*reinterpret_cast<const uint4*>(base + (Tile::At(values, key, first + i) - start)));
  }
  found |= __shfl_xor_sync(~0u, found, 1);
  lost[key] = found;
  if (!found) return;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    *reinterpret_cast<uint4*>(base + (Tile::At(values, key, first + i) - start)) = uint4{};
  }
}

// The last key that each of the lane's queries reads; -1: there is no such query.
struct LastKeys {
  int of[kTiles][2];
};

__device__ LastKeys LastKeysOf(const AttentionTask& task) {
  LastKeys last;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = (warp * kTiles + t) * 16 + half * 8 + lane / 4;
      last.of[t][half] = query < task.Queries() ? task.PositionOf(query) : -1;
    }
  }
  return last;
}

__device__ void Mask(const AttentionKernelArgs& p, const LastKeys& last, int first_key,
                     const bool* lost, float (&scores)[kTiles][kKeys / 8][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int column = n * 8 + lane % 4 * 2 + side, key = first_key + column;
      const bool gone = lost[column];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& score = scores[t][n][2 * half + side];
          const bool read = key <= last.of[t][half] && key >= FirstKey(p, last.of[t][half]);
          score = !read ? -INFINITY : gone ? NAN : score;
        }
      }
    }
  }
}

template <int kDim>
__device__ void WriteOut(const AttentionKernelArgs& p, const AttentionTask& task,
                         const MmaSums<kDim, kTiles>& sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = (warp * kTiles + t) * 16 + half * 8 + lane / 4;
      if (query >= task.Queries()) continue;
      auto* const out = static_cast<__nv_bfloat16*>(p.out) + task.HeadAt(query, p.heads) * kDim;
      const float scale = 1.0f / sums.sum[t][half];
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const float* const pair = sums.values[t][n] + 2 * half;
        *reinterpret_cast<uint32_t*>(out + n * 8 + lane % 4 * 2) =
            PackBf16(pair[0] * scale, pair[1] * scale);
      }
    }
  }
}

// Grid [tiles, head blocks]. Later tiles read more keys, so they come first.
template <int kDim>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    MmaRowsKernel(const __grid_constant__ AttentionKernelArgs p) {
  using Shared = Layout<kDim>;
  using Tile = MmaTile<kDim>;
  extern __shared__ __align__(128) unsigned char shared[];
  const AttentionTask task = TileTask(p, gridDim.x - 1 - blockIdx.x, blockIdx.y);
  if (task.rows == 0) return;
  if (p.slots[task.sequence] == kNoSlot) return WriteZeros<__nv_bfloat16>(p, task);
  const int32_t* const line = p.pages + static_cast<int64_t>(task.sequence) * p.max_pages;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t queries = SharedAddress(shared), stages = queries + Shared::kQueryBytes;
  bool* const lost =
      reinterpret_cast<bool*>(shared + Shared::kQueryBytes + 2 * Shared::kStageBytes);

  const int blocks = task.Blocks(kKeys);
  // Where the lane's key of a block lies; looked up one block ahead of its copy.
  const auto locate = [&](int block) {
    const int key = task.begin + block * kKeys + warp * 16 + lane;
    return lane < 16 && key < task.end ? Locate(p, line, key) : PageRow{};
  };
  const auto copy = [&](int block, const PageRow& where) {
    const uint32_t keys = stages + block % 2 * Shared::kStageBytes + warp * 16 * Tile::kRowBytes;
    CopyKeys<kDim, 16>(p, task.kv_head, where, keys, keys + Shared::kKeyBytes);
    CommitCopies();
  };
  CopyQueries<kDim>(p, task, queries);
  copy(0, locate(0));
  PageRow next = locate(1);

  const LastKeys last = LastKeysOf(task);
  MmaSums<kDim, kTiles> sums;
  sums.Clear();
  const auto query = [&](int t, int step, uint32_t(&a)[4]) {
    LoadTiles(a, Tile::At(queries, (warp * kTiles + t) * 16 + lane % 16, step * 2 + lane / 16));
  };
  for (int block = 0; block < blocks; ++block) {
    WaitCopies<0>();
    __syncthreads();
    if (block + 1 < blocks) {
      copy(block + 1, next);
      next = locate(block + 2);
    }
    const uint32_t keys = stages + block % 2 * Shared::kStageBytes;
    const uint32_t values = keys + Shared::kKeyBytes;
    const int first_key = task.begin + block * kKeys;
    const bool masked = task.Masked(block, kKeys);
    if (masked) {
      TakeOutLostValues<kDim>(values, shared, lost);
      __syncthreads();
    }
    float scores[kTiles][kKeys / 8][4];
    Score<kDim>(query, keys, scores);
    if (masked) Mask(p, last, first_key, lost, scores);
    Weigh(scores, &sums);
    AddValues(scores, values, &sums);
  }
  sums.Finish();
  WriteOut(p, task, sums);
}

template <int kDim>
void Launch(const AttentionKernelArgs& args, int tiles, Stream stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      MmaRowsKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout<kDim>::kBytes);
  static_cast<void>(allowed);  // if not, the launch fails too
  const dim3 grid(tiles, args.head_blocks);
  MmaRowsKernel<kDim>
      <<<grid, kAttentionThreads, Layout<kDim>::kBytes, static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace

bool MmaAttentionTakes(DType type, int64_t head_dim) {
  return type == DType::kBF16 && (head_dim == 64 || head_dim == 128);
}

void LaunchMmaRows(const AttentionKernelArgs& args, int tiles, Stream stream) {
  EDDY_CHECK(args.head_dim == 64 || args.head_dim == 128);
  if (args.head_dim == 64) return Launch<64>(args, tiles, stream);
  Launch<128>(args, tiles, stream);
}

}  // namespace eddy
