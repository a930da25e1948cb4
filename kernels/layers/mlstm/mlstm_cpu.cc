#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/mlstm/mlstm.h"
#include "kernels/rules/decay_scan/decay_scan.h"

namespace eddy {
namespace {

constexpr float kDivisorEps = 1e-6f;

class MlstmCpu : public Layer {
 public:
  MlstmCpu(const LayerSpec& spec, const LayerParts& parts);
  void Forward(const Step& step, TensorView x_view) override;

 private:
  struct Rows;  // where the intermediate tensors of a step lie in scratch
  struct Projection {
    const float* weight = nullptr;
    const float* bias = nullptr;  // null: none
  };

  void Project(const Projection& p, const Rows& rows, int64_t width, float* y) const;
  void Gates(const Step& step, const Rows& rows) const;
  void Scan(const Step& step, const Rows& rows) const;
  void Output(const Rows& rows, float* x) const;

  const MlstmOptions options_;
  float* const scratch_;
  FieldView state_, normaliser_, stabiliser_;
  Projection q_, k_, v_, input_gate_, forget_gate_, gate_, out_;
  const float *norm_, *out_norm_;
};

struct MlstmCpu::Rows {
  Rows(const MlstmOptions& o, int64_t rows, float* scratch) : count(rows) {
    float* at = scratch;
    const auto take = [&](int64_t width) {
      float* const taken = at;
      at += rows * width;
      return taken;
    };
    normed = take(o.d_model);
    q = take(o.key_width());
    k = take(o.key_width());
    v = take(o.value_width());
    gate = take(o.value_width());
    out = take(o.value_width());
    write = take(o.heads);
    keep = take(o.heads);
    least = take(o.heads);
    ones = take(o.heads);
    sums = take(o.heads);
    EDDY_DCHECK(at == scratch + rows * MlstmCpuFloatsPerRow(o));
  }

  int64_t count;
  float* normed;  // [rows, D]
  float* q;       // [rows, H, K]
  float* k;       // [rows, H, K]
  float* v;       // [rows, H, V]
  float* gate;    // [rows, H, V]
  float* out;     // [rows, H, V]
  float* write;   // [rows, H]: i, then e^{i - m'}
  float* keep;    // [rows, H]: f, then e^{l + m - m'}
  float* least;   // [rows, H]: e^{-m'}
  float* ones;    // [rows, H]: what the normaliser is written with
  float* sums;    // [rows, H]: u.q
};

MlstmCpu::MlstmCpu(const LayerSpec& spec, const LayerParts& parts)
    : options_(spec), scratch_(static_cast<float*>(parts.scratch)) {
  const LayerNeeds needs = MlstmNeeds(spec, DeviceTraits{});
  const auto weight = [&](const std::string& name) -> const float* {
    const TensorView* view = FindWeight(needs, parts, name);
    return view == nullptr ? nullptr : view->as<float>();
  };
  const auto projection = [&](const std::string& name) {
    return Projection{.weight = weight(name + ".weight"), .bias = weight(name + ".bias")};
  };
  q_ = projection("q");
  k_ = projection("k");
  v_ = projection("v");
  input_gate_ = projection("input_gate");
  forget_gate_ = projection("forget_gate");
  gate_ = projection("gate");
  out_ = projection("out");
  norm_ = weight("norm.weight");
  out_norm_ = weight("out_norm.weight");
  state_ = *FindState(needs, parts, "state");
  normaliser_ = *FindState(needs, parts, "normaliser");
  stabiliser_ = *FindState(needs, parts, "stabiliser");
}

void MlstmCpu::Project(const Projection& p, const Rows& rows, int64_t width, float* y) const {
  Linear({.rows = rows.count,
          .in = options_.d_model,
          .out = width,
          .x = rows.normed,
          .w = p.weight,
          .bias = p.bias,
          .y = y});
}

// write, keep and least, and the stabilisers; rows of nobody write nothing.
void MlstmCpu::Gates(const Step& step, const Rows& rows) const {
  const int64_t heads = options_.heads;
  const auto cap = [&](float a) {
    return options_.gate_softcap ? *options_.gate_softcap * std::tanh(a / *options_.gate_softcap)
                                 : a;
  };
  for (int s = 0; s < step.sequences; ++s) {
    const int64_t first = step.row_start[s] * heads, end = step.row_start[s + 1] * heads;
    if (step.slots[s] == kNoSlot) {
      std::fill(rows.write + first, rows.write + end, 0.0f);
      std::fill(rows.keep + first, rows.keep + end, 0.0f);
      std::fill(rows.least + first, rows.least + end, 1.0f);
      continue;
    }
    float* stabiliser = stabiliser_.at<float>(step.slots[s]);
    for (int64_t at = first; at < end; ++at) {
      float& m = stabiliser[(at - first) % heads];
      const float i = cap(rows.write[at]), f = cap(rows.keep[at]);
      // logsigmoid(f), from the side where nothing cancels.
      const float l =
          options_.exponential_forget ? f : std::min(f, 0.0f) - std::log1p(std::exp(-std::abs(f)));
      const float kept = l + m;
      m = std::max(kept, i);
      rows.write[at] = std::exp(i - m);
      rows.keep[at] = std::exp(kept - m);
      rows.least[at] = std::exp(-m);
    }
  }
}

// C'q and u.q: the normaliser is a memory with one column, written with ones.
void MlstmCpu::Scan(const Step& step, const Rows& rows) const {
  const MlstmOptions& o = options_;
  DecayScanArgs args = {.shape = {.states = o.heads,
                                  .key_heads = o.heads,
                                  .query_heads = o.heads,
                                  .key_dim = o.key_dim,
                                  .value_dim = o.value_dim},
                        .q = rows.q,
                        .k = rows.k,
                        .query_stride = o.key_width(),
                        .key_stride = o.key_width(),
                        .v = rows.v,
                        .decay = rows.keep,
                        .state = state_,
                        .out = rows.out};
  DecayScanCpu(step, args);
  std::fill(rows.ones, rows.ones + rows.count * o.heads, 1.0f);
  args.shape.value_dim = 1;
  args.v = rows.ones;
  args.state = normaliser_;
  args.out = rows.sums;
  DecayScanCpu(step, args);
}

// x += W_out (LayerNorm_V(h) * sigmoid(z))
void MlstmCpu::Output(const Rows& rows, float* x) const {
  const MlstmOptions& o = options_;
  for (int64_t i = 0; i < rows.count * o.heads; ++i) {
    float* h = rows.out + i * o.value_dim;
    simd::Scale(1.0f / (std::max(std::abs(rows.sums[i]), rows.least[i]) + kDivisorEps), h,
                o.value_dim);
    const float mean = simd::Sum(h, o.value_dim) / static_cast<float>(o.value_dim);
    for (int64_t j = 0; j < o.value_dim; ++j) h[j] -= mean;
    simd::RmsNorm(h, out_norm_ + i % o.heads * o.value_dim, o.norm_eps, h, o.value_dim);
  }
  Project(gate_, rows, o.value_width(), rows.gate);
  simd::MultiplySigmoid(rows.gate, rows.out, rows.count * o.value_width());
  Linear({.rows = rows.count,
          .in = o.value_width(),
          .out = o.d_model,
          .x = rows.out,
          .w = out_.weight,
          .bias = out_.bias,
          .y = x,
          .accumulate = true});
}

void MlstmCpu::Forward(const Step& step, TensorView x_view) {
  const MlstmOptions& o = options_;
  float* x = x_view.as<float>();
  const Rows rows(o, step.rows, scratch_);
  for (int64_t r = 0; r < rows.count; ++r) {
    simd::RmsNorm(x + r * o.d_model, norm_, o.norm_eps, rows.normed + r * o.d_model, o.d_model);
  }
  Project(q_, rows, o.key_width(), rows.q);
  Project(k_, rows, o.key_width(), rows.k);
  Project(v_, rows, o.value_width(), rows.v);
  Project(input_gate_, rows, o.heads, rows.write);
  Project(forget_gate_, rows, o.heads, rows.keep);
  Gates(step, rows);
  const float key_scale = 1.0f / std::sqrt(static_cast<float>(o.key_dim));
  for (int64_t i = 0; i < rows.count * o.heads; ++i) {
    simd::Scale(key_scale * rows.write[i], rows.k + i * o.key_dim, o.key_dim);
  }
  Scan(step, rows);
  Output(rows, x);
}

}  // namespace

int64_t MlstmCpuFloatsPerRow(const MlstmOptions& o) {
  return o.d_model + 2 * o.key_width() + 3 * o.value_width() + 5 * o.heads;
}

std::unique_ptr<Layer> MakeMlstmCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<MlstmCpu>(spec, parts);
}

}  // namespace eddy
