#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/gla/gla.h"
#include "kernels/rules/decay_scan/decay_scan.h"

namespace eddy {
namespace {

class GlaCpu : public Layer {
 public:
  GlaCpu(const LayerSpec& spec, const LayerParts& parts)
      : options_(spec), scratch_(static_cast<float*>(parts.scratch)) {
    const LayerNeeds needs = GlaNeeds(spec, DeviceTraits{});
    const auto weight = [&](const char* name) {
      return FindWeight(needs, parts, name)->as<float>();
    };
    norm_ = weight("norm.weight");
    q_ = weight("q.weight");
    k_ = weight("k.weight");
    v_ = weight("v.weight");
    decay_down_ = weight("decay_down.weight");
    decay_up_ = weight("decay_up.weight");
    decay_bias_ = weight("decay_up.bias");
    gate_ = weight("gate.weight");
    out_norm_ = weight("out_norm.weight");
    out_ = weight("out.weight");
    state_ = *FindState(needs, parts, "state");
  }

  void Forward(const Step& step, TensorView x_view) override;

 private:
  struct Rows;  // where the intermediate tensors of a step lie in scratch

  void Decay(const Rows& rows) const;
  void Output(const Rows& rows, float* x) const;

  const GlaOptions options_;
  float* const scratch_;
  FieldView state_;
  const float *norm_, *q_, *k_, *v_, *decay_down_, *decay_up_, *decay_bias_, *gate_, *out_norm_;
  const float* out_;
};

struct GlaCpu::Rows {
  Rows(const GlaOptions& o, int64_t rows, float* scratch) : count(rows) {
    float* at = scratch;
    const auto take = [&](int64_t width) {
      float* const taken = at;
      at += rows * width;
      return taken;
    };
    normed = take(o.d_model);
    q = take(o.heads * o.key_dim);
    k = take(o.kv_heads * o.key_dim);
    v = take(o.kv_heads * o.value_dim);
    low = take(o.decay_rank);
    decay = take(o.kv_heads * o.key_dim);
    gate = take(o.heads * o.value_dim);
    out = take(o.heads * o.value_dim);
    EDDY_DCHECK(at == scratch + rows * GlaCpuFloatsPerRow(o));
  }

  int64_t count;
  float* normed;  // [rows, D]
  float* q;       // [rows, H, K]
  float* k;       // [rows, HKV, K]
  float* v;       // [rows, HKV, V]
  float* low;     // [rows, r]
  float* decay;   // [rows, HKV, K]: factors
  float* gate;    // [rows, H, V]
  float* out;     // [rows, H, V]
};

// e^g. -softplus(-f) is logsigmoid(f).
void GlaCpu::Decay(const Rows& rows) const {
  const int64_t channels = options_.kv_heads * options_.key_dim;
  Linear({.rows = rows.count,
          .in = options_.d_model,
          .out = options_.decay_rank,
          .x = rows.normed,
          .w = decay_down_,
          .y = rows.low});
  Linear({.rows = rows.count,
          .in = options_.decay_rank,
          .out = channels,
          .x = rows.low,
          .w = decay_up_,
          .bias = decay_bias_,
          .y = rows.decay});
  float* g = rows.decay;
  const int64_t n = rows.count * channels;
  simd::Scale(-1.0f, g, n);
  simd::Softplus(g, n);
  simd::Scale(-1.0f / options_.decay_divisor, g, n);
  if (options_.decay_min) {
    for (int64_t i = 0; i < n; ++i) g[i] = std::max(g[i], *options_.decay_min);
  }
  simd::Exp(g, n);
}

// x += W_out (RMSNorm_V(o) * silu(z))
void GlaCpu::Output(const Rows& rows, float* x) const {
  const int64_t value_dim = options_.value_dim, width = options_.heads * value_dim;
  for (int64_t i = 0; i < rows.count * options_.heads; ++i) {
    float* o = rows.out + i * value_dim;
    simd::RmsNorm(o, out_norm_, options_.norm_eps, o, value_dim);
  }
  Linear({.rows = rows.count,
          .in = options_.d_model,
          .out = width,
          .x = rows.normed,
          .w = gate_,
          .y = rows.gate});
  simd::MultiplySilu(rows.gate, rows.out, rows.count * width);
  Linear({.rows = rows.count,
          .in = width,
          .out = options_.d_model,
          .x = rows.out,
          .w = out_,
          .y = x,
          .accumulate = true});
}

void GlaCpu::Forward(const Step& step, TensorView x_view) {
  const GlaOptions& o = options_;
  float* x = x_view.as<float>();
  const Rows rows(o, step.rows, scratch_);
  for (int64_t r = 0; r < rows.count; ++r) {
    simd::RmsNorm(x + r * o.d_model, norm_, o.norm_eps, rows.normed + r * o.d_model, o.d_model);
  }
  const auto project = [&](const float* w, int64_t width, float* y) {
    Linear({.rows = rows.count, .in = o.d_model, .out = width, .x = rows.normed, .w = w, .y = y});
  };
  const int64_t queries = o.heads * o.key_dim, keys = o.kv_heads * o.key_dim;
  project(q_, queries, rows.q);
  project(k_, keys, rows.k);
  project(v_, o.kv_heads * o.value_dim, rows.v);
  simd::Scale(1.0f / std::sqrt(static_cast<float>(o.key_dim)), rows.q, rows.count * queries);
  Decay(rows);
  DecayScanCpu(step, {.shape = {.states = o.kv_heads,
                                .key_heads = o.kv_heads,
                                .query_heads = o.heads,
                                .reads = o.heads / o.kv_heads,
                                .key_dim = o.key_dim,
                                .value_dim = o.value_dim},
                      .q = rows.q,
                      .k = rows.k,
                      .query_stride = queries,
                      .key_stride = keys,
                      .v = rows.v,
                      .decay = rows.decay,
                      .channel_decay = true,
                      .state = state_,
                      .out = rows.out});
  Output(rows, x);
}

}  // namespace

int64_t GlaCpuFloatsPerRow(const GlaOptions& o) {
  return o.d_model + o.decay_rank + o.heads * (o.key_dim + 2 * o.value_dim) +
         o.kv_heads * (2 * o.key_dim + o.value_dim);
}

std::unique_ptr<Layer> MakeGlaCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<GlaCpu>(spec, parts);
}

}  // namespace eddy
