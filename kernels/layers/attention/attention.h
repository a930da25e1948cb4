// Layer "attention": softmax attention with rotary positions and grouped queries, around the rule
// of kernels/rules/attention/attention.h. With n = RMSNorm(x):
//   q, k, v = W_q n (+ b_q), W_k n (+ b_k), W_v n (+ b_v)
//   x <- x + W_out concat( attention(q, k, v) )
// Sources: Vaswani et al. 2017, arXiv 1706.03762; rotary positions, grouped queries and window as
// in the attention layers of flash-linear-attention 0.5.2.
//
// parameter    values                  meaning
// heads        int                     H, of queries
// kv_heads     int that divides heads  HKV, of keys and values
// head_dim     even                    d; the scale of the scores is d^-1/2
// rope_theta   > 0                     base of the rotary frequencies
// window       null or >= 1            how many positions a row reads, itself included; null: all
// bias         flag                    biases of q, k and v; W_out has none
//
// weight               shape
// norm.weight          [D]
// q.weight, q.bias     [H d, D], [H d]
// k.weight, k.bias     [HKV d, D], [HKV d]
// v.weight, v.bias     [HKV d, D], [HKV d]
// out.weight           [D, H d]
//
// field of a page      shape of a token    meaning
// k                    [HKV, d]            key, turned by its position
// v                    [HKV, d]            value
// It has no state in the record.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/layer.h"
#include "kernels/rules/attention/attention.h"

namespace eddy {

struct AttentionOptions {
  explicit AttentionOptions(const LayerSpec& spec);
  int64_t d_model;
  float norm_eps;
  AttentionShape shape;
  double rope_theta;
  int64_t window;  // 0: null
  bool bias;
  int64_t q_width() const { return shape.heads * shape.head_dim; }
  int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
};

// The table row.
const LayerType& AttentionType();

LayerNeeds AttentionNeeds(const LayerSpec& spec, const DeviceTraits& traits);
int64_t AttentionCpuFloatsPerRow(const AttentionOptions& options);
std::unique_ptr<Layer> MakeAttentionCpu(const LayerSpec& spec, const LayerParts& parts);

}  // namespace eddy
