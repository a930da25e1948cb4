// One token of one value head, as the block that owns some of its columns computes it, S itself
// excepted. In order: the pairs and the token's vectors are fetched; Walk;
// SumProducts, while each thread adds up its shares of S'(F k) and S'(F q); Correct; then Append or
// a fold of all pairs into S. A barrier stands between any two of them.
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
  static int Floats(const DeltaKernelArgs& p, int columns) {
    return kPairs * p.key_dim + p.pairs * (columns + (p.channel_decay ? p.key_dim : 1)) +
           2 * p.key_dim;
  }
  __device__ Fetched(float* memory, const DeltaKernelArgs& p, int key_dim, int columns)
      : w(memory),
        n(w + kPairs * key_dim),
        k(n + p.pairs * columns),
        q(k + key_dim),
        a(q + key_dim) {}

  float* w;  // [pairs, K]: w_i; before a fold [K, kPairs]: z_i, see FoldedKey
  float* n;  // [pairs, columns]: n_i; the own one is v at first
  float* k;  // [K]
  float* q;  // [K]
  float* a;  // [pairs] or [pairs, K]
};

// Shared memory for what is computed.
struct Work {
  static int Floats(const DeltaKernelArgs& p, int columns, int key_groups) {
    return 3 * p.key_dim + 2 * kPairs * (1 + KeyBlocks(p.key_dim)) + 2 * key_groups * columns;
  }
  __host__ __device__ static int KeyBlocks(int key_dim) { return (key_dim + kWarp - 1) / kWarp; }
  __device__ Work(float* memory, int key_dim)
      : reads(reinterpret_cast<float2*>(memory)),
        products(memory + 2 * key_dim),
        f(products + 2 * kPairs),
        shares(f + key_dim),
        sums(shares + 2 * kPairs * KeyBlocks(key_dim)) {}

  float2* reads;    // [K]: F k and F q
  float* products;  // [pairs, 2]: k.z_i and q.z_i; of the own one, k.w and q.w
  float* f;         // [K]: F
  float* shares;    // [K / 32, pairs, 2]: of the products
  float* sums;      // [2, key_groups, columns]: shares of S'(F k) and S'(F q); in the end, e
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

// The walk of channel c of K, newest pair first: z_i, the own w as the last. Returns F.
template <typename T>
__device__ float WalkChannel(const Block& b, const Fetched& in, int count, int c,
                             float (&z)[kPairs]) {
  const int key_dim = KeyDim<T>(b.p), decays = Decays<T>(b.p);
  const float* a = in.a + (b.p.channel_decay ? c : 0);
  float f = b.has_decay() ? a[b.p.entries * decays] : 1.0f;
  z[kOwn] = in.w[b.p.entries * key_dim + c];
  // All loads first, whatever stands in entries that are not pending, so that none waits for one.
  float kept[kOwn];
#pragma unroll
  for (int pair = 0; pair < kOwn; ++pair) {
    const int at = min(pair, b.p.entries);
    const float w = in.w[at * key_dim + c];
    z[pair] = pair < count ? w : 0.0f;
    kept[pair] = 1;
    if (b.has_decay()) {
      const float factor = a[at * decays];
      kept[pair] = pair < count ? factor : 1.0f;
    }
  }
#pragma unroll
  for (int pair = kOwn - 1; pair >= 0; --pair) {
    z[pair] *= f;
    f *= kept[pair];
  }
  return f;
}

// F, the reads and the shares of the products: a thread for each channel of K.
template <typename T>
__device__ void Walk(const Block& b, const Fetched& in, int count) {
  const int key_dim = KeyDim<T>(b.p), lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
  for (int c = static_cast<int>(threadIdx.x); c - lane < key_dim; c += T::kThreads) {
    const bool inside = c < key_dim;
    float z[kPairs];
    const float f = WalkChannel<T>(b, in, count, inside ? c : 0, z);
    const float k = inside ? in.k[c] : 0.0f, q = inside ? in.q[c] : 0.0f;
    if (inside) {
      b.work.f[c] = f;
      b.work.reads[c] = {f * k, f * q};
    }
    float kz[kPairs], qz[kPairs];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) kz[pair] = k * z[pair];
    const float k_share = WarpSumEach<kPairs>(kz);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) qz[pair] = q * z[pair];
    const float q_share = WarpSumEach<kPairs>(qz);
    // Lane l has those of pair l / 2.
    b.work.shares[c] = lane % 2 == 0 ? k_share : q_share;
  }
}

// The products, from their shares. Only the first warp has work.
template <typename T>
__device__ void SumProducts(const Block& b) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kWarp) return;
  float sum = 0;
  for (int i = 0; i < Work::KeyBlocks(KeyDim<T>(b.p)); ++i)
    sum += b.work.shares[i * kWarp + thread];
  b.work.products[thread] = sum;
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
    WalkChannel<T>(b, in, b.p.entries, min(thread + i * T::kThreads, key_dim - 1), z[i]);
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
__device__ void Correct(const Block& b, const Fetched& in, int count, float beta, float* out) {
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x); column < b.columns; column += T::kThreads) {
    float* sums = b.work.sums + column;
    float p = 0, y = 0;
#pragma unroll
    for (int g = 0; g < T::kKeyGroups; ++g) {
      p += sums[g * T::kColumns];
      y += sums[(T::kKeyGroups + g) * T::kColumns];
    }
    // The products of pairs that are not pending are zeros, but there may be anything in their n.
#pragma unroll
    for (int pair = 0; pair < kOwn; ++pair) {
      const float any = in.n[min(pair, b.p.entries) * T::kColumns + column];
      const float n = pair < count ? any : 0.0f;
      const float2 products = reinterpret_cast<const float2*>(b.work.products)[pair];
      p = fmaf(products.x, n, p);
      y = fmaf(products.y, n, y);
    }
    float* own = in.n + b.p.entries * T::kColumns + column;
    const float e = *own - p;
    const float n = beta * e;
    sums[0] = e;
    *own = n;
    out[column] = fmaf(b.work.products[2 * kOwn + 1], n, y);
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
  const float left = 1.0f - beta * b.work.products[2 * kOwn];
  to[0] = beta == 0 ? 0.0f : missed;
  to[1] = length;
  to[2] = left * left;
  to[3] = decay / static_cast<float>(Decays<T>(b.p));
}

// What a row without a slot gets.
template <typename T>
__device__ void WriteZeros(const Block& b, float* out, float* readouts) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < b.columns; i += T::kThreads) out[i] = 0;
  if (readouts != nullptr && thread < kReadoutParts) readouts[thread] = 0;
}

}  // namespace eddy::delta
