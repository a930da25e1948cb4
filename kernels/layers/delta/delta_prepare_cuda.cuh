// Device code that the two prepare kernels of layer "delta" share: how the work is cut into units,
// and what is done to one row of a unit. A warp has a unit; L says how its lanes share a vector.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/layers/delta/delta_gates_cuda.cuh"
#include "kernels/layers/delta/delta_parts_cuda.h"

namespace eddy {

// One of q, k, v of a head, or the decays of a value head.
struct DeltaUnit {
  enum Kind { kKey, kQuery, kValue, kDecay };
  Kind kind;
  int head;
  int dim;
  int64_t column;   // in a row of `projected`, and of `taps`
  int64_t channel;  // in a row of the history
};

__device__ inline DeltaUnit DeltaUnitOf(const DeltaPrepareParams& p, int index) {
  const DeltaSettings& o = p.o;
  if (index < o.heads) {
    const int64_t at = int64_t{index} * o.key_dim;
    return {DeltaUnit::kKey, index, o.key_dim, p.a.k_column + at, at};
  }
  index -= o.heads;
  if (index < o.heads) {
    const int64_t at = int64_t{index} * o.key_dim;
    return {DeltaUnit::kQuery, index, o.key_dim, at, at};
  }
  index -= o.heads;
  if (index < o.value_heads) {
    const int64_t at = int64_t{index} * o.value_dim;
    return {DeltaUnit::kValue, index, o.value_dim, p.a.v_column + at, at};
  }
  return {DeltaUnit::kDecay, index - o.value_heads, o.key_dim, 0, 0};
}

__device__ inline const FieldView& DeltaHistoryOf(const DeltaPrepareArgs& a,
                                                  const DeltaUnit& unit) {
  if (unit.kind == DeltaUnit::kKey) return a.conv_k;
  return unit.kind == DeltaUnit::kQuery ? a.conv_q : a.conv_v;
}

// The taps of a unit. They are weights, so small ones are read while the products still run.
template <typename L, int kHistory, int kElements>
struct DeltaTapsHeld {
  static constexpr bool kHeld = (kHistory + 1) * kElements <= 32;  // in registers
  float held[kHeld ? kHistory + 1 : 1][kElements];

  static __device__ const float* At(const DeltaPrepareParams& p, const DeltaUnit& unit, int j) {
    return p.a.vectors.taps + j * p.a.vectors.taps_stride + unit.column;
  }
  __device__ DeltaTapsHeld(const DeltaPrepareParams& p, const DeltaUnit& unit, int lane) {
    if constexpr (kHeld) {
      if (p.o.history == 0 || unit.kind == DeltaUnit::kDecay) return;
#pragma unroll
      for (int j = 0; j <= kHistory; ++j) L::Load(At(p, unit, j), unit.dim, lane, held[j]);
    }
  }
  // sum += taps[j] * x
  __device__ __forceinline__ void Add(const DeltaPrepareParams& p, const DeltaUnit& unit, int lane,
                                      int j, const float (&x)[kElements],
                                      float (&sum)[kElements]) const {
    float tap[kElements];
    if constexpr (!kHeld) L::Load(At(p, unit, j), unit.dim, lane, tap);
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum[e] += (kHeld ? held[j][e] : tap[e]) * x[e];
  }
};

// sum = what the convolution gives for x, with window[j] the inputs kHistory - j rows before.
template <typename L, int kHistory, int kElements>
__device__ __forceinline__ void DeltaConvolve(const DeltaPrepareParams& p, const DeltaUnit& unit,
                                              int lane,
                                              const DeltaTapsHeld<L, kHistory, kElements>& taps,
                                              const float (&window)[kHistory][kElements],
                                              const float (&x)[kElements],
                                              float (&sum)[kElements]) {
#pragma unroll
  for (int e = 0; e < kElements; ++e) sum[e] = 0.0f;
#pragma unroll
  for (int j = 0; j < kHistory; ++j) taps.Add(p, unit, lane, j, window[j], sum);
  taps.Add(p, unit, lane, kHistory, x, sum);
}

// x becomes the newest of the window.
template <int kHistory, int kElements>
__device__ __forceinline__ void DeltaShift(const float (&x)[kElements],
                                           float (&window)[kHistory][kElements]) {
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
#pragma unroll
    for (int j = 0; j + 1 < kHistory; ++j) window[j][e] = window[j + 1][e];
    window[kHistory - 1][e] = x[e];
  }
}

// Activation, and the norm of q and k.
template <typename L, int kElements>
__device__ __forceinline__ void DeltaActivate(const DeltaPrepareParams& p, const DeltaUnit& unit,
                                              int lane, float (&x)[kElements]) {
  const Activation activation = unit.kind == DeltaUnit::kValue ? Activation::kSilu : p.o.activation;
  // e^0 of an entry beyond the vector's end must not count.
  const auto activate = [&](auto function) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      x[e] = L::Index(lane, e) < unit.dim ? function(x[e]) : 0.0f;
    }
  };
  if (activation == Activation::kSilu) {
    activate([](float a) { return Silu(a); });
  } else if (activation != Activation::kNone) {
    activate([&](float a) { return Activate(activation, a); });
  }
  if (unit.kind == DeltaUnit::kQuery) DeltaNormalise<L>(p.o.query_norm, p.o.query_scale, x);
  if (unit.kind == DeltaUnit::kKey && p.o.key_norm != DeltaOptions::Norm::kNone) {
    DeltaNormalise<L>(p.o.key_norm, 1.0f, x);
  }
}

// Where the results of a unit's row go.
template <typename T>
__device__ __forceinline__ T* DeltaOutput(const DeltaPrepareParams& p, const DeltaUnit& unit,
                                          int row) {
  void* const out =
      unit.kind == DeltaUnit::kKey ? p.a.k : (unit.kind == DeltaUnit::kQuery ? p.a.q : p.a.v);
  return static_cast<T*>(out) + row * p.a.stride + int64_t{unit.head} * unit.dim;
}

template <typename L, typename T, int kElements>
__device__ __forceinline__ void DeltaStore(const DeltaPrepareParams& p, const DeltaUnit& unit,
                                           int row, int lane, const float (&x)[kElements]) {
  L::Store(x, unit.dim, lane, DeltaOutput<T>(p, unit, row));
}

DeltaPrepareParams DeltaPrepareParamsOf(const Step& step, const DeltaOptions& options,
                                        const DeltaPrepareArgs& args);
void LaunchDeltaPrepareSingle(const DeltaPrepareParams& params, Stream stream);
void LaunchDeltaPrepareRows(DeltaPrepareParams params, Stream stream);

}  // namespace eddy
