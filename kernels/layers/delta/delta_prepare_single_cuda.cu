// Prepares the rule's inputs of decoding rows: short convolutions, activation, norms, step sizes,
// decays and the scale of the write key, in one pass. A warp has one head of q, k or v of one row,
// or the channel decays of one value head; the window of the convolution is in the record and moves
// on there, and results replace what they come from. What bounds it is the way to memory and back:
// all that a warp reads is asked for before any of it is used.
#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/layers/delta/delta_prepare_cuda.cuh"

namespace eddy {
namespace {

constexpr int kWarps = 4;

template <typename L, int kHistory, int kElements>
__device__ __forceinline__ void LoadWindow(const DeltaPrepareParams& p, const float* history,
                                           int64_t width, int dim, int lane,
                                           float (&window)[kHistory][kElements]) {
#pragma unroll
  for (int j = 0; j < kHistory; ++j) {
    const int at = p.o.history - (kHistory - j);
    if (at >= 0) {
      L::Load(history + at * width, dim, lane, window[j]);
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) window[j][e] = 0.0f;
    }
  }
}

template <typename L, int kHistory, int kElements>
__device__ __forceinline__ void StoreWindow(const DeltaPrepareParams& p, float* history,
                                            int64_t width, int dim, int lane,
                                            const float (&window)[kHistory][kElements]) {
#pragma unroll
  for (int j = 0; j < kHistory; ++j) {
    const int at = p.o.history - (kHistory - j);
    if (at >= 0) L::Store(window[j], dim, lane, history + at * width);
  }
}

template <int kVector, int kElements, int kHistory>
__global__ void __launch_bounds__(kWarps * 32, kElements <= 4 && kHistory <= 3 ? 8 : 1)
    PrepareSingleKernel(const __grid_constant__ DeltaPrepareParams p) {
  using L = Lanes<32, kVector, kElements>;
  AllowNext();
  const int item = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = item / p.units;
  const DeltaUnit unit = DeltaUnitOf(p, item % p.units);
  // Taps and biases are weights, slots were there before the step began, and of the window nobody
  // else in a step writes.
  const DeltaTapsHeld<L, kHistory, kElements> taps(p, unit, lane);
  const int32_t slot = row < p.a.part.rows ? p.slots[row] : kNoSlot;
  DeltaGateInputs inputs;
  const int group = p.o.value_heads / p.o.heads;
  const bool gates = slot != kNoSlot && unit.kind == DeltaUnit::kKey && lane < group;
  if (gates) inputs.ReadWeights(p, unit.head * group + lane);
  const bool convolves = slot != kNoSlot && unit.kind != DeltaUnit::kDecay && p.o.history > 0;
  const int64_t width =
      int64_t{unit.dim} * (unit.kind == DeltaUnit::kValue ? p.o.value_heads : p.o.heads);
  float* history = nullptr;
  float window[kHistory][kElements];
  if (convolves) {
    history = FieldAt<float>(DeltaHistoryOf(p.a, unit), slot) + unit.channel;
    LoadWindow<L>(p, history, width, unit.dim, lane, window);
  }
  WaitForPrevious();
  if (slot == kNoSlot) return;  // the rule looks at no row of nobody
  if (unit.kind == DeltaUnit::kDecay) {
    DeltaChannelDecay<L, 1, kElements>(p, row, row + 1, unit.head, lane);
    return;
  }
  float x[kElements];
  L::Load(static_cast<const float*>(p.a.projected) + row * p.a.projected_stride + unit.column,
          unit.dim, lane, x);
  if (gates) inputs.ReadLogits(p, p.a.logits + row * p.a.logits_stride, unit.head * group + lane);
  if (convolves) {
    float sum[kElements];
    DeltaConvolve<L>(p, unit, lane, taps, window, x, sum);
    DeltaShift(x, window);
    StoreWindow<L>(p, history, width, unit.dim, lane, window);
#pragma unroll
    for (int e = 0; e < kElements; ++e) x[e] = sum[e];
  }
  DeltaActivate<L>(p, unit, lane, x);
  DeltaStore<L, float>(p, unit, row, lane, x);
  if (unit.kind == DeltaUnit::kKey) DeltaGroupGates<L>(p, row, slot, unit.head, lane, inputs, x);
}

template <int kVector, int kElements, int kHistory>
void Launch(const DeltaPrepareParams& p, cudaStream_t stream) {
  const int64_t items = int64_t{p.a.part.rows} * p.units;
  LaunchDependent(
      stream,
      {.grid = dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), .threads = kWarps * 32},
      PrepareSingleKernel<kVector, kElements, kHistory>, p);
}

template <int kHistory>
void LaunchForDim(const DeltaPrepareParams& p, cudaStream_t stream) {
  const int dim = p.o.key_dim > p.o.value_dim ? p.o.key_dim : p.o.value_dim;
  EDDY_CHECK(dim <= 512);
  if (!DeltaTakesFour(p)) return Launch<1, 16, kHistory>(p, stream);
  if (dim <= 128) return Launch<4, 4, kHistory>(p, stream);
  if (dim <= 256) return Launch<4, 8, kHistory>(p, stream);
  Launch<4, 16, kHistory>(p, stream);
}

}  // namespace

void LaunchDeltaPrepareSingle(const DeltaPrepareParams& params, Stream stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  // One less than DeltaTaps says.
  if (params.o.history <= 3) {
    LaunchForDim<3>(params, cuda_stream);
  } else {
    LaunchForDim<7>(params, cuda_stream);
  }
}

}  // namespace eddy
