// One warp has one row of the norm; bias and gate take one element, or a group of them, a thread.
// All of it is bound by memory: each row is read from device memory once (the norm's second reading
// finds it in the cache) and written once. Norm and gate begin with the last rows, which the
// product ahead has just written and the second cache may still hold; the product behind begins
// with the first ones.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/silu.cuh"

namespace eddy {
namespace {

constexpr int kWarps = 4;  // rows of a block of the norm; small, so that few rows spread over SMs
constexpr int kThreads = 128;
// Blocks of the element-wise kernels: a few for each multiprocessor of any card, then they loop.
constexpr int64_t kMostBlocks = 2048;
constexpr int64_t kMostRowBlocks = 65535;

__device__ void StoreGroup(float* y, float4 v) { *reinterpret_cast<float4*>(y) = v; }
__device__ void StoreGroup(__nv_bfloat16* y, float4 v) {
  __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(pair);
}
__device__ void StoreOne(float* y, float v) { *y = v; }
__device__ void StoreOne(__nv_bfloat16* y, float v) { *y = __float2bfloat16_rn(v); }
__device__ float LoadOne(const float* x) { return *x; }
__device__ float LoadOne(const __nv_bfloat16* x) { return __bfloat162float(*x); }

struct NormArgs {
  CudaRmsNorm norm;
  bool aligned;  // every row of x, weight and y can be moved in groups
};

template <typename Y>
__device__ void StoreNormalised(const NormArgs& args, Y* y, int64_t i, float4 v, float4 w,
                                float scale) {
  const float4 out = {Normalised(v.x, scale, w.x), Normalised(v.y, scale, w.y),
                      Normalised(v.z, scale, w.z), Normalised(v.w, scale, w.w)};
  if (args.aligned) {
    if (i < args.norm.width) StoreGroup(y + i, out);
    return;
  }
  const float parts[kNormGroup] = {out.x, out.y, out.z, out.w};
#pragma unroll
  for (int j = 0; j < kNormGroup; ++j) {
    if (i + j < args.norm.width) StoreOne(y + i + j, parts[j]);
  }
}

__device__ float4 LoadWeight(const NormArgs& args, int64_t i) {
  if (args.norm.weight == nullptr) return {1, 1, 1, 1};
  return LoadGroup(args.norm.weight, i, args.norm.width, args.aligned);
}

// grid: ceil(rows / kWarps). kGroups: groups of a row that a lane keeps in registers, so that x is
// read once; 0: the row is longer, and read twice.
template <typename Y, int kGroups>
__global__ void __launch_bounds__(kWarps * 32) RmsNormKernel(NormArgs args) {
  const CudaRmsNorm& norm = args.norm;
  const int64_t row = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t begin = threadIdx.x % 32 * kNormGroup;
  AllowNext();
  if constexpr (kGroups > 0) {
    float4 w[kGroups], v[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) w[j] = LoadWeight(args, begin + j * 32 * kNormGroup);
    WaitForPrevious();
    if (row >= norm.rows) return;
    const float* const x = norm.x + row * norm.x_stride;
    Y* const y = static_cast<Y*>(norm.y) + row * norm.y_stride;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      v[j] = LoadGroup(x, begin + j * 32 * kNormGroup, norm.width, args.aligned);
    }
    const float scale = RmsScale(v, norm.width, norm.eps);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      StoreNormalised(args, y, begin + j * 32 * kNormGroup, v[j], w[j], scale);
    }
  } else {
    WaitForPrevious();
    if (row >= norm.rows) return;
    const float* const x = norm.x + row * norm.x_stride;
    Y* const y = static_cast<Y*>(norm.y) + row * norm.y_stride;
    const float scale = RmsScale(x, norm.width, norm.eps, args.aligned);
#pragma unroll 4
    for (int64_t i = begin; i < norm.width; i += 32 * kNormGroup) {
      StoreNormalised(args, y, i, LoadGroup(x, i, norm.width, args.aligned), LoadWeight(args, i),
                      scale);
    }
  }
}

template <typename Y>
void LaunchNorm(cudaStream_t stream, const NormArgs& args) {
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>((args.norm.rows + kWarps - 1) / kWarps), 1, 1),
      .threads = kWarps * 32};
  if (args.norm.width <= 1024) return LaunchDependent(stream, shape, RmsNormKernel<Y, 8>, args);
  if (args.norm.width <= 2048) return LaunchDependent(stream, shape, RmsNormKernel<Y, 16>, args);
  LaunchDependent(stream, shape, RmsNormKernel<Y, 0>, args);
}

__global__ void __launch_bounds__(kThreads) AddBiasKernel(CudaBias bias) {
  const int64_t count = bias.rows * bias.width;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const int64_t row = i / bias.width, column = i % bias.width;
    bias.y[row * bias.y_stride + column] += bias.bias[column];
  }
}

template <GateFunction kFunction>
__device__ float Activate(float a) {
  if constexpr (kFunction == GateFunction::kSilu) return Silu(a);
  if constexpr (kFunction == GateFunction::kSigmoid) return 1.0f / (1.0f + expf(-a));
  if constexpr (kFunction == GateFunction::kGelu) {
    constexpr float kRootHalf = 0.70710678118654752440f;
    return 0.5f * a * (1.0f + erff(a * kRootHalf));
  }
}

// `kGroup` elements a thread at a time, 1 where rows are not aligned for more; `gate.width` counts
// elements.
template <GateFunction kFunction, typename In, typename Y, int kGroup>
__global__ void __launch_bounds__(kThreads) GateKernel(CudaGate gate) {
  struct alignas(kGroup * sizeof(In)) Ins {
    In v[kGroup];
  };
  struct alignas(kGroup * sizeof(Y)) Outs {
    Y v[kGroup];
  };
  AllowNext();
  WaitForPrevious();
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kGroup;
  if (column >= gate.width) return;
  for (int64_t row = gate.rows - 1 - blockIdx.y; row >= 0; row -= gridDim.y) {
    const Ins g = *reinterpret_cast<const Ins*>(static_cast<const In*>(gate.gate) +
                                                row * gate.gate_stride + column);
    Ins u = {};
    if (gate.up != nullptr) {
      u = *reinterpret_cast<const Ins*>(static_cast<const In*>(gate.up) + row * gate.up_stride +
                                        column);
    }
    Outs out;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float a = Activate<kFunction>(LoadOne(&g.v[j]));
      StoreOne(&out.v[j], gate.up == nullptr ? a : a * LoadOne(&u.v[j]));
    }
    *reinterpret_cast<Outs*>(static_cast<Y*>(gate.y) + row * gate.y_stride + column) = out;
  }
}

bool Aligned(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

unsigned Blocks(int64_t count) {
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
}

template <GateFunction kFunction, typename In, typename Y>
void LaunchGate(cudaStream_t stream, const CudaGate& gate) {
  constexpr int kGroup = 8;
  const bool grouped = gate.width % kGroup == 0 && gate.gate_stride % kGroup == 0 &&
                       gate.up_stride % kGroup == 0 && gate.y_stride % kGroup == 0 &&
                       Aligned(gate.gate, kGroup * sizeof(In)) &&
                       Aligned(gate.up, kGroup * sizeof(In)) && Aligned(gate.y, kGroup * sizeof(Y));
  const int64_t threads = grouped ? gate.width / kGroup : gate.width;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                   static_cast<unsigned>(std::min<int64_t>(gate.rows, kMostRowBlocks)), 1),
      .threads = kThreads};
  LaunchDependent(stream, shape,
                  grouped ? GateKernel<kFunction, In, Y, kGroup> : GateKernel<kFunction, In, Y, 1>,
                  gate);
}

template <GateFunction kFunction>
void GateOfTypes(cudaStream_t stream, const CudaGate& gate) {
  const bool half_in = gate.in_type == DType::kBF16, half_out = gate.y_type == DType::kBF16;
  if (half_in && half_out) return LaunchGate<kFunction, __nv_bfloat16, __nv_bfloat16>(stream, gate);
  if (half_in) return LaunchGate<kFunction, __nv_bfloat16, float>(stream, gate);
  if (half_out) return LaunchGate<kFunction, float, __nv_bfloat16>(stream, gate);
  LaunchGate<kFunction, float, float>(stream, gate);
}

int64_t StrideOr(int64_t stride, int64_t width) { return stride == 0 ? width : stride; }

}  // namespace

void RunRmsNorm(Stream stream, const CudaRmsNorm& given) {
  if (given.rows == 0) return;
  CudaRmsNorm norm = given;
  norm.x_stride = StrideOr(norm.x_stride, norm.width);
  norm.y_stride = StrideOr(norm.y_stride, norm.width);
  const bool half = norm.y_type == DType::kBF16;
  const bool aligned = norm.width % kNormGroup == 0 && norm.x_stride % kNormGroup == 0 &&
                       norm.y_stride % kNormGroup == 0 && Aligned(norm.x, 16) &&
                       Aligned(norm.weight, 16) && Aligned(norm.y, half ? 8 : 16);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (half) return LaunchNorm<__nv_bfloat16>(cuda_stream, {.norm = norm, .aligned = aligned});
  LaunchNorm<float>(cuda_stream, {.norm = norm, .aligned = aligned});
}

void RunAddBias(Stream stream, const CudaBias& given) {
  if (given.rows == 0 || given.width == 0) return;
  CudaBias bias = given;
  bias.y_stride = StrideOr(bias.y_stride, bias.width);
  AddBiasKernel<<<Blocks(bias.rows * bias.width), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      bias);
}

void RunGate(Stream stream, const CudaGate& given) {
  if (given.rows == 0 || given.width == 0) return;
  CudaGate gate = given;
  gate.gate_stride = StrideOr(gate.gate_stride, gate.width);
  gate.up_stride = StrideOr(gate.up_stride, gate.width);
  gate.y_stride = StrideOr(gate.y_stride, gate.width);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (gate.function) {
    case GateFunction::kSilu:
      return GateOfTypes<GateFunction::kSilu>(cuda_stream, gate);
    case GateFunction::kSigmoid:
      return GateOfTypes<GateFunction::kSigmoid>(cuda_stream, gate);
    case GateFunction::kGelu:
      return GateOfTypes<GateFunction::kGelu>(cuda_stream, gate);
  }
}

}  // namespace eddy
