// A row of logits in the hands of its team, and which of its tokens stay.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/ends/sampler/sampler_stage.h"
#include "kernels/ends/sampler/team.cuh"

namespace eddy::sampler {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Tokens that a warp looks at in one go: four of each lane, side by side.
inline constexpr int kGroup = 128;

inline constexpr int kBins = 256;
inline constexpr int kFew = kThreads;  // so few are sorted, one a thread

struct Entry {
  uint64_t order = 0;
  float amount = 0;
};

// Shared memory of a block; its part of the row may lie behind it.
struct Room {
  TeamRoom team;
  StagedRow row;
  uint32_t bins[2][kBins];    // of the block
  double bin_amounts[kBins];  // of the team
  int bin_counts[kBins];
  Entry list[kFew];    // of the block
  Entry sorted[kFew];  // of the team
  double warp_sums[kWarps];
  double prefix_sum;
  int listed;
  int winner;
  int highest;
  int chosen;
};

extern __shared__ __align__(16) unsigned char shared_memory[];
__device__ __forceinline__ Room* RoomOfBlock() { return reinterpret_cast<Room*>(shared_memory); }

// A block's part of the working copy of a row: tokens [first, first + count), and behind them
// -infinity up to kWarps * chunk.
template <bool kResident>
struct Share {
  float* elsewhere = nullptr;  // where the part is, if it is not in shared memory
  int first = 0, count = 0;
  int chunk = 0;  // tokens of one warp, side by side; a multiple of kGroup

  __device__ __forceinline__ float* values() const {
    if constexpr (kResident) return reinterpret_cast<float*>(shared_memory + sizeof(Room));
    return elsewhere;
  }
  // Of this thread: the place of its first values, and where those of its warp end.
  __device__ __forceinline__ int begin() const {
    return static_cast<int>(threadIdx.x) / 32 * chunk + static_cast<int>(threadIdx.x) % 32 * 4;
  }
  __device__ __forceinline__ int end() const {
    return (static_cast<int>(threadIdx.x) / 32 + 1) * chunk;
  }
  __device__ __forceinline__ float4 At(int place) const {
    return *reinterpret_cast<const float4*>(values() + place);
  }
};

// f(value, token) for all places of the block, each thread's in order of token.
template <bool kResident, typename F>
__device__ __forceinline__ void EachValue(const Share<kResident>& share, F f) {
#pragma unroll 2
  for (int place = share.begin(); place < share.end(); place += kGroup) {
    const float4 values = share.At(place);
    const int token = share.first + place;
    f(values.x, token);
    f(values.y, token + 1);
    f(values.z, token + 2);
    f(values.w, token + 3);
  }
}

// The order of top_k and top_p, likelier first and then the lowest id, as an integer: the smaller
// comes first. No two tokens have the same, and none has 0.
__device__ __forceinline__ uint64_t OrderOf(float logit, int token) {
  const uint32_t bits = __float_as_uint(logit);
  const uint32_t ascending = bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(token);
}
__device__ __forceinline__ float LogitOf(uint64_t order) {
  const uint32_t ascending = ~static_cast<uint32_t>(order >> 32);
  return __uint_as_float(ascending ^ (ascending >> 31 != 0 ? 0x80000000u : 0xffffffffu));
}
__device__ __forceinline__ int TokenOf(uint64_t order) {
  return static_cast<int>(static_cast<uint32_t>(order));
}

// The tokens that top_k, top_p and min_p leave so far. What is barred has -infinity and never
// stays.
struct Choices {
  float scale = 1;  // 1 / temperature
  float max = 0;    // of the scaled logits
  // The last that top_k and top_p leave.
  float last_logit = -kInfinity;
  int last_token = -1;
  float min_gap = -kInfinity;

  // Zeros have one sign, so that equals are equal in every order.
  __device__ __forceinline__ float Scaled(float value) const {
    return __fadd_rn(__fmul_rn(value, scale), 0.0f);
  }
  __device__ __forceinline__ float Weight(float logit) const { return __expf(logit - max); }
  __device__ __forceinline__ bool Stays(float logit, int token) const {
    const bool early = logit > last_logit || (logit == last_logit && token <= last_token);
    return early && logit - max >= min_gap;
  }
};

// The same where neither top_k nor top_p is asked for. What is barred may stay: it weighs nothing.
struct GapChoices {
  float scale = 1, max = 0, min_gap = -kInfinity;
  __device__ __forceinline__ float Scaled(float value) const { return __fmul_rn(value, scale); }
  __device__ __forceinline__ float Weight(float logit) const { return __expf(logit - max); }
  __device__ __forceinline__ bool Stays(float logit, int) const { return logit - max >= min_gap; }
};

// Those of Choices that typical_p leaves too. Its order is that of the distance between surprise
// and entropy, |-ln p - entropy| = |mean gap - gap|, and then the lowest id; from 1, so that 0 is
// nobody's place.
struct TypicalChoices {
  Choices choices;
  double mean_gap = 0;
  uint64_t last = 0;

  __device__ __forceinline__ uint64_t OrderOf(float logit, int token) const {
    const double gap = static_cast<double>(logit - choices.max);
    const auto far = static_cast<float>(fabs(mean_gap - gap));
    return (static_cast<uint64_t>(__float_as_uint(far)) << 32 | static_cast<uint32_t>(token)) + 1;
  }
  __device__ __forceinline__ float Scaled(float value) const { return choices.Scaled(value); }
  __device__ __forceinline__ float Weight(float logit) const { return choices.Weight(logit); }
  __device__ __forceinline__ bool Stays(float logit, int token) const {
    return choices.Stays(logit, token) && OrderOf(logit, token) <= last;
  }
};

// The first of a warp's parts at which the running amount is at least `wanted`, or above it.
struct Reached {
  int index = 0;
  double before = 0;  // the running amount there
};

// Sum of the values of the lanes up to this one.
__device__ __forceinline__ double Through(double value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double lower = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += lower;
  }
  return value;
}

// Lane i has parts i * N .. i * N + N - 1. If none gets there (rounding), the last that is not 0.
template <int N>
__device__ __forceinline__ Reached Reach(const double (&parts)[N], double before, double wanted,
                                         bool above) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double own = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) own += parts[j];
  double running = before + Through(own) - own;
  Reached first = {.index = -1}, last = {.index = -1};
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const double after = running + parts[j];
    if (parts[j] > 0) {
      last = {.index = lane * N + j, .before = running};
      if (first.index < 0 && (above ? after > wanted : after >= wanted)) first = last;
    }
    running = after;
  }
  const unsigned found = __ballot_sync(~0u, first.index >= 0);
  const unsigned some = __ballot_sync(~0u, last.index >= 0);
  if (found == 0) first = last;
  const int owner =
      found != 0 ? __ffs(static_cast<int>(found)) - 1 : 31 - __clz(static_cast<int>(some | 1u));
  return {.index = __shfl_sync(~0u, first.index, owner),
          .before = __shfl_sync(~0u, first.before, owner)};
}

}  // namespace eddy::sampler
