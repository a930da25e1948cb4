// Every value head of a sequence is a chain of its own: kLanes lanes hold d [K] in registers and go
// through the rows in order. What bounds it is the time from one row's d to the next one's, most of
// it the reduction of `inner`; so as few lanes as hold d share a head, 16 numbers each, and the
// rows ahead are read while the chain waits.
#include <cuda_bf16.h>

#include "base/check.h"
#include "kernels/cuda/typed.cuh"
#include "kernels/rules/osdn_scale/osdn_scale_cuda.h"
#include "kernels/rules/osdn_scale/osdn_scale_token.cuh"

namespace eddy {
namespace {

constexpr int kElements = 16;  // of d in one lane
// Rows read before they are needed. A row takes about a tenth of the way to memory.
constexpr int kAhead = 8;

struct Params {
  OsdnScaleCudaArgs args;
  const int32_t* row_start;
  const int32_t* slots;
  int first_sequence, sequences;
};

// What one row brings to a chain.
template <typename L, typename T>
struct RowInputs {
  typename L::template Raw<T> k;
  float beta, retention;
};

template <typename T, int kLanes, int kVector>
__global__ void __launch_bounds__(32) ScaleKernel(const __grid_constant__ Params p) {
  using L = Lanes<kLanes, kVector, kElements>;
  const OsdnScaleCudaArgs& args = p.args;
  const int value_heads = static_cast<int>(args.value_heads);
  const int key_dim = static_cast<int>(args.key_dim);
  const int chain = blockIdx.x * (32 / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  if (chain >= (p.sequences - p.first_sequence) * value_heads) return;
  // Chains of one warp have numbers of rows of their own, so they are not kept in step.
  const unsigned mask = (kLanes == 32 ? 0xffffffffu : (1u << kLanes) - 1)
                        << (threadIdx.x / kLanes * kLanes);
  const int i = p.first_sequence + chain / value_heads, j = chain % value_heads;
  const int head = j / (value_heads / static_cast<int>(args.heads));
  const int64_t first = p.row_start[i];
  const int rows = p.row_start[i + 1] - p.row_start[i];
  const int32_t slot = p.slots[i];
  T* w_row = static_cast<T*>(args.w) + (first * value_heads + j) * key_dim;
  const int64_t w_stride = int64_t{value_heads} * key_dim;
  float w[kElements] = {};
  if (slot == kNoSlot) {
    for (int t = 0; t < rows; ++t) L::Store(w, key_dim, lane, w_row + t * w_stride);
    return;
  }
  const T* k = static_cast<const T*>(args.k) + first * args.k_stride + head * key_dim;
  const float* beta = args.beta + first * value_heads + j;
  const float* retention =
      args.retention == nullptr ? nullptr : args.retention + first * args.retention_stride + j;
  const auto read = [&](int t, RowInputs<L, T>& to) {
    if (t >= rows) return;
    L::LoadRaw(k + t * args.k_stride, key_dim, lane, to.k);
    to.beta = beta[int64_t{t} * value_heads];
    to.retention = retention == nullptr ? 1.0f : retention[t * args.retention_stride];
  };
  float* const d_home = FieldAt<float>(args.scale, slot) + int64_t{j} * key_dim;
  float d[kElements];
  L::Load(d_home, key_dim, lane, d);
  RowInputs<L, T> ahead[kAhead] = {};
#pragma unroll
  for (int u = 0; u < kAhead; ++u) read(u, ahead[u]);
  for (int t = 0; t < rows; t += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (t + u >= rows) break;
      float key[kElements];
      L::Unpack(ahead[u].k, key);
      OsdnScaleToken<L>(args.options, ahead[u].beta, ahead[u].retention, key, mask, d, w);
      L::Store(w, key_dim, lane, w_row + (t + u) * w_stride);
      read(t + u + kAhead, ahead[u]);
    }
  }
  L::Store(d, key_dim, lane, d_home);
}

template <typename T, int kLanes, int kVector>
void Launch(const Params& p, cudaStream_t stream) {
  constexpr int kChains = 32 / kLanes;
  const int chains = (p.sequences - p.first_sequence) * static_cast<int>(p.args.value_heads);
  ScaleKernel<T, kLanes, kVector><<<(chains + kChains - 1) / kChains, 32, 0, stream>>>(p);
}

template <typename T>
void LaunchFor(const Params& p, cudaStream_t stream) {
  const int64_t key_dim = p.args.key_dim;
  if (key_dim % 4 != 0 || p.args.k_stride % 4 != 0) {
    Launch<T, 16, 1>(p, stream);
  } else if (key_dim <= 8 * kElements) {
    Launch<T, 8, 4>(p, stream);
  } else {
    Launch<T, 16, 4>(p, stream);
  }
}

}  // namespace

void OsdnScaleCuda(const Step& step, const OsdnScaleCudaArgs& args, int first_sequence) {
  EDDY_CHECK(args.key_dim <= 16 * kElements);
  if (first_sequence >= step.sequences) return;
  const Params params{.args = args,
                      .row_start = step.row_start,
                      .slots = step.slots,
                      .first_sequence = first_sequence,
                      .sequences = step.sequences};
  const auto stream = static_cast<cudaStream_t>(step.stream);
  if (args.type == DType::kBF16) {
    LaunchFor<__nv_bfloat16>(params, stream);
  } else {
    LaunchFor<float>(params, stream);
  }
}

}  // namespace eddy
