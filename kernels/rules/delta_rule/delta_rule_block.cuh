// One token of one value head, as the block that owns some of its columns computes it, S itself
// excepted. In order: the pairs are fetched; WalkRing; the token's vectors are there; Walk; each
// thread adds up its shares of S'(F k) and S'(F q), AddPairs among them; Correct; then Append or a
// fold of all pairs into S. A barrier stands between any two of them.
//
// T says how a block is cut: kThreads, kColumns of S, kKeyGroups (threads that share a column, each
// with rows kKeyGroups apart); kKeys is K, or 0 if only known at run time, and kMostKeys its bound;
// kExact, whether a thread's rows end with K. T::Sync() is the barrier of those threads.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rules/delta_rule/delta_rule_cuda.cuh"

namespace eddy::delta {

inline constexpr int kWarp = 32;
// Pairs of a walk: pending ones, and the token's own, which is number p.entries in shared memory
// and the last in registers and among the products.
inline constexpr int kPairs = kMostPendingUpdates;
inline constexpr int kOwn = kPairs - 1;
inline constexpr int kQuad = 4;

template <typename T>
__device__ int KeyDim(const DeltaKernelArgs& p) {
  return T::kKeys != 0 ? T::kKeys : p.key_dim;
}

// Shared memory that is filled from outside: the pairs, and the token's vectors.
struct Fetched {
  static constexpr int kBeta = 4;  // floats that beta has, so that what follows is aligned

  static int Floats(const DeltaKernelArgs& p, int columns) {
    return kPairs * p.key_dim + p.pairs * (columns + (p.channel_decay ? p.key_dim : 1)) +
           2 * p.key_dim + kBeta;
  }
  __device__ Fetched(float* memory, const DeltaKernelArgs& p, int key_dim, int columns)
      : w(memory),
        n(w + kPairs * key_dim),
        k(n + p.pairs * columns),
        q(k + key_dim),
        a(q + key_dim),
        beta(a + p.pairs * (p.channel_decay ? key_dim : 1)) {}

  float* w;  // [pairs, K]: w_i, then f_i w_i; before a fold [K, kPairs]: z_i, see FoldedKey
  float* n;  // [pairs, columns]: n_i; the own one is v at first
  float* k;  // [K]
  float* q;  // [K]
  float* a;  // [pairs] or [pairs, K]
  float* beta;
};

// Shared memory for what is computed.
struct Work {
  static int Floats(const DeltaKernelArgs& p, int columns, int key_groups) {
    return 3 * p.key_dim + 2 * kPairs * KeyBlocks(p.key_dim) + 2 * key_groups * columns;
  }
  __host__ __device__ static int KeyBlocks(int key_dim) { return (key_dim + kWarp - 1) / kWarp; }
  __device__ Work(float* memory, int key_dim)
      : reads(reinterpret_cast<float2*>(memory)),
        shares(memory + 2 * key_dim),
        f(shares + 2 * kPairs * KeyBlocks(key_dim)),
        sums(f + key_dim) {}

  // k.z_i and q.z_i; of the own pair, k.w and q.w.
  __device__ float2 Products(int pair, int key_dim) const {
    float2 sum = {0, 0};
#pragma unroll 4
    for (int i = 0; i < KeyBlocks(key_dim); ++i) {
      const float2 share = reinterpret_cast<const float2*>(shares)[i * kPairs + pair];
      sum.x += share.x;
      sum.y += share.y;
    }
    return sum;
  }

  float2* reads;  // [K]: F k and F q
  float* shares;  // [K / 32, pairs, 2]: of the products
  float* f;       // [K]: F but for the token's own decay; in a fold, F
  float* sums;    // [2, key_groups, columns]: shares of S'(F k) and S'(F q); in the end, e
};

// What a block works on.
struct Block {
  __device__ bool has_decay() const { return p.decay.data != nullptr; }

  const DeltaKernelArgs& p;
  const Work work;
  int first_column, columns;  // those of V that are the block's
};

// Decay factors of a pair.
template <typename T>
__device__ int Decays(const DeltaKernelArgs& p) {
  return p.channel_decay ? KeyDim<T>(p) : 1;
}

// Before a fold the keys lie channel by channel: so a thread reads z of a row for four pairs, a
// quad, at once.
__device__ inline float4* FoldedKey(const Fetched& in, int channel, int quad) {
  return reinterpret_cast<float4*>(in.w + channel * kPairs) + quad;
}

// The walk along the `count` pending pairs, newest first, but for the token's own decay, which need
// not be known yet: w_i becomes f_i w_i. A thread for each channel of K. Pairs that are not pending
// become zeros.
template <typename T>
__device__ void WalkRing(const Block& b, const Fetched& in, int count) {
  const int key_dim = KeyDim<T>(b.p), decays = Decays<T>(b.p),
            thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int c = thread; c < key_dim; c += T::kThreads) {
    // All loads first, so that none waits for one.
    float z[kOwn], kept[kOwn];
#pragma unroll
    for (int pair = 0; pair < kOwn; ++pair) {
      const bool pending = pair < count;
      z[pair] = pending ? in.w[pair * key_dim + c] : 0.0f;
      kept[pair] = 1;
      if (b.has_decay() && pending) {
        kept[pair] = in.a[pair * decays + (b.p.channel_decay ? c : 0)];
      }
    }
    float f = 1;
#pragma unroll
    for (int pair = kOwn - 1; pair >= 0; --pair) {
      z[pair] *= f;
      f *= kept[pair];
    }
#pragma unroll
    for (int pair = 0; pair < kOwn; ++pair) {
      if (pair < b.p.entries) in.w[pair * key_dim + c] = z[pair];
    }
    b.work.f[c] = f;
  }
#pragma unroll 1
  for (int i = count * T::kColumns + thread; i < b.p.entries * T::kColumns; i += T::kThreads) {
    in.n[i] = 0;
  }
}

// The token's own decay of a channel.
template <typename T>
__device__ float OwnDecay(const Block& b, const Fetched& in, int c) {
  return b.has_decay() ? in.a[b.p.entries * Decays<T>(b.p) + (b.p.channel_decay ? c : 0)] : 1.0f;
}

// The reads and the shares of the products: a thread for each channel of k and of q.
template <typename T>
__device__ void Walk(const Block& b, const Fetched& in) {
  const int key_dim = KeyDim<T>(b.p), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int padded = Work::KeyBlocks(key_dim) * kWarp;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < 2 * padded; i += T::kThreads) {
    const bool of_q = i >= padded;
    const int c = of_q ? i - padded : i, at = min(c, key_dim - 1);
    const float x = c < key_dim ? (of_q ? in.q : in.k)[at] : 0.0f;
    const float decayed = OwnDecay<T>(b, in, at) * x;
    float products[kPairs];
#pragma unroll
    for (int pair = 0; pair < kOwn; ++pair) {
      products[pair] = pair < b.p.entries ? decayed * in.w[pair * key_dim + at] : 0.0f;
    }
    products[kOwn] = x * in.w[b.p.entries * key_dim + at];
    if (c < key_dim) reinterpret_cast<float*>(b.work.reads + c)[of_q] = b.work.f[c] * decayed;
    // Lane l has that of pair l / 2.
    const float share = WarpSumEach<kPairs>(products);
    if (lane % 2 == 0) b.work.shares[c + of_q] = share;
  }
}

// Before a fold, in which the token's own pair is the last of a full ring: w_i becomes z_i, channel
// by channel (FoldedKey). A barrier has to follow.
template <typename T>
__device__ void TurnKeys(const Block& b, const Fetched& in) {
  constexpr int kChannels = (T::kMostKeys + T::kThreads - 1) / T::kThreads;
  const int thread = static_cast<int>(threadIdx.x), key_dim = KeyDim<T>(b.p);
  float z[kChannels][kPairs];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    const int c = min(thread + i * T::kThreads, key_dim - 1);
    const float a = OwnDecay<T>(b, in, c);
#pragma unroll
    for (int pair = 0; pair < kOwn; ++pair) {
      z[i][pair] = pair < b.p.entries ? a * in.w[pair * key_dim + c] : 0.0f;
    }
    z[i][kOwn] = in.w[b.p.entries * key_dim + c];
    if (thread + i * T::kThreads < key_dim) b.work.f[c] *= a;
  }
  T::Sync();
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    const int c = thread + i * T::kThreads;
    if (c >= key_dim) continue;
#pragma unroll
    for (int first = 0; first < kPairs; first += kQuad) {
      if (first <= b.p.entries) {
        *FoldedKey(in, c, first / kQuad) = {z[i][first], z[i][first + 1], z[i][first + 2],
                                            z[i][first + 3]};
      }
    }
    const int own = b.p.entries;
    reinterpret_cast<float*>(FoldedKey(in, c, own / kQuad))[own % kQuad] = z[i][kOwn];
  }
}

// Adds a row of S to this thread's shares.
template <int kVec>
__device__ void MultiplyRow(float2 reads, const float (&s)[kVec], float (&p)[kVec],
                            float (&y)[kVec]) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    p[i] = fmaf(reads.x, s[i], p[i]);
    y[i] = fmaf(reads.y, s[i], y[i]);
  }
}

// The same of what the pending pairs add, of which a key group takes every so manieth.
template <typename T, int kVec>
__device__ void AddPairs(const Block& b, const Fetched& in, int key_group, int column,
                         float (&p)[kVec], float (&y)[kVec]) {
#pragma unroll
  for (int i = 0; i < (kOwn + T::kKeyGroups - 1) / T::kKeyGroups; ++i) {
    const int pair = key_group + i * T::kKeyGroups;
    if (pair >= b.p.entries) break;
    const float2 products = b.work.Products(pair, KeyDim<T>(b.p));
    float n[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) n[c] = in.n[pair * T::kColumns + column + c];
    MultiplyRow(products, n, p, y);
  }
}

template <typename T, int kVec>
__device__ void StoreShares(const Block& b, int key_group, int column, const float (&p)[kVec],
                            const float (&y)[kVec]) {
  float* to = b.work.sums + key_group * T::kColumns + column;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    to[i] = p[i];
    to[T::kKeyGroups * T::kColumns + i] = y[i];
  }
}

// e, n and o of each column; n becomes the own one.
template <typename T>
__device__ void Correct(const Block& b, const Fetched& in, float beta, float* out) {
  const float own_product = b.work.Products(kOwn, KeyDim<T>(b.p)).y;
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x); column < b.columns; column += T::kThreads) {
    float* sums = b.work.sums + column;
    float p = 0, y = 0;
#pragma unroll
    for (int g = 0; g < T::kKeyGroups; ++g) {
      p += sums[g * T::kColumns];
      y += sums[(T::kKeyGroups + g) * T::kColumns];
    }
    float* own = in.n + b.p.entries * T::kColumns + column;
    const float e = *own - p;
    const float n = beta * e;
    sums[0] = e;
    *own = n;
    out[column] = fmaf(own_product, n, y);
  }
}

// Writes the new pair behind the `count` pending ones. The thread of a column is that of Correct.
template <typename T>
__device__ void Append(const Block& b, const Fetched& in, const DeltaHead& at, int count) {
  const int thread = static_cast<int>(threadIdx.x), key_dim = KeyDim<T>(b.p);
#pragma unroll 1
  for (int i = thread; i < b.columns; i += T::kThreads) {
    at.n[count * b.p.value_dim + b.first_column + i] = in.n[b.p.entries * T::kColumns + i];
  }
  if (b.first_column != 0) return;
#pragma unroll 1
  for (int i = thread; i < key_dim; i += T::kThreads) {
    at.w[count * key_dim + i] = in.w[b.p.entries * key_dim + i];
  }
  if (!b.has_decay()) return;
#pragma unroll 1
  for (int i = thread; i < Decays<T>(b.p); i += T::kThreads) {
    at.a[count * Decays<T>(b.p) + i] = in.a[b.p.entries * Decays<T>(b.p) + i];
  }
}

// Sets the counts of the block's columns.
__device__ inline void SetCount(const Block& b, const DeltaHead& at, int count) {
  constexpr int kGroup = kDeltaCountColumns;
  const int groups = (b.columns + kGroup - 1) / kGroup, thread = static_cast<int>(threadIdx.x);
  if (b.p.entries != 0 && thread < groups) at.count[b.first_column / kGroup + thread] = count;
}

// kRows rows of S from `row` on, kKeyGroups apart, and kVec columns from `column` on:
// S <- F S + sum_i z_i n_i' + w n'. After TurnKeys. Rows from K on are left alone.
template <typename T, int kRows, int kVec>
__device__ void Fold(const Block& b, const Fetched& in, int row, int column,
                     float (&s)[kRows][kVec]) {
  const auto inside = [&](int m) { return T::kExact || row + m * T::kKeyGroups < KeyDim<T>(b.p); };
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const float f = inside(m) ? b.work.f[row + m * T::kKeyGroups] : 0.0f;
#pragma unroll
    for (int c = 0; c < kVec; ++c) s[m][c] *= f;
  }
#pragma unroll 1
  for (int quad = 0; quad * kQuad <= b.p.entries; ++quad) {
    float n[kQuad][kVec];
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const int pair = quad * kQuad + i;
      const float* from = in.n + pair * T::kColumns + column;
#pragma unroll
      for (int c = 0; c < kVec; ++c) n[i][c] = pair <= b.p.entries ? from[c] : 0.0f;
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (!inside(m)) continue;
      const float4 keys = *FoldedKey(in, row + m * T::kKeyGroups, quad);
      const float z[kQuad] = {keys.x, keys.y, keys.z, keys.w};
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) s[m][c] = fmaf(z[i], n[i][c], s[m][c]);
      }
    }
  }
}

// The block's part of the read-outs, after Correct and a barrier; a barrier has to follow. Seldom
// wanted, so it stays out of the registers of the rest.
template <typename T>
__device__ __noinline__ void WriteReadouts(const Block& b, const Fetched& in, const float* v,
                                           float beta, float* to) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kWarp) return;
  float missed = 0, length = 0, decay = 0;
#pragma unroll 1
  for (int i = thread; i < b.columns; i += kWarp) {
    missed = fmaf(b.work.sums[i], b.work.sums[i], missed);
    length = fmaf(v[b.first_column + i], v[b.first_column + i], length);
  }
#pragma unroll 1
  for (int i = thread; i < Decays<T>(b.p); i += kWarp) {
    decay += b.has_decay() ? in.a[b.p.entries * Decays<T>(b.p) + i] : 1.0f;
  }
  missed = WarpSum(missed);
  length = WarpSum(length);
  decay = WarpSum(decay);
  if (thread != 0) return;
  const float left = 1.0f - beta * b.work.Products(kOwn, KeyDim<T>(b.p)).x;
  to[0] = beta == 0 ? 0.0f : missed;
  to[1] = length;
  to[2] = left * left;
  to[3] = decay / static_cast<float>(Decays<T>(b.p));
}

// `count` zeros, what a row without a slot gets, by all threads of the block.
__device__ inline void WriteZeros(float* to, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    to[i] = 0;
  }
}

}  // namespace eddy::delta
