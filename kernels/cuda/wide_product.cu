// The fixed order for a few dozen rows: y^T = w x^T with 64 rows of w and 32 of x a block, by
// wgmma, which sums blocks of 16 elements in turn as mma.sync does. As in fixed_product.cu, what
// fits of w is on its way before the kernel ahead has finished.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/compiled_for.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/fixed_product.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace eddy {
namespace {

constexpr int kThreads = 128;  // four warps, each with 16 rows of w
constexpr int kOuts = 64;      // rows of w of a block; with a gate, 32 of the gate and 32 of w
constexpr int kRows = 32;      // of x
constexpr int kStage = 64;     // elements of each row in a stage
constexpr int kRowBytes = kStage * 2;
constexpr int kWBytes = kOuts * kRowBytes, kStageBytes = kWBytes + kRows * kRowBytes;
constexpr int kRing = 9;  // stages, so that two blocks share a multiprocessor

struct WideArgs {
  FixedProduct product;
  int32_t blocks = 0;
};

#ifdef EDDY_WGMMA
constexpr int kPieces = kRowBytes / 16, kRowsAtOnce = kThreads / kPieces;

// What a thread copies of each stage: its 16 bytes of every 16th row of w and of x.
class Copier {
 public:
  __device__ Copier(const FixedProduct& p, const FixedPart& part, int first_out, int first_row)
      : in_(p.in) {
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    const int first = static_cast<int>(threadIdx.x) / kPieces;
    k_ = piece * 8;
    to_ = PanelByte(kOuts, first, piece);
#pragma unroll
    for (int i = 0; i < kOuts / kRowsAtOnce; ++i) {
      // Of 16 rows the first eight are those of the gate, if there is one.
      const bool gated = part.gate != nullptr, of_gate = gated && first < 8;
      const int out = first_out + (gated ? i * 8 + first % 8 : i * 16 + first);
      w_valid_[i] = out < part.out;
      w_[i] = static_cast<const __nv_bfloat16*>(of_gate ? part.gate : part.w) +
              (w_valid_[i] ? static_cast<int64_t>(out) * p.in + k_ : 0);
    }
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const int row = first_row + i * kRowsAtOnce + first;
      x_valid_[i] = row < p.rows;
      x_[i] = static_cast<const __nv_bfloat16*>(p.x) + (x_valid_[i] ? row * p.x_stride + k_ : 0);
    }
  }
  __device__ void CopyW(int stage, uint32_t to) const {
    const int k = stage * kStage;
#pragma unroll
    for (int i = 0; i < kOuts / kRowsAtOnce; ++i) {
      CopyAsync16(to + to_ + i * kRowsAtOnce * kRowBytes, w_[i] + k, w_valid_[i] && k + k_ < in_);
    }
  }
  __device__ void CopyX(int stage, uint32_t to) const {
    const int k = stage * kStage;
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      CopyAsync16(to + kWBytes + to_ + i * kRowsAtOnce * kRowBytes, x_[i] + k,
                  x_valid_[i] && k + k_ < in_);
    }
  }

 private:
  static_assert(kRowsAtOnce == 16);
  int in_, k_;
  uint32_t to_;
  const __nv_bfloat16 *w_[kOuts / kRowsAtOnce], *x_[kRows / kRowsAtOnce];
  bool w_valid_[kOuts / kRowsAtOnce], x_valid_[kRows / kRowsAtOnce];
};

#endif

// grid: tiles of all parts x groups of rows.
__global__ void __launch_bounds__(kThreads, 2) WideKernel(const __grid_constant__ WideArgs args) {
#ifdef EDDY_WGMMA
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[kRing];
  const FixedProduct& p = args.product;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int stages = (p.in + kStage - 1) / kStage, ahead = min(stages, kRing);
  const uint32_t ring = SharedAddress(shared);
  int index = 0;
  while (index + 1 < p.parts && static_cast<int>(blockIdx.x) >= p.part[index + 1].first_block) {
    ++index;
  }
  const FixedPart& part = p.part[index];
  const int outs_of_warp = part.gate == nullptr ? 16 : 8;
  const int first_out = (static_cast<int>(blockIdx.x) - part.first_block) * 4 * outs_of_warp;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const Copier copier(p, part, first_out, first_row);
  if (threadIdx.x == 0) {
    // Each thread arrives twice: when its part of w is there, and of x.
    for (int i = 0; i < kRing; ++i) InitBarrier(SharedAddress(full + i), 2 * kThreads);
  }
  __syncthreads();

  // What does not depend on the kernel ahead.
  for (int stage = 0; stage < ahead; ++stage) {
    copier.CopyW(stage, ring + stage * kStageBytes);
    ArriveWithCopies(SharedAddress(full + stage));
  }
  AllowNext();
  WaitForPrevious();
  for (int stage = 0; stage < ahead; ++stage) {
    copier.CopyX(stage, ring + stage * kStageBytes);
    ArriveWithCopies(SharedAddress(full + stage));
  }
  constexpr int kTiles = kRows / 8;
  const auto elements = [&](auto as, int tile) {
    return Elements<decltype(as)>(part, p.rows, first_row + tile * 8,
                                  first_out + warp * outs_of_warp);
  };
  float old[kTiles][4] = {}, sums[kTiles][4] = {};
  if (part.accumulate) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      elements(StoreAs<Store::kAccumulate>(), tile).Load(old[tile]);
    }
  }

  for (int stage = 0, slot = 0, round = 0; stage < stages; ++stage) {
    AwaitPhase(SharedAddress(full + slot), round & 1);
    WgmmaPublish();
    WgmmaFence();
    const uint32_t w = ring + slot * kStageBytes;
#pragma unroll
    for (int k = 0; k < kRowBytes; k += 32) {
      MultiplyAdd64x32x16(sums, RowsOperand(w + k), RowsOperand(w + kWBytes + k));
    }
    WgmmaCommit();
    const int next = stage - 1 + kRing;
    if (stage > 0 && next < stages) {
      WgmmaWait<1>();
      __syncthreads();
      const int free = slot == 0 ? kRing - 1 : slot - 1;
      copier.CopyW(next, ring + free * kStageBytes);
      ArriveWithCopies(SharedAddress(full + free));
      copier.CopyX(next, ring + free * kStageBytes);
      ArriveWithCopies(SharedAddress(full + free));
    }
    if (++slot == kRing) slot = 0, ++round;
  }
  WgmmaWait<0>();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) HoldRegisters(sums[tile]);
  ByStore(part, [&](auto as) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) elements(as, tile).Store(sums[tile], old[tile]);
  });
#endif
}

}  // namespace

bool HasWide() { return KernelsCompiledFor().warpgroups; }

void RunWide(Stream stream, const FixedProduct& product) {
  WideArgs args = {.product = product};
  for (int i = 0; i < product.parts; ++i) {
    const int outs = product.part[i].gate == nullptr ? kOuts : kOuts / 2;
    args.product.part[i].first_block = args.blocks;
    args.blocks += (product.part[i].out + outs - 1) / outs;
  }
  LaunchDependent(static_cast<cudaStream_t>(stream),
                  {.grid = dim3(static_cast<unsigned>(args.blocks),
                                static_cast<unsigned>((product.rows + kRows - 1) / kRows), 1),
                   .threads = kThreads,
                   .shared_bytes = kRing * kStageBytes},
                  WideKernel, args);
}

void PrepareWide() {
  if (!HasWide()) return;
  static_cast<void>(cudaFuncSetAttribute(WideKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         kRing * kStageBytes));
}

}  // namespace eddy
