// Device code of the prepare kernel of layer "delta": norms of q and k, and what each value head
// needs of a row beside them. A warp calls these; L says how its lanes share a vector.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/typed.cuh"
#include "kernels/layers/delta/delta_parts_cuda.h"
#include "kernels/rules/osdn_scale/osdn_scale_token.cuh"

namespace eddy {

// DeltaOptions as far as kernels need them, in types that can travel.
struct DeltaSettings {
  int heads, value_heads, key_dim, value_dim;
  int history;  // W - 1; 0: no convolution
  Activation activation;
  DeltaOptions::Norm query_norm, key_norm;
  float query_scale;
  DeltaOptions::StepSize step;
  DeltaOptions::Decay decay;
  float step_max, step_eps, decay_bound;
  bool bounded;
  bool scaled;
  OsdnScaleOptions scale;
};

struct DeltaPrepareParams {
  DeltaSettings o;
  DeltaPrepareArgs a;
  const int32_t* row_start;
  const int32_t* slots;
  int units;      // of a row or tile
  int tile_rows;  // not for decoding rows
};

// x^-1/2 to the last bit or the one before it, in fewer instructions than a root and a division.
__device__ __forceinline__ float InverseRoot(float x) {
  const float near = rsqrtf(x);
  return near * fmaf(-0.5f * x * near, near, 1.5f);
}

constexpr float kDeltaL2Eps = 1e-6f;

// 1 / |x|, in two chains of sums.
template <typename L, int kElements>
__device__ __forceinline__ float L2Factor(const float (&x)[kElements]) {
  float sums[2] = {};
#pragma unroll
  for (int e = 0; e < kElements; ++e) sums[e % 2] += x[e] * x[e];
  return InverseRoot(L::Sum(sums[0] + sums[1]) + kDeltaL2Eps);
}

template <typename L, int kElements>
__device__ __forceinline__ void DeltaNormalise(DeltaOptions::Norm norm, float scale,
                                               float (&x)[kElements]) {
  float factor = scale;
  if (norm == DeltaOptions::Norm::kL2) factor *= InverseRoot(L::Dot(x, x) + kDeltaL2Eps);
  if (norm == DeltaOptions::Norm::kSum) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum += x[e];
    factor /= L::Sum(sum);
  }
#pragma unroll
  for (int e = 0; e < kElements; ++e) x[e] *= factor;
}

// Whether the step size needs |k|^2.
__host__ __device__ inline bool DeltaUsesKeyLength(const DeltaSettings& o) {
  return o.step != DeltaOptions::StepSize::kSigmoid && o.step != DeltaOptions::StepSize::kOne;
}

// What of a row and value head does not depend on k, so that it can be read early; the weights
// among it before the products are done.
struct DeltaGateInputs {
  __device__ __forceinline__ void ReadWeights(const DeltaPrepareParams& p, int j) {
    const DeltaVectors& v = p.a.vectors;
    if (p.a.step_at >= 0 && v.step_bias != nullptr) step = v.step_bias[j];
    if (v.step_scale != nullptr) scale = v.step_scale[j];
    if (p.a.decay_at >= 0) {
      decay = v.decay_bias[j];
      rate = v.decay_rate_log[j];
    }
    if (p.a.retention_at >= 0) {
      retention = v.retention_bias[j];
    } else if (v.fixed_retention != nullptr) {
      retention = v.fixed_retention[j];
    }
  }
  // `logits`: of the row.
  __device__ __forceinline__ void ReadLogits(const DeltaPrepareParams& p, const float* logits,
                                             int j) {
    if (p.a.step_at >= 0) step += logits[p.a.step_at + j];
    if (p.a.decay_at >= 0) decay += logits[p.a.decay_at + j];
    if (p.a.retention_at >= 0) retention += logits[p.a.retention_at + j];
  }
  __device__ __forceinline__ void Read(const DeltaPrepareParams& p, int row, int j) {
    *this = {};
    ReadWeights(p, j);
    ReadLogits(p, p.a.logits + row * p.a.logits_stride, j);
  }
  float step = 0, scale = 0, decay = 0, rate = 0;
  float retention = 0;  // a logit, or r itself
};

// What the rule gets for a row and value head.
struct DeltaGates {
  float beta, decay, log_decay;  // the decay of a head or tied; else 1 and 0
};

// `square` is |k|^2.
__device__ __forceinline__ DeltaGates DeltaMakeGates(const DeltaPrepareParams& p,
                                                     const DeltaGateInputs& in, float square) {
  const DeltaSettings& o = p.o;
  const DeltaPrepareArgs& a = p.a;
  float s = 1.0f, g = 0.0f, decay = 1.0f;
  if (a.step_at >= 0) {
    s = o.step_max * Sigmoid(in.step);
    if (o.decay == DeltaOptions::Decay::kTied) {
      constexpr float kLeastTiedDecay = 1e-6f;
      decay = fminf(fmaxf(Sigmoid(-in.step), kLeastTiedDecay), 1.0f);
      decay = in.step != in.step ? in.step : decay;  // NaN passes
      g = logf(decay);
    }
  }
  switch (o.step) {
    case DeltaOptions::StepSize::kSigmoid:
    case DeltaOptions::StepSize::kOne:
      break;
    case DeltaOptions::StepSize::kLonghorn:
      s /= 1.0f + s * square;
      break;
    default:
      s /= (a.vectors.step_scale != nullptr ? Softplus(in.scale) : 1.0f) * square + o.step_eps;
  }
  if (o.decay == DeltaOptions::Decay::kHead) {
    g = -expf(in.rate) * Softplus(in.decay);
    decay = expf(g);
  }
  return {s, decay, g};
}

// Step size, scalar decay and retention of value head `j`, to their places. Returns beta.
__device__ __forceinline__ float DeltaHeadGates(const DeltaPrepareParams& p, int row, int j,
                                                const DeltaGateInputs& in, float square) {
  const DeltaPrepareArgs& a = p.a;
  const int64_t at = int64_t{row} * p.o.value_heads + j;
  const DeltaGates gates = DeltaMakeGates(p, in, square);
  a.beta[at] = gates.beta;
  if (a.decay != nullptr) a.decay[at] = gates.decay;
  if (a.log_decay != nullptr) a.log_decay[at] = gates.log_decay;
  if (a.retention != nullptr) a.retention[at] = Sigmoid(in.retention);
  return gates.beta;
}

// Write key of value head `j` of a decoding row, and its next d.
template <typename L, int kElements>
__device__ __forceinline__ void DeltaScaleKey(const DeltaPrepareParams& p, int row, int32_t slot,
                                              int j, int lane, float beta, float retention,
                                              const float (&k)[kElements]) {
  float* home = FieldAt<float>(p.a.scale, slot) + int64_t{j} * p.o.key_dim;
  float d[kElements], w[kElements];
  L::Load(home, p.o.key_dim, lane, d);
  OsdnScaleToken<L>(p.o.scale, beta, retention, k, 0xffffffffu, d, w);
  L::Store(d, p.o.key_dim, lane, home);
  L::Store(w, p.o.key_dim, lane, p.a.w + (int64_t{row} * p.o.value_heads + j) * p.o.key_dim);
}

// All that the value heads of one k head need of a row; k is what the rule gets. A lane has the
// numbers of one value head, 32 of them at a time.
template <typename L, int kElements>
__device__ __forceinline__ void DeltaGroupGates(const DeltaPrepareParams& p, int row, int32_t slot,
                                                int head, int lane, const DeltaGateInputs& first,
                                                const float (&k)[kElements]) {
  const int group = p.o.value_heads / p.o.heads;
  const bool scales = p.o.scaled && p.a.part.single && slot != kNoSlot;
  const float square = DeltaUsesKeyLength(p.o) ? L::Dot(k, k) : 0.0f;
  DeltaGateInputs inputs = first;
  for (int base = 0; base < group; base += 32) {
    const int j = head * group + base + lane;
    float beta = 0.0f, retention = 1.0f;
    if (base + lane < group) {
      if (base > 0) inputs.Read(p, row, j);
      beta = DeltaHeadGates(p, row, j, inputs, square);
      if (p.a.retention_at >= 0) {
        retention = Sigmoid(inputs.retention);
      } else if (p.a.vectors.fixed_retention != nullptr) {
        retention = inputs.retention;
      }
    }
    for (int i = 0; scales && i < min(32, group - base); ++i) {
      DeltaScaleKey<L>(p, row, slot, head * group + base + i, lane,
                       __shfl_sync(0xffffffffu, beta, i), __shfl_sync(0xffffffffu, retention, i),
                       k);
    }
  }
}

// The same for rows that are not decoding ones: a row a lane.
__device__ inline void DeltaRowGates(const DeltaPrepareParams& p, int row, int head, float square) {
  const int group = p.o.value_heads / p.o.heads;
  for (int j = head * group; j < (head + 1) * group; ++j) {
    DeltaGateInputs inputs;
    inputs.Read(p, row, j);
    DeltaHeadGates(p, row, j, inputs, square);
  }
}

// g of a channel.
__device__ __forceinline__ float DeltaLogDecay(const DeltaSettings& o, float rate, float x) {
  return o.bounded ? o.decay_bound * Sigmoid(rate * x) : -rate * Softplus(x);
}

// Rows [first, end), kAhead of them at a time, of value head `j`.
template <typename L, int kAhead, int kElements>
__device__ __forceinline__ void DeltaChannelDecay(const DeltaPrepareParams& p, int first, int end,
                                                  int j, int lane) {
  const int64_t stride = int64_t{p.o.value_heads} * p.o.key_dim;
  float* const home = p.a.channel_decay + int64_t{j} * p.o.key_dim;
  const float rate = expf(p.a.vectors.decay_rate_log[j]);
  float bias[kElements];
  L::Load(p.a.vectors.decay_bias + int64_t{j} * p.o.key_dim, p.o.key_dim, lane, bias);
  for (int begin = first; begin < end; begin += kAhead) {
    float f[kAhead][kElements];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      L::Load(home + min(begin + u, end - 1) * stride, p.o.key_dim, lane, f[u]);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (begin + u >= end) break;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const float g = DeltaLogDecay(p.o, rate, f[u][e] + bias[e]);
        f[u][e] = p.a.log_channel_decay ? g : expf(g);
      }
      L::Store(f[u], p.o.key_dim, lane, home + (begin + u) * stride);
    }
  }
}

// Whether all vectors can be read four numbers at a time.
inline bool DeltaTakesFour(const DeltaPrepareParams& p) {
  return p.o.key_dim % 4 == 0 && p.o.value_dim % 4 == 0 && p.a.projected_stride % 4 == 0 &&
         p.a.stride % 4 == 0;
}

}  // namespace eddy
