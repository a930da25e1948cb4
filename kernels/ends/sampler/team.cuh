// The blocks that share one row, and sums over all of their threads. Compiled for cards without
// clusters, a team is one block.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

namespace eddy::sampler {

inline constexpr int kThreads = 512, kWarps = kThreads / 32, kMostBlocks = 8;

// Room for a value of each warp, and for two values of the block: whoever is late still reads the
// one before when the next is written.
struct TeamRoom {
  alignas(16) unsigned char warps[kWarps][32];
  alignas(16) unsigned char blocks[2][32];
};

class Team {
 public:
  __device__ Team(int blocks, TeamRoom* room) : blocks_(blocks), room_(room) {
    rank_ = blocks == 1 ? 0 : static_cast<int>(blockIdx.x) % blocks;
  }
  __device__ int blocks() const { return blocks_; }
  __device__ int rank() const { return rank_; }

  // All that any thread of the team wrote before is seen by all after.
  __device__ void Sync() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // Where block `rank` has what this block has at `here`, in shared memory.
  template <typename T>
  __device__ T* At(T* here, int rank) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks_ > 1) return cooperative_groups::this_cluster().map_shared_rank(here, rank);
#endif
    return here;
  }

  // a.Add(b) of the values of all threads, in an order that depends on the number of blocks alone.
  // Every thread gets it. Also a Sync.
  template <typename T>
  __device__ __forceinline__ T Total(T value) {
    Post(value);
    Sync();
    return Posted<T>();
  }
  // The two halves of it, for what has a Sync to share: Post, Sync, Posted. Nothing else may be
  // posted in between.
  template <typename T>
  __device__ __forceinline__ void Post(T value) {
    static_assert(sizeof(T) <= 32 && sizeof(T) % 4 == 0);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value.Add(Shuffle(value, step));
    if (lane == 0) *reinterpret_cast<T*>(room_->warps[warp]) = value;
    __syncthreads();
    turn_ ^= 1;
    if (warp != 0) return;
    value = *reinterpret_cast<const T*>(room_->warps[lane % kWarps]);
    // The upper half of the lanes repeats the lower: a butterfly over sixteen.
#pragma unroll
    for (int step = kWarps / 2; step > 0; step /= 2) value.Add(Shuffle(value, step));
    if (lane == 0) *reinterpret_cast<T*>(room_->blocks[turn_]) = value;
  }
  template <typename T>
  __device__ __forceinline__ T Posted() const {
    T* const here = reinterpret_cast<T*>(room_->blocks[turn_]);
    T value = *At(here, 0);
    for (int rank = 1; rank < blocks_; ++rank) value.Add(*At(here, rank));
    return value;
  }

 private:
  template <typename T>
  __device__ __forceinline__ static T Shuffle(const T& value, int step) {
    T other;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
      reinterpret_cast<uint32_t*>(&other)[i] =
          __shfl_xor_sync(~0u, reinterpret_cast<const uint32_t*>(&value)[i], step);
    }
    return other;
  }
  const int blocks_;
  int rank_ = 0;
  int turn_ = 0;
  TeamRoom* const room_;
};

template <int N>
struct Sums {
  double of[N] = {};
  __device__ __forceinline__ void Add(const Sums& other) {
#pragma unroll
    for (int i = 0; i < N; ++i) of[i] += other.of[i];
  }
};

}  // namespace eddy::sampler
