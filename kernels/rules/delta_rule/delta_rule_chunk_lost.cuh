// The rows of a chunk that loses its numbers, one by one.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.cuh"
#include "kernels/rules/delta_rule/delta_rule_chunk_walker.cuh"

namespace eddy::delta_chunk {

// Walks over `rows` rows as the step form of delta_rule.h does, so that those before a lost one get
// their outputs, and then gives up the state. The warp's columns begin at `column`.
template <int K, bool kVector>
__device__ void StepRows(const Problem& p, int64_t first_row, int rows, int head, int column,
                         Walker<K, kVector, /*kOutputs=*/true>& walker) {
  const int g = walker.g, t = walker.t;
  __syncwarp();  // after what all lanes have written to these outputs
  const auto pair = [&](const __nv_bfloat16* from, int i) {
    const uint32_t both = *reinterpret_cast<const uint32_t*>(from + i * 8 + 2 * t);
    return float2{LowBf16(both), HighBf16(both)};
  };
#pragma unroll 1
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    const int64_t at = row * p.value_heads + head;
    const __nv_bfloat16* q = p.q + row * p.q_stride + head / p.group * K;
    const __nv_bfloat16* k = p.k + row * p.k_stride + head / p.group * K;
    const __nv_bfloat16* w = p.w + row * p.w_stride + head / p.w_group * K;
    const __nv_bfloat16* v = p.v + row * p.v_stride + int64_t{head} * p.value_dim + column + g;
    const bool decays = p.log_decay != nullptr;
    const float all = !kVector && decays ? expf(p.log_decay[at]) : 1.0f;
    float read[2] = {}, out[2] = {};
#pragma unroll
    for (int i = 0; i < K / 8; ++i) {
      float(&tile)[4] = walker.state[i / 8][i % 8];
      float2 decay = {all, all};
      if constexpr (kVector) {
        const float* log = p.log_decay + at * K + i * 8 + 2 * t;
        decay = {expf(log[0]), expf(log[1])};
      }
      const float2 key = pair(k, i);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        tile[2 * c] *= decay.x;
        tile[2 * c + 1] *= decay.y;
        read[c] += key.x * tile[2 * c] + key.y * tile[2 * c + 1];
      }
    }
    const float beta = p.beta[at];
    float n[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      n[c] = beta * (__bfloat162float(v[8 * c]) - ReduceGroup<4>(read[c]));
    }
#pragma unroll
    for (int i = 0; i < K / 8; ++i) {
      float(&tile)[4] = walker.state[i / 8][i % 8];
      const float2 write = pair(w, i), query = pair(q, i);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        tile[2 * c] += write.x * n[c];
        tile[2 * c + 1] += write.y * n[c];
        out[c] += query.x * tile[2 * c] + query.y * tile[2 * c + 1];
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      out[c] = ReduceGroup<4>(out[c]);
      const int64_t to = at * p.value_dim + column + g + 8 * c;
      if (t != 0) continue;
      if (p.out_f32) {
        static_cast<float*>(p.out)[to] = out[c];
      } else {
        static_cast<__nv_bfloat16*>(p.out)[to] = __float2bfloat16(out[c]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < K / 8; ++i) {
#pragma unroll
    for (float& x : walker.state[i / 8][i % 8]) x = NAN;
  }
}

}  // namespace eddy::delta_chunk
