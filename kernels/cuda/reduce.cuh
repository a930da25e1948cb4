// Device code: sums over threads in an order that depends on their number alone.
#pragma once

namespace eddy {

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Least {
  // A NaN stays.
  __device__ float operator()(float a, float b) const { return b < a || b != b ? b : a; }
};

// Over each kGroup neighbouring lanes of a warp, a power of two; all lanes get the result. All 32
// lanes must call it.
template <int kGroup, typename Op = Add>
__device__ inline float ReduceGroup(float x, Op op = {}) {
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) {
    x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

// The same for kCount values at once, a power of two, with fewer exchanges and to the same bits:
// the sums are spread over the lanes. Afterwards x[i] is that of value `first` + i, for the
// returned `first` and i below kCount / kGroup, or for i = 0 alone where kGroup is greater than
// that; then kGroup / kCount neighbouring lanes have the same.
template <int kGroup, int kCount>
__device__ inline int ReduceMany(float (&x)[kCount], int thread) {
  int first = 0;
  int kept = kCount;
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) {
    if (kept == 1) {
      x[0] += __shfl_xor_sync(0xffffffffu, x[0], offset);
      continue;
    }
    kept /= 2;
    const bool upper = (thread & offset) != 0;
    if (upper) first += kept;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= kept) break;
      const float away = upper ? x[i] : x[i + kept];
      const float own = upper ? x[i + kept] : x[i];
      x[i] = own + __shfl_xor_sync(0xffffffffu, away, offset);
    }
  }
  return first;
}
template <int kGroup, int kCount>
__device__ inline int ReduceMany(float (&x)[kCount]) {
  return ReduceMany<kGroup>(x, static_cast<int>(threadIdx.x));
}

// Over all threads of a block of kThreads, a multiple of 32; all threads get the result. `shared`
// has room for kThreads / 32 floats; it can be used again after the next __syncthreads().
template <int kThreads, typename Op = Add>
__device__ inline float ReduceBlock(float x, float* shared, Op op = {}) {
  x = ReduceGroup<32>(x, op);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) x = op(x, shared[i]);
  return x;
}

inline constexpr unsigned kWholeWarp = 0xffffffffu;

// The sum over the 32 lanes, in all of them.
__device__ inline float WarpSum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, distance);
  }
  return x;
}

// Sums each of kCount numbers, a power of two up to 32, over the lanes; lane l is left with number
// l / (32 / kCount). Overwrites x.
template <int kCount, int kSize>
__device__ inline float WarpSumEach(float (&x)[kSize], int distance = 16) {
  if constexpr (kCount > 1) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (static_cast<int>(threadIdx.x) & distance) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float keep = upper ? x[i + kHalf] : x[i];
      const float give = upper ? x[i] : x[i + kHalf];
      x[i] = keep + __shfl_xor_sync(kWholeWarp, give, distance);
    }
    return WarpSumEach<kHalf>(x, distance / 2);
  } else {
    float sum = x[0];
    for (; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    return sum;
  }
}

}  // namespace eddy
