// What follows the delta rule before the output product: the norm over each value head times the
// gate, one warp a head, all in one pass, the last rows first, since these may still lie in the
// second cache. And the tables that are derived from weights once.
#include <cuda_bf16.h>

#include "base/check.h"
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/layers/delta/delta_parts_cuda.h"

namespace eddy {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 256;

struct GateParams {
  DeltaGateArgs a;
  int value_heads, value_dim;
  float norm_eps;
  DeltaOptions::Gate gate;
};

// As many lanes as L says have one head of kRows rows.
template <typename O, typename Z, typename Y, typename L, int kElements, int kRows>
__global__ void __launch_bounds__(kWarps * 32) GateKernel(const __grid_constant__ GateParams p) {
  AllowNext();
  const int64_t item =
      int64_t{gridDim.x - 1 - blockIdx.x} * (kWarps * 32 / L::kAcross) + threadIdx.x / L::kAcross;
  const int lane = threadIdx.x % L::kAcross;
  const int64_t first = item / p.value_heads * kRows;
  const int at = static_cast<int>(item % p.value_heads) * p.value_dim;
  float weight[kElements], bias[kElements] = {};
  L::Load(p.a.out_norm, p.value_dim, lane, weight);
  if (p.a.bias != nullptr) L::Load(p.a.bias + at, p.value_dim, lane, bias);
  WaitForPrevious();
  typename L::template Raw<O> raw_o[kRows];
  typename L::template Raw<Z> raw_z[kRows];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t row = min(first + u, int64_t{p.a.rows} - 1);
    L::LoadRaw(static_cast<const O*>(p.a.o) + row * p.a.o_stride + at, p.value_dim, lane, raw_o[u]);
    if (p.a.z == nullptr) continue;
    L::LoadRaw(static_cast<const Z*>(p.a.z) + row * p.a.z_stride + at, p.value_dim, lane, raw_z[u]);
  }
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    float o[kElements], z[kElements];
    L::Unpack(raw_o[u], o);
    // All lanes of a warp take part, of rows that are there or not.
    const float mean = L::Dot(o, o) / static_cast<float>(p.value_dim);
    const float square = mean + p.norm_eps;
    const float scale = sizeof(O) == 2 ? rsqrtf(square) : 1.0f / sqrtf(square);
#pragma unroll
    for (int e = 0; e < kElements; ++e) o[e] = o[e] * scale * weight[e];
    if (p.a.z != nullptr) {
      L::Unpack(raw_z[u], z);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const float gate = z[e] + bias[e];
        o[e] *= p.gate == DeltaOptions::Gate::kSilu ? Silu(gate) : Sigmoid(gate);
      }
    }
    if (first + u >= p.a.rows) continue;
    L::Store(o, p.value_dim, lane,
             static_cast<Y*>(p.a.y) + (first + u) * p.value_heads * p.value_dim + at);
  }
}

template <typename O, typename Z, typename Y, int kLanes, int kVector, int kElements, int kRows = 1>
void Launch(const GateParams& p, cudaStream_t stream) {
  constexpr int kItems = kWarps * 32 / kLanes;
  const int64_t items = (p.a.rows + kRows - 1) / kRows * int64_t{p.value_heads};
  LaunchDependent(
      stream,
      {.grid = dim3(static_cast<unsigned>((items + kItems - 1) / kItems)), .threads = kWarps * 32},
      GateKernel<O, Z, Y, Lanes<kLanes, kVector, kElements>, kElements, kRows>, p);
}

template <typename O, typename Z, typename Y>
void LaunchForDim(const GateParams& p, cudaStream_t stream) {
  // Enough rows to keep the card busy with several of them a thread.
  constexpr int kManyRows = 4096;
  const auto all_divide_by = [&](int64_t count) {
    return p.value_dim % count == 0 && p.a.o_stride % count == 0 && p.a.z_stride % count == 0;
  };
  if (!all_divide_by(4)) return Launch<O, Z, Y, 32, 1, 16>(p, stream);
  if constexpr (sizeof(O) == 2 && sizeof(Y) == 2) {
    if (p.value_dim <= 128 && p.a.rows >= kManyRows && all_divide_by(8)) {
      return Launch<O, Z, Y, 16, 8, 8, 2>(p, stream);  // 16 bytes a lane
    }
  }
  if (p.value_dim <= 128 && p.a.rows >= kManyRows) return Launch<O, Z, Y, 32, 4, 4, 4>(p, stream);
  if (p.value_dim <= 128) return Launch<O, Z, Y, 32, 4, 4>(p, stream);
  if (p.value_dim <= 256) return Launch<O, Z, Y, 32, 4, 8>(p, stream);
  Launch<O, Z, Y, 32, 4, 16>(p, stream);
}

template <typename O, typename Z>
void LaunchForOutput(const GateParams& p, cudaStream_t stream) {
  if (p.a.y_type == DType::kBF16) return LaunchForDim<O, Z, __nv_bfloat16>(p, stream);
  LaunchForDim<O, Z, float>(p, stream);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    TapsKernel(const T* weight, int width, int padded, int64_t channels, float* taps,
               int64_t taps_stride) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= channels) return;
  for (int j = 0; j < padded; ++j) {
    const int from = j - (padded - width);
    taps[j * taps_stride + channel] = from >= 0 ? ToFloat(weight[channel * width + from]) : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads)
    FixedRetentionKernel(const float* logit, float constant, int value_heads, float* r) {
  const int j = blockIdx.x * kThreads + threadIdx.x;
  if (j < value_heads) r[j] = logit == nullptr ? constant : Sigmoid(logit[j]);
}

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

void DeltaGateCuda(const Step& step, const DeltaOptions& options, const DeltaGateArgs& args) {
  if (args.rows == 0) return;
  const GateParams params{.a = args,
                          .value_heads = static_cast<int>(options.shape.value_heads),
                          .value_dim = static_cast<int>(options.shape.value_dim),
                          .norm_eps = options.norm_eps,
                          .gate = options.gate};
  EDDY_CHECK(params.value_dim <= 512);
  const auto stream = static_cast<cudaStream_t>(step.stream);
  if (args.o_type == DType::kF32 && args.z_type == DType::kF32) {
    LaunchForOutput<float, float>(params, stream);
  } else {
    EDDY_CHECK(args.o_type == DType::kBF16 && args.z_type == DType::kBF16);
    LaunchForOutput<__nv_bfloat16, __nv_bfloat16>(params, stream);
  }
}

void DeltaTapsCuda(Stream stream, const DeltaTapsArgs& args) {
  const auto width = static_cast<int>(args.width), padded = static_cast<int>(DeltaTaps(width));
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (args.type == DType::kBF16) {
    TapsKernel<<<Blocks(args.channels), kThreads, 0, cuda_stream>>>(
        static_cast<const __nv_bfloat16*>(args.weight), width, padded, args.channels, args.taps,
        args.taps_stride);
  } else {
    TapsKernel<<<Blocks(args.channels), kThreads, 0, cuda_stream>>>(
        static_cast<const float*>(args.weight), width, padded, args.channels, args.taps,
        args.taps_stride);
  }
}

void DeltaFixedRetentionCuda(Stream stream, int64_t value_heads, const float* logit, float constant,
                             float* r) {
  FixedRetentionKernel<<<Blocks(value_heads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      logit, constant, static_cast<int>(value_heads), r);
}

}  // namespace eddy
