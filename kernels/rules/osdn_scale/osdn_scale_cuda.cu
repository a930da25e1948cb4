// Every value head of a sequence is a chain of its own: one warp holds d [K] in registers and goes
// through the rows in order. What bounds it is the time from one row's d to the next one's, so all
// that is not on this way is done by other warps of the block: they bring the keys to shared memory
// some rows ahead, with s = k * k and, for bfloat16 rows, its Gram matrices, and make the write
// keys from the d that the chain leaves there.
//
// With those a block of 16 tokens costs one reduction instead of 16. While no entry of d meets the
// clip, c_t = p_t - q_t inner_t and d_t+1 = r_t d_t + c_t s_t are linear in d, so what a later
// token will find, a_j = <d, s_j>, can be kept up to date without d:
//   a_j <- r_t a_j + c_t <s_t, s_j>,   inner_t = a_t
// (the closed form of the design notes, 7.6, solved row by row). Every d_t is formed and compared
// with the clip all the same. Where it meets it the block is done again token by token, and so are
// the next ones, at most 15, since a clip that binds is likely to bind again. Float rows always go
// token by token, in one order.
#include <cuda_bf16.h>

#include <cstddef>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/osdn_scale/osdn_scale_cuda.h"
#include "kernels/rules/osdn_scale/osdn_scale_stage.cuh"
#include "kernels/rules/osdn_scale/osdn_scale_token.cuh"

namespace eddy {
namespace {

// The chain's warp and those that keep ahead of it, each on a scheduler of its own.
constexpr int kHelpers = 3, kThreads = (1 + kHelpers) * 32;
constexpr int kMostPenalty = 15;  // blocks

struct Params {
  OsdnScaleCudaArgs args;
  const int32_t* row_start;
  const int32_t* slots;
  int first_sequence;
};

// Barriers: the stage of a helper is full; is empty.
__device__ inline int Full(int helper) { return 1 + helper; }
__device__ inline int Empty(int helper) { return 1 + kHelpers + helper; }

// The rows of one chain.
template <typename T>
struct Chain {
  __device__ Chain(const Params& p, int index) {
    const OsdnScaleCudaArgs& args = p.args;
    const int value_heads = static_cast<int>(args.value_heads);
    const int i = p.first_sequence + index / value_heads, j = index % value_heads;
    const int head = j / (value_heads / static_cast<int>(args.heads));
    const int64_t first = p.row_start[i];
    key_dim = static_cast<int>(args.key_dim);
    rows = Uniform(p.row_start[i + 1] - p.row_start[i]);
    slot = Uniform(p.slots[i]);
    k_stride = args.k_stride;
    k = static_cast<const T*>(args.k) + first * k_stride + int64_t{head} * key_dim;
    number_stride = value_heads;
    beta = args.beta + first * value_heads + j;
    retention_stride = args.retention_stride;
    if (args.retention != nullptr) retention = args.retention + first * retention_stride + j;
    w_stride = int64_t{value_heads} * key_dim;
    w = static_cast<T*>(args.w) + first * w_stride + int64_t{j} * key_dim;
    if (slot != kNoSlot) d = FieldAt<float>(args.scale, slot) + int64_t{j} * key_dim;
  }
  __device__ float BetaOf(int row) const { return beta[row * number_stride]; }
  __device__ float RetentionOf(int row) const {
    return retention == nullptr ? 1.0f : retention[row * retention_stride];
  }

  int key_dim, rows;
  int32_t slot;
  const T* k;
  const float *beta, *retention = nullptr;
  T* w;
  float* d = nullptr;
  int64_t k_stride, w_stride, number_stride, retention_stride;
};

// The write keys of a stage that the chain is done with.
template <typename L, typename T, int kWidth>
__device__ void WriteKeys(const Chain<T>& chain, const Stage<T, kWidth>& stage, int block) {
  constexpr int kTokens = Stage<T, kWidth>::kTokens, kElements = kWidth / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, first = block * kTokens;
  T* to = chain.w + first * chain.w_stride;
  const int count = min(kTokens, chain.rows - first);
#pragma unroll 4
  for (int u = 0; u < count; ++u, to += chain.w_stride) {
    float key[kElements], w[kElements];
    L::Load(&stage.k[u][0], kWidth, lane, key);
    L::Load(&stage.row[u][0], kWidth, lane, w);
#pragma unroll
    for (int e = 0; e < kElements; ++e) w[e] *= key[e];
    L::Store(w, chain.key_dim, lane, to);
  }
}

// A helper's part: every kHelpers-th block, the next one's keys on their way meanwhile.
template <typename T, typename L, int kWidth>
__device__ void Help(const OsdnScaleOptions& o, const Chain<T>& chain, int helper,
                     Stage<T, kWidth>& stage) {
  using S = Stage<T, kWidth>;
  constexpr int kTokens = S::kTokens, kElements = kWidth / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = (chain.rows + kTokens - 1) / kTokens;
  typename L::template Raw<T> ahead[kTokens] = {};
  float beta[2] = {}, retention[2] = {};
  const auto read = [&](int block) {
    const int first = block * kTokens;
#pragma unroll
    for (int u = 0; u < kTokens; ++u) {
      const bool there = first + u < chain.rows;
      L::LoadRaw(chain.k + (there ? first + u : 0) * chain.k_stride, there ? chain.key_dim : 0,
                 lane, ahead[u]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Those of the rows that the lane has in MakeGram; or of a row a lane.
      const int row = first + (S::kClosed ? lane / 4 + half * 8 : lane % kTokens);
      const bool there = row < chain.rows;
      beta[half] = there ? chain.BetaOf(row) : 0.0f;
      retention[half] = there ? chain.RetentionOf(row) : 1.0f;
    }
  };
  read(helper);
  for (int block = helper; block < blocks; block += kHelpers) {
    if (block >= kHelpers) {
      BarrierSync(Empty(helper), 64);
      WriteKeys<L>(chain, stage, block - kHelpers);
    }
#pragma unroll
    for (int u = 0; u < kTokens; ++u) {
      float s[kElements];
      L::Unpack(ahead[u], s);
      L::Store(s, kWidth, lane, &stage.k[u][0]);
#pragma unroll
      for (int e = 0; e < kElements; ++e) s[e] *= s[e];
      L::Store(s, kWidth, lane, &stage.row[u][0]);
    }
    const float beta_here[2] = {beta[0], beta[1]}, retention_here[2] = {retention[0], retention[1]};
    read(block + kHelpers);
    __syncwarp();
    if constexpr (S::kClosed) {
      MakeGram(o, beta_here, retention_here, stage);
    } else if (lane < kTokens) {
      stage.token[lane] = {0.0f, 0.0f, retention_here[0], beta_here[0]};
    }
    BarrierArrive(Full(helper), 64);
  }
  if (helper >= blocks) return;
  BarrierSync(Empty(helper), 64);
  WriteKeys<L>(chain, stage, helper + (blocks - 1 - helper) / kHelpers * kHelpers);
}

// The tokens of a stage, of which there are `count`, one after another. What does not depend on d
// is read a token ahead.
template <typename L, typename T, int kWidth, int kElements>
__device__ void WalkTokens(const OsdnScaleOptions& o, int count, Stage<T, kWidth>& stage,
                           float (&d)[kElements]) {
  constexpr int kTokens = Stage<T, kWidth>::kTokens;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float key[kElements];
  L::Load(&stage.k[0][0], kWidth, lane, key);
  auto token = stage.token[0];
#pragma unroll 4
  for (int u = 0; u < count; ++u) {
    const int ahead = min(u + 1, kTokens - 1);
    float next[kElements], w[kElements];
    L::Load(&stage.k[ahead][0], kWidth, lane, next);
    const auto next_token = stage.token[ahead];
    L::Store(d, kWidth, lane, &stage.row[u][0]);
    OsdnScaleToken<L>(o, token.beta, token.retention, key, kWholeWarp, d, w);
#pragma unroll
    for (int e = 0; e < kElements; ++e) key[e] = next[e];
    token = next_token;
  }
}

// The same in closed form. Returns false if d has met the clip, and then what it has left is worth
// nothing. The way from one token's `inner` to the next one's is an exchange and a product with
// numbers that are in registers by then; d follows a token behind and fills the waiting.
template <typename L, int kWidth, int kElements>
__device__ bool SolveTokens(const OsdnScaleOptions& o, int key_dim,
                            Stage<__nv_bfloat16, kWidth>& stage, float (&d)[kElements]) {
  constexpr int kTokens = Stage<__nv_bfloat16, kWidth>::kTokens;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[kTokens] = {}, s[kElements];
#pragma unroll
  for (int u = 0; u < kTokens; ++u) {
    L::Load(&stage.row[u][0], kWidth, lane, s);
#pragma unroll
    for (int e = 0; e < kElements; ++e) sums[u] = fmaf(d[e], s[e], sums[u]);
  }
  // Of token lane / 2; so are p, q and r, and the lane's column of the Gram matrices.
  float a = WarpSumEach<kTokens>(sums);
  const auto mine = stage.token[lane / 2];
  float least[kElements], greatest[kElements];
#pragma unroll
  for (int e = 0; e < kElements; ++e) least[e] = o.clip_min, greatest[e] = o.clip_max;
  const auto advance = [&](int u, float c, float retention) {
    L::Store(d, kWidth, lane, &stage.row[u][0]);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      d[e] = fmaf(retention, d[e], c * s[e]);
      // A NaN passes, here as there.
      least[e] = fminf(least[e], d[e]);
      greatest[e] = fmaxf(greatest[e], d[e]);
    }
  };
  float2 gram = stage.gram[0][lane / 2];
  float c = 0, retention = 1;  // of the token before
#pragma unroll
  for (int u = 0; u < kTokens; ++u) {
    const float inner = __shfl_sync(kWholeWarp, a, 2 * u);
    const float next_retention = __shfl_sync(kWholeWarp, mine.retention, 2 * u);
    // In the token's own lanes, from where the others get it.
    const float next_c = __shfl_sync(kWholeWarp, fmaf(-mine.q, a, mine.p), 2 * u);
    const float2 next_gram = stage.gram[min(u + 1, kTokens - 1)][lane / 2];
    float next_s[kElements];
    L::Load(&stage.row[u][0], kWidth, lane, next_s);
    if (u > 0) advance(u - 1, c, retention);
    a = fmaf(-gram.y, inner, fmaf(next_retention, a, gram.x));
    c = next_c, retention = next_retention, gram = next_gram;
#pragma unroll
    for (int e = 0; e < kElements; ++e) s[e] = next_s[e];
  }
  advance(kTokens - 1, c, retention);
  bool inside = true;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const bool ours = L::Index(lane, e) < key_dim;
    inside = inside && (!ours || (least[e] >= o.clip_min && greatest[e] <= o.clip_max));
  }
  return __all_sync(kWholeWarp, inside || !o.clips);
}

template <typename T, typename L, int kWidth>
__device__ void Walk(const OsdnScaleOptions& o, const Chain<T>& chain, Stage<T, kWidth>* stages) {
  using S = Stage<T, kWidth>;
  constexpr int kElements = kWidth / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = (chain.rows + S::kTokens - 1) / S::kTokens;
  float d[kElements];
  L::Load(chain.d, chain.key_dim, lane, d);
  int penalty = 0, left = 0;  // blocks that go token by token
  for (int block = 0, helper = 0; block < blocks; ++block) {
    const int count = min(S::kTokens, chain.rows - block * S::kTokens);
    BarrierSync(Full(helper), 64);
    bool done = false;
    if constexpr (S::kClosed) {
      if (left > 0) {
        --left;
      } else {
        float next[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) next[e] = d[e];
        done = SolveTokens<L>(o, chain.key_dim, stages[helper], next);
#pragma unroll
        for (int e = 0; e < kElements; ++e) d[e] = done ? next[e] : d[e];
        penalty = done ? 0 : min(2 * penalty + 1, kMostPenalty);
        left = penalty;
      }
    }
    if (!done) WalkTokens<L>(o, count, stages[helper], d);
    BarrierArrive(Empty(helper), 64);
    helper = helper + 1 == kHelpers ? 0 : helper + 1;
  }
  L::Store(d, chain.key_dim, lane, chain.d);
}

// Grid: chains.
template <typename T, int kVector, int kWidth>
__global__ void __launch_bounds__(kThreads, 1) ScaleKernel(const __grid_constant__ Params p) {
  using L = Lanes<32, kVector, kWidth / 32>;
  extern __shared__ __align__(16) std::byte shared[];
  auto* const stages = reinterpret_cast<Stage<T, kWidth>*>(shared);
  const Chain<T> chain(p, static_cast<int>(blockIdx.x));
  const int warp = Uniform(static_cast<int>(threadIdx.x) / 32);
  if (chain.slot == kNoSlot) {
    const float zeros[kWidth / 32] = {};
    for (int t = warp; t < chain.rows; t += kThreads / 32) {
      L::Store(zeros, chain.key_dim, static_cast<int>(threadIdx.x) % 32,
               chain.w + t * chain.w_stride);
    }
  } else if (warp == 0) {
    Walk<T, L>(p.args.options, chain, stages);
  } else {
    Help<T, L>(p.args.options, chain, warp - 1, stages[warp - 1]);
  }
}

template <typename T, int kVector, int kWidth>
void Launch(const Params& p, int chains, cudaStream_t stream) {
  constexpr int kBytes = kHelpers * static_cast<int>(sizeof(Stage<T, kWidth>));
  const auto kernel = ScaleKernel<T, kVector, kWidth>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kernel<<<chains, kThreads, kBytes, stream>>>(p);
}

template <typename T, int kVector>
void LaunchFor(const Params& p, int chains, cudaStream_t stream) {
  if (p.args.key_dim <= 128) return Launch<T, kVector, 128>(p, chains, stream);
  Launch<T, kVector, 256>(p, chains, stream);
}

}  // namespace

void OsdnScaleCuda(const Step& step, const OsdnScaleCudaArgs& args, int first_sequence) {
  EDDY_CHECK(args.key_dim <= 256);
  if (first_sequence >= step.sequences) return;
  const Params params{.args = args,
                      .row_start = step.row_start,
                      .slots = step.slots,
                      .first_sequence = first_sequence};
  const int chains = (step.sequences - first_sequence) * static_cast<int>(args.value_heads);
  const bool fours = args.key_dim % 4 == 0 && args.k_stride % 4 == 0;
  const auto stream = static_cast<cudaStream_t>(step.stream);
  if (args.type == DType::kBF16) {
    const auto launch = fours ? LaunchFor<__nv_bfloat16, 4> : LaunchFor<__nv_bfloat16, 1>;
    launch(params, chains, stream);
  } else {
    const auto launch = fours ? LaunchFor<float, 4> : LaunchFor<float, 1>;
    launch(params, chains, stream);
  }
}

}  // namespace eddy
