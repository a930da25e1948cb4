#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/mamba/mamba.h"
#include "kernels/rules/selective_scan/selective_scan.h"
#include "kernels/rules/short_conv/short_conv.h"

namespace eddy {
namespace {

class MambaCpu : public Layer {
 public:
  MambaCpu(const LayerSpec& spec, const LayerParts& parts);
  void Forward(const Step& step, TensorView x_view) override;

 private:
  struct Rows;  // where the intermediate tensors of a step lie in scratch

  void Project(const Step& step, const Rows& rows) const;
  void StepSizes(const Rows& rows) const;
  void Output(const Rows& rows, float* x) const;

  const MambaOptions options_;
  float* const scratch_;
  FieldView state_, conv_state_;
  std::vector<float> taps_;
  std::vector<float> rates_;  // A as the rule wants it, [N, I]; empty: Longhorn
  const float *norm_, *in_, *in_bias_, *conv_bias_, *select_, *step_up_, *step_bias_, *skip_;
  const float *out_, *out_bias_;
};

struct MambaCpu::Rows {
  Rows(const MambaOptions& o, int64_t rows, float* scratch) : count(rows), rule(scratch) {
    float* at = scratch + MambaCpuFloats(o);
    const auto take = [&](int64_t width) {
      float* const taken = at;
      at += rows * width;
      return taken;
    };
    normed = take(o.d_model);
    gate = take(o.channels);
    before = take(o.channels);
    input = take(o.channels);
    select = take(o.select_width());
    low = take(o.step_rank);
    step = take(o.channels);
    out = take(o.channels);
    EDDY_DCHECK(at == scratch + MambaCpuFloats(o) + rows * MambaCpuFloatsPerRow(o));
  }

  int64_t count;
  float* rule;
  float* normed;  // [rows, D]
  float* gate;    // [rows, I]: z
  float* before;  // [rows, I]: u
  float* input;   // [rows, I]: s
  float* select;  // [rows, R + 2 N]: r, k, q
  float* low;     // [rows, R]: r alone
  float* step;    // [rows, I]: d, then delta or e
  float* out;     // [rows, I]
};

MambaCpu::MambaCpu(const LayerSpec& spec, const LayerParts& parts)
    : options_(spec), scratch_(static_cast<float*>(parts.scratch)) {
  const LayerNeeds needs = MambaNeeds(spec, DeviceTraits{});
  const auto weight = [&](const char* name) -> const float* {
    const TensorView* view = FindWeight(needs, parts, name);
    return view == nullptr ? nullptr : view->as<float>();
  };
  norm_ = weight("norm.weight");
  in_ = weight("in.weight");
  in_bias_ = weight("in.bias");
  taps_ = ShortConvTaps(*FindWeight(needs, parts, "conv.weight"));
  conv_bias_ = weight("conv.bias");
  select_ = weight("select.weight");
  step_up_ = weight("step_up.weight");
  step_bias_ = weight("step_up.bias");
  skip_ = weight("skip");
  out_ = weight("out.weight");
  out_bias_ = weight("out.bias");
  state_ = *FindState(needs, parts, "state");
  conv_state_ = *FindState(needs, parts, "conv");
  if (const float* rate_log = weight("decay_rate_log")) {
    for (int64_t n = 0; n < options_.state_dim; ++n) {
      for (int64_t c = 0; c < options_.channels; ++c) {
        rates_.push_back(-std::exp(rate_log[c * options_.state_dim + n]));
      }
    }
  }
}

// z, s and r, k, q.
void MambaCpu::Project(const Step& step, const Rows& rows) const {
  const MambaOptions& o = options_;
  const auto in_part = [&](int64_t first, float* y) {
    Linear({.rows = rows.count,
            .in = o.d_model,
            .out = o.channels,
            .x = rows.normed,
            .w = in_ + first * o.d_model,
            .bias = in_bias_ == nullptr ? nullptr : in_bias_ + first,
            .y = y});
  };
  in_part(0, rows.before);
  in_part(o.channels, rows.gate);
  ShortConvCpu(step, {.channels = o.channels,
                      .width = o.conv_width,
                      .x = rows.before,
                      .taps = taps_.data(),
                      .bias = conv_bias_,
                      .state = conv_state_,
                      .out = rows.input});
  simd::Silu(rows.input, rows.count * o.channels);
  Linear({.rows = rows.count,
          .in = o.channels,
          .out = o.select_width(),
          .x = rows.input,
          .w = select_,
          .y = rows.select});
}

// delta or e.
void MambaCpu::StepSizes(const Rows& rows) const {
  const MambaOptions& o = options_;
  for (int64_t r = 0; r < rows.count; ++r) {
    std::copy_n(rows.select + r * o.select_width(), o.step_rank, rows.low + r * o.step_rank);
  }
  Linear({.rows = rows.count,
          .in = o.step_rank,
          .out = o.channels,
          .x = rows.low,
          .w = step_up_,
          .bias = step_bias_,
          .y = rows.step});
  if (!o.longhorn) return simd::Softplus(rows.step, rows.count * o.channels);
  simd::Sigmoid(rows.step, rows.count * o.channels);
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* k = rows.select + r * o.select_width() + o.step_rank;
    const float square = simd::SumOfSquares(k, o.state_dim);
    float* step = rows.step + r * o.channels;
    for (int64_t c = 0; c < o.channels; ++c) step[c] /= 1.0f + step[c] * square;
  }
}

// x += W_out ((o + skip s) silu(z))
void MambaCpu::Output(const Rows& rows, float* x) const {
  const MambaOptions& o = options_;
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t at = r * o.channels;
    simd::MultiplyAdd(skip_, rows.input + at, rows.out + at, o.channels);
  }
  simd::MultiplySilu(rows.gate, rows.out, rows.count * o.channels);
  Linear({.rows = rows.count,
          .in = o.channels,
          .out = o.d_model,
          .x = rows.out,
          .w = out_,
          .bias = out_bias_,
          .y = x,
          .accumulate = true});
}

void MambaCpu::Forward(const Step& step, TensorView x_view) {
  const MambaOptions& o = options_;
  float* x = x_view.as<float>();
  const Rows rows(o, step.rows, scratch_);
  for (int64_t r = 0; r < rows.count; ++r) {
    simd::RmsNorm(x + r * o.d_model, norm_, o.norm_eps, rows.normed + r * o.d_model, o.d_model);
  }
  Project(step, rows);
  StepSizes(rows);
  SelectiveScanCpu(step, {.channels = o.channels,
                          .states = o.state_dim,
                          .x = rows.input,
                          .step = rows.step,
                          .k = rows.select + o.step_rank,
                          .q = rows.select + o.step_rank + o.state_dim,
                          .row_stride = o.select_width(),
                          .rates = rates_.empty() ? nullptr : rates_.data(),
                          .state = state_,
                          .out = rows.out,
                          .scratch = rows.rule});
  Output(rows, x);
}

}  // namespace

int64_t MambaCpuFloatsPerRow(const MambaOptions& o) {
  return o.d_model + 5 * o.channels + o.select_width() + o.step_rank;
}

int64_t MambaCpuFloats(const MambaOptions& o) { return 2 * o.channels; }

std::unique_ptr<Layer> MakeMambaCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<MambaCpu>(spec, parts);
}

}  // namespace eddy
