// Fixed-order products, made for few rows and then bound by reading w: y^T = w x^T with 16 rows of
// w and 8, 16 or 32 rows of x a block, one warp for each 8 of x. All threads fill a ring of stages
// in shared memory; as a rule it holds the whole length of the rows of w, and is filled before the
// kernel ahead has finished, so that the latency of memory hides behind that one. x follows when it
// is there, normalised on the way if asked.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/fixed_product.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/row_norm.cuh"

namespace eddy {
namespace {

constexpr int kThreads = 128;
constexpr int kOuts = 16;       // rows of w of a block; with a gate, 8 of the gate and 8 of w
constexpr int kRowsOfWarp = 8;  // rows of x
constexpr int kStage = 256;     // elements of each row in a stage
constexpr int kStageRow = kStage * 2;
constexpr int kWBytes = kOuts * kStageRow;
constexpr int kMostStages = 12;
// Shared memory that a block may take: it is to fit beside blocks of the kernel ahead.
// And cards of capability 8.6 and 8.9 have 99 KiB.
constexpr int kMostBytes = 96 * 1024;

struct FixedArgs {
  FixedProduct product;
  int32_t row_warps;  // 1, 2 or 4
  int32_t ring;       // stages
};

// Where a block works.
struct Place {
  FixedPart part;
  int first_out;  // of y
  int first_row;
};

__device__ Place FindPlace(const FixedArgs& args) {
  const FixedProduct& p = args.product;
  int part = 0;
  while (part + 1 < p.parts && static_cast<int>(blockIdx.x) >= p.part[part + 1].first_block) {
    ++part;
  }
  const int tile = static_cast<int>(blockIdx.x) - p.part[part].first_block;
  return {.part = p.part[part],
          .first_out = tile * (p.part[part].gate == nullptr ? kOuts : kOuts / 2),
          .first_row = static_cast<int>(blockIdx.y) * args.row_warps * kRowsOfWarp};
}

// Rows of a stage lie 512 bytes apart; the eight chunks of 16 bytes in each 128 are permuted by
// row, so that ldmatrix meets no bank twice.
__device__ int ChunkOffset(int row, int chunk) {
  return row * kStageRow + (chunk ^ (row % 8)) * 16;
}

// What a thread copies of each stage: its 16 bytes of every fourth row of w and of x. A warp copies
// the 512 bytes of a row at once.
class Copier {
 public:
  __device__ Copier(const FixedArgs& args, const Place& place)
      : in_(args.product.in), x_rows_(args.row_warps * kRowsOfWarp / 4) {
    const FixedProduct& p = args.product;
    const int chunk = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const FixedPart& part = place.part;
    k_ = chunk * 8;
#pragma unroll
    for (int i = 0; i < kOuts / 4; ++i) {
      const int row = i * 4 + warp;
      const bool gated = part.gate != nullptr;
      const void* const matrix = gated && row < kOuts / 2 ? part.gate : part.w;
      const int out = place.first_out + (gated ? row % (kOuts / 2) : row);
      w_valid_[i] = out < part.out;
      w_[i] = static_cast<const __nv_bfloat16*>(matrix) +
              (w_valid_[i] ? static_cast<int64_t>(out) * p.in + k_ : 0);
    }
    const int first = place.first_row + warp;
    rows_left_ = p.rows - first;
    x_stride_ = 4 * p.x_stride;
    x_ = static_cast<const __nv_bfloat16*>(p.x) + (rows_left_ > 0 ? first * p.x_stride + k_ : 0);
    to_[0] = ChunkOffset(warp, chunk);
    to_[1] = ChunkOffset(warp + 4, chunk);
  }
  __device__ void CopyW(int stage, uint32_t to) const {
    const int k = stage * kStage;
#pragma unroll
    for (int i = 0; i < kOuts / 4; ++i) {
      CopyAsync16(to + to_[i % 2] + i / 2 * 8 * kStageRow, w_[i] + k, w_valid_[i] && k + k_ < in_);
    }
  }
  // Zeros for rows that are not there.
  __device__ void CopyX(int stage, uint32_t to) const {
    const int k = stage * kStage;
    const __nv_bfloat16* x = x_ + k;
    for (int i = 0; i < x_rows_; i += 2, x += 2 * x_stride_, to += 8 * kStageRow) {
      CopyAsync16(to + to_[0], x, i * 4 < rows_left_ && k + k_ < in_);
      CopyAsync16(to + to_[1], x + x_stride_, (i + 1) * 4 < rows_left_ && k + k_ < in_);
    }
  }

 private:
  int in_, x_rows_, k_, rows_left_;
  const __nv_bfloat16* w_[kOuts / 4];
  bool w_valid_[kOuts / 4];
  const __nv_bfloat16* x_;
  int64_t x_stride_;
  int to_[2];  // rows eight further are permuted alike
};

// Normalises the block's rows of x into the ring, each by a warp; `w` is the norm's weight,
// `x_slots` the place of x in the first stage. Rows that are not there are left as they are.
template <int kGroups>
__device__ void NormaliseRows(const FixedProduct& p, int first_row, const float4 (&w)[kGroups],
                              unsigned char* x_slots, int stage_bytes) {
  // A warp has two rows; both are loaded before the first is used, if registers suffice.
  constexpr int kAtOnce = kGroups <= 8 ? 2 : 1;
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int rows = min(kRowsOfWarp, p.rows - first_row), end = (p.in + 63) / 64 * 64;
  for (int first = warp; first < rows; first += kAtOnce * kWarps) {
    float4 v[kAtOnce][kGroups];
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      const int r = first + a * kWarps;
      if (r >= rows) break;
      const float* const x = static_cast<const float*>(p.x) + (first_row + r) * p.x_stride;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        v[a][j] = LoadGroup(x, (j * 32 + lane) * kNormGroup, p.in, /*aligned=*/true);
      }
    }
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      const int r = first + a * kWarps;
      if (r >= rows) break;
      const float scale = RmsScale(v[a], p.in, p.norm_eps);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const int i = (j * 32 + lane) * kNormGroup;
        if (i >= end) break;
        const float4& u = v[a][j];
        const __nv_bfloat162 pair[2] = {
            __floats2bfloat162_rn(Normalised(u.x, scale, w[j].x), Normalised(u.y, scale, w[j].y)),
            __floats2bfloat162_rn(Normalised(u.z, scale, w[j].z), Normalised(u.w, scale, w[j].w))};
        unsigned char* const to =
            x_slots + i / kStage * stage_bytes + ChunkOffset(r, i % kStage / 8) + i % 8 * 2;
        *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pair);
      }
    }
  }
}

// What the matrix unit wants of 64 elements of a stage.
struct Fragments {
  uint32_t w[4][4];
  uint32_t x[2][4];
};

__device__ void LoadFragments(uint32_t w, uint32_t x, int k, Fragments& to) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    LoadTiles(to.x[i], x + ChunkOffset(lane % 8, k / 8 + i * 4 + lane / 8));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    LoadTiles(to.w[i], w + ChunkOffset(lane % 16, k / 8 + i * 2 + lane / 16));
  }
}

// Adds the products of a stage to a warp's sums. What comes next is loaded before it is wanted, so
// that only the matrix unit's own latency is between one sum and the next.
__device__ void MultiplyStage(uint32_t w, uint32_t x, int elements, float (&sums)[4]) {
  Fragments fragments[2];
  LoadFragments(w, x, 0, fragments[0]);
#pragma unroll
  for (int k = 0; k < kStage; k += 64) {
    if (k >= elements) break;
    const Fragments& now = fragments[k / 64 % 2];
    if (k + 64 < kStage) LoadFragments(w, x, k + 64, fragments[(k / 64 + 1) % 2]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Mma(sums, now.w[i], now.x[i / 2][i % 2 * 2], now.x[i / 2][i % 2 * 2 + 1]);
    }
  }
}

__device__ void InitStages(uint64_t* full, int ring) {
  if (threadIdx.x == 0) {
    // Each thread arrives twice: when its part of w is there, and of x.
    for (int i = 0; i < ring; ++i) InitBarrier(SharedAddress(full + i), 2 * kThreads);
  }
  __syncthreads();
}

// grid: tiles of all parts x groups of rows. If kNormGroups is not 0, x is normalised, `in` is at
// most kNormGroups * 128, and the ring holds all of it.
template <int kNormGroups>
__global__ void __launch_bounds__(kThreads) FixedKernel(const __grid_constant__ FixedArgs args) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[kMostStages];
  const FixedProduct& p = args.product;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int stages = (p.in + kStage - 1) / kStage, ahead = min(stages, args.ring);
  const int stage_bytes = kWBytes + args.row_warps * kRowsOfWarp * kStageRow;
  const uint32_t ring = SharedAddress(shared);
  const Place place = FindPlace(args);
  const Copier copier(args, place);
  InitStages(full, args.ring);

  // What does not depend on the kernel ahead.
  for (int stage = 0; stage < ahead; ++stage) {
    copier.CopyW(stage, ring + stage * stage_bytes);
    ArriveWithCopies(SharedAddress(full + stage));
  }
  [[maybe_unused]] float4 norm[kNormGroups == 0 ? 1 : kNormGroups];
#pragma unroll
  for (int j = 0; j < kNormGroups; ++j) {
    norm[j] = LoadGroup(p.norm, (j * 32 + lane) * kNormGroup, p.in, /*aligned=*/true);
  }
  AllowNext();
  WaitForPrevious();

  if constexpr (kNormGroups > 0) {
    NormaliseRows<kNormGroups>(p, place.first_row, norm, shared + kWBytes, stage_bytes);
    for (int stage = 0; stage < ahead; ++stage) Arrive(SharedAddress(full + stage));
  } else {
    for (int stage = 0; stage < ahead; ++stage) {
      copier.CopyX(stage, ring + stage * stage_bytes + kWBytes);
      ArriveWithCopies(SharedAddress(full + stage));
    }
  }
  const FixedPart& part = place.part;
  const bool works = warp < args.row_warps;
  const Elements<StoreAs<Store::kAccumulate>> elements(
      part, works ? p.rows : 0, place.first_row + warp * kRowsOfWarp, place.first_out);
  float old[4] = {0, 0, 0, 0};
  if (part.accumulate) elements.Load(old);

  float sums[4] = {0, 0, 0, 0};
  for (int stage = 0, slot = 0, round = 0; stage < stages; ++stage) {
    const uint32_t w = ring + slot * stage_bytes;
    if (works) {
      AwaitPhase(SharedAddress(full + slot), round & 1);
      MultiplyStage(w, w + kWBytes + warp * kRowsOfWarp * kStageRow, p.in - stage * kStage, sums);
    }
    if (stage + args.ring < stages) {
      __syncthreads();
      copier.CopyW(stage + args.ring, w);
      ArriveWithCopies(SharedAddress(full + slot));
      copier.CopyX(stage + args.ring, w + kWBytes);
      ArriveWithCopies(SharedAddress(full + slot));
    }
    if (++slot == args.ring) slot = 0, ++round;
  }
  if (!works) {
    // Nobody leaves while what it copies is on the way.
    const int last = stages - 1;
    AwaitPhase(SharedAddress(full + last % args.ring), last / args.ring & 1);
    return;
  }
  ByStore(part, [&](auto as) {
    using As = decltype(as);
    Elements<As>(part, p.rows, place.first_row + warp * kRowsOfWarp, place.first_out)
        .Store(sums, old);
  });
}

int StageBytes(int row_warps) { return kWBytes + row_warps * kRowsOfWarp * kStageRow; }

template <int kNormGroups>
void Launch(cudaStream_t stream, const FixedArgs& args, dim3 grid) {
  const LaunchShape shape = {
      .grid = grid,
      .threads = kThreads,
      .shared_bytes = static_cast<size_t>(args.ring * StageBytes(args.row_warps))};
  LaunchDependent(stream, shape, FixedKernel<kNormGroups>, args);
}

template <int kNormGroups>
void Prepare() {
  static_cast<void>(cudaFuncSetAttribute(FixedKernel<kNormGroups>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes));
}

}  // namespace

void RunFixed(Stream stream, const FixedProduct& product) {
  FixedArgs args = {.product = product,
                    .row_warps = product.rows <= 8    ? 1
                                 : product.rows <= 16 ? 2
                                                      : 4,
                    .ring = 0};
  int blocks = 0;
  for (int i = 0; i < product.parts; ++i) {
    const int outs = product.part[i].gate == nullptr ? kOuts : kOuts / 2;
    args.product.part[i].first_block = blocks;
    blocks += (product.part[i].out + outs - 1) / outs;
  }
  const int stages = (product.in + kStage - 1) / kStage, bytes = StageBytes(args.row_warps);
  args.ring = std::min({stages, kMostStages, kMostBytes / bytes});
  const int rows = args.row_warps * kRowsOfWarp;
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>((product.rows + rows - 1) / rows), 1);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (product.norm == nullptr) return Launch<0>(cuda_stream, args, grid);
  if (product.in <= 1024) return Launch<8>(cuda_stream, args, grid);
  Launch<16>(cuda_stream, args, grid);
}

void PrepareFixed() {
  Prepare<0>();
  Prepare<8>();
  Prepare<16>();
}

}  // namespace eddy
