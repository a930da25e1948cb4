// One token of the learned scale of the write key (osdn_scale.h), d in the registers of a warp.
#pragma once

#include "kernels/cuda/lanes.cuh"
#include "kernels/rules/osdn_scale/osdn_scale.h"

namespace eddy {

// k: l2-normalised, entries from K on zeros. w becomes d * k, d what the next token finds.
template <typename L, int kElements>
__device__ __forceinline__ void OsdnScaleToken(const OsdnScaleOptions& o, float beta,
                                               float retention, const float (&k)[kElements],
                                               unsigned mask, float (&d)[kElements],
                                               float (&w)[kElements]) {
  constexpr float kNormaliseEps = 1e-5f;
#pragma unroll
  for (int e = 0; e < kElements; ++e) w[e] = d[e] * k[e];
  const float inner = L::Dot(w, k, mask);
  float step = o.eta * (o.beta_aware ? beta * (1 - beta * inner) : 1 - inner);
  if (o.normalise) step /= L::Dot(k, k, mask) + kNormaliseEps;
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    d[e] = retention * d[e] + step * (k[e] * k[e]);
    if (!o.clips) continue;
    // Not fminf and fmaxf: a NaN stays one, so that it is found in the state.
    d[e] = d[e] < o.clip_min ? o.clip_min : d[e];
    d[e] = d[e] > o.clip_max ? o.clip_max : d[e];
  }
}

}  // namespace eddy
