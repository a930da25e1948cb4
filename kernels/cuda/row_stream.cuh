// Device code: rows of matrices that stream through shared memory, tile after tile, to threads that
// walk along them. So many bytes are under way at once that a walk of few threads is not held up by
// the latency of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/reduce.cuh"

namespace eddy {

// threadIdx.x, read once: the special register takes as long as shared memory, and the compiler
// would rather read it again than keep it.
__device__ inline int ThreadOfBlock() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// threadIdx.x / 32, of which the compiler then knows that it is the same in a whole warp.
__device__ inline int WarpOfBlock() {
  return __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x) / 32, 0);
}

// Whether rows can be copied 16 bytes at once.
inline bool TakesSixteen(const void* x, int64_t stride_bytes, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0 && stride_bytes % 16 == 0 && row_bytes % 16 == 0;
}

// Columns of a matrix, of which a tile of kRows rows has up to kWidth bytes each, a power of two.
// kThreads threads have one each, and call it together: those of a warp, or of a block.
template <int kThreads, int kRows, int kWidth, typename Element>
class RowStream {
 public:
  // `first`: in the first row; `stride`: bytes from one row to the next; `bytes`: of each row. What
  // a tile is wider stays as it is. `sixteen`: address, stride and bytes are multiples of 16.
  __device__ RowStream(const void* first, int64_t stride, int64_t bytes, bool sixteen)
      : stride_(stride), bytes_(static_cast<int>(bytes)), sixteen_(sixteen) {
    const int at = static_cast<int>(threadIdx.x % kThreads) * (sixteen ? kPiece : kEach);
    row_ = at / kWidth;
    column_ = at % kWidth;
    from_ = static_cast<const std::byte*>(first) + row_ * stride + column_;
  }

  // The next `rows` <= kRows rows to `to`: there when the thread's copies are.
  __device__ void Next(void* to, int rows) {
    auto* const shared = static_cast<std::byte*>(to) + row_ * kWidth + column_;
    if (sixteen_) {
      const auto copy = [&](int at, const std::byte* from) {
        CopyAsync<kPiece>(shared + at, from);
      };
      rows == kRows ? Copy<kPiece, true>(rows, copy) : Copy<kPiece, false>(rows, copy);
    } else {
      Copy<kEach, false>(rows, [&](int at, const std::byte* from) {
        if constexpr (kEach == 4) {
          CopyAsync<4>(shared + at, from);
        } else {
          *reinterpret_cast<Element*>(shared + at) = *reinterpret_cast<const Element*>(from);
        }
      });
    }
    from_ += kRows * stride_;
  }

 private:
  static constexpr int kEach = sizeof(Element), kPiece = kWidth % 16 == 0 ? 16 : 4;
  static_assert((kWidth & (kWidth - 1)) == 0);

  // The threads together copy several rows at once, or a part of one.
  template <int kBytes, bool kWhole, typename CopyOne>
  __device__ void Copy(int rows, const CopyOne& copy) const {
    constexpr int kAll = kThreads * kBytes;
    constexpr int kStep = kAll < kWidth ? 1 : kAll / kWidth;
#pragma unroll(kWhole ? 8 : 1)
    for (int column = 0; column < kWidth; column += kAll) {
      if (column_ + column >= bytes_) break;
      const std::byte* from = from_ + column;
#pragma unroll(kWhole ? 64 : 1)
      for (int row = 0; row < kRows; row += kStep, from += kStep * stride_) {
        // If the steps end with the tile, so do all threads.
        if ((kWhole && kRows % kStep == 0) || row_ + row < rows) copy(row * kWidth + column, from);
      }
    }
  }

  const std::byte* from_;  // of this thread's part of the next tile
  int64_t stride_;
  int bytes_;
  int row_, column_;  // in a tile; the column in bytes
  bool sixteen_;
};

// Hands kStages tiles round between a warp that fills them and kWalkers threads that read them:
// first all of these, then that warp. Takes barriers 1 to 2 kStages of the block.
template <int kStages, int kWalkers>
class TileRing {
 public:
  static constexpr int kThreads = kWalkers + 32;
  static_assert(kStages >= 3);

  __device__ explicit TileRing(int tiles) : tiles_(tiles) {}

  // The filling warp: fill(tile, place) for each tile of the walk, each time into a place that is
  // free. So many are under way that the one after next is there when the walkers come to it.
  template <typename Fill>
  __device__ void FillAll(const Fill& fill) {
    for (int i = 0; i < tiles_; ++i) {
      if (i >= kStages) BarrierSync(Empty(i), kThreads);
      fill(i, i % kStages);
      CommitCopies();
      WaitCopies<kStages - 2>();
      if (i >= kStages - 2) BarrierArrive(Full(i - (kStages - 2)), kThreads);
    }
    WaitCopies<0>();
    for (int i = max(0, tiles_ - (kStages - 2)); i < tiles_; ++i) {
      BarrierArrive(Full(i), kThreads);
    }
  }

  // The walkers: the place of the next tile; they are done with the one before it.
  __device__ int Next() {
    if (tile_ >= 0 && tile_ + kStages < tiles_) BarrierArrive(Empty(tile_), kThreads);
    ++tile_;
    BarrierSync(Full(tile_), kThreads);
    return tile_ % kStages;
  }

 private:
  __device__ static int Full(int tile) { return 1 + tile % kStages; }
  __device__ static int Empty(int tile) { return 1 + kStages + tile % kStages; }
  int tiles_, tile_ = -1;
};

// Where kGroup threads have a sum for each of kBatch rows of one column after another: writes them
// a batch late, so that they can be summed while the next ones are made. The first call is for the
// batch before row 0 and writes nothing.
template <int kGroup, int kBatch>
class GroupRows {
 public:
  // `thread`: ThreadOfBlock(); `column`: its address in row 0; no more than `rows` rows are
  // written.
  __device__ GroupRows(int thread, float* column, int64_t stride, int rows)
      : stride_(stride), thread_(thread) {
    constexpr int kSame = kGroup > kBatch ? kGroup / kBatch : 1;  // lanes with the same sum
    float zeros[kBatch] = {};
    row_ = ReduceMany<kGroup>(zeros, thread_) - kBatch;
    rows_ = thread_ % kSame == 0 ? rows : 0;
    to_ = column + row_ * stride;
  }

  // All threads of the warp call it. Overwrites x.
  __device__ void Write(float (&x)[kBatch]) {
    ReduceMany<kGroup>(x, thread_);
    constexpr int kSums = kBatch > kGroup ? kBatch / kGroup : 1;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (row_ + i >= 0 && row_ + i < rows_) to_[i * stride_] = x[i];
    }
    row_ += kBatch;
    to_ += kBatch * stride_;
  }

 private:
  float* to_;  // of its first row of the batch
  int64_t stride_;
  int row_, rows_, thread_;
};

}  // namespace eddy
