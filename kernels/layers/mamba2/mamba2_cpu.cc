#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/mamba2/mamba2.h"
#include "kernels/rules/decay_scan/decay_scan.h"
#include "kernels/rules/short_conv/short_conv.h"

namespace eddy {
namespace {

class Mamba2Cpu : public Layer {
 public:
  Mamba2Cpu(const LayerSpec& spec, const LayerParts& parts);
  void Forward(const Step& step, TensorView x_view) override;

 private:
  struct Rows;  // where the intermediate tensors of a step lie in scratch

  void Project(const Step& step, const Rows& rows) const;
  void StepSizes(const Rows& rows) const;
  void Output(const Rows& rows, float* x) const;

  const Mamba2Options options_;
  float* const scratch_;
  FieldView state_, conv_state_;
  std::vector<float> taps_;
  std::vector<float> rates_;  // A, [H]
  const float *norm_, *in_, *in_bias_, *conv_bias_, *step_bias_, *skip_, *out_norm_, *out_;
  const float* out_bias_;
};

struct Mamba2Cpu::Rows {
  Rows(const Mamba2Options& o, int64_t rows, float* scratch) : count(rows) {
    float* at = scratch;
    const auto take = [&](int64_t width) {
      float* const taken = at;
      at += rows * width;
      return taken;
    };
    normed = take(o.d_model);
    gate = take(o.inner());
    before = take(o.conv_channels());
    after = take(o.conv_channels());
    decay = take(o.heads);
    values = take(o.inner());
    out = take(o.inner());
    EDDY_DCHECK(at == scratch + rows * Mamba2CpuFloatsPerRow(o));
  }

  int64_t count;
  float* normed;  // [rows, D]
  float* gate;    // [rows, I]: z
  float* before;  // [rows, I + 2 G N]: u
  float* after;   // [rows, I + 2 G N]: s, B, C
  float* decay;   // [rows, H]: first d, then factors
  float* values;  // [rows, H, P]: delta s
  float* out;     // [rows, H, P]
};

Mamba2Cpu::Mamba2Cpu(const LayerSpec& spec, const LayerParts& parts)
    : options_(spec), scratch_(static_cast<float*>(parts.scratch)) {
  const LayerNeeds needs = Mamba2Needs(spec, DeviceTraits{});
  const auto weight = [&](const char* name) -> const float* {
    const TensorView* view = FindWeight(needs, parts, name);
    return view == nullptr ? nullptr : view->as<float>();
  };
  norm_ = weight("norm.weight");
  in_ = weight("in.weight");
  in_bias_ = weight("in.bias");
  taps_ = ShortConvTaps(*FindWeight(needs, parts, "conv.weight"));
  conv_bias_ = weight("conv.bias");
  step_bias_ = weight("step_bias");
  const float* rate_log = weight("decay_rate_log");
  for (int64_t j = 0; j < options_.heads; ++j) rates_.push_back(-std::exp(rate_log[j]));
  skip_ = weight("skip");
  out_norm_ = weight("out_norm.weight");
  out_ = weight("out.weight");
  out_bias_ = weight("out.bias");
  state_ = *FindState(needs, parts, "state");
  conv_state_ = *FindState(needs, parts, "conv");
}

// z, silu(conv(u)) and d: the three parts of W_in are products of their own.
void Mamba2Cpu::Project(const Step& step, const Rows& rows) const {
  const Mamba2Options& o = options_;
  int64_t first = 0;
  const auto next = [&](int64_t width, float* y) {
    Linear({.rows = rows.count,
            .in = o.d_model,
            .out = width,
            .x = rows.normed,
            .w = in_ + first * o.d_model,
            .bias = in_bias_ == nullptr ? nullptr : in_bias_ + first,
            .y = y});
    first += width;
  };
  next(o.inner(), rows.gate);
  next(o.conv_channels(), rows.before);
  next(o.heads, rows.decay);
  ShortConvCpu(step, {.channels = o.conv_channels(),
                      .width = o.conv_width,
                      .x = rows.before,
                      .taps = taps_.data(),
                      .bias = conv_bias_,
                      .state = conv_state_,
                      .out = rows.after});
  simd::Silu(rows.after, rows.count * o.conv_channels());
}

// From d to delta, then to e^{delta A} and delta s.
void Mamba2Cpu::StepSizes(const Rows& rows) const {
  const Mamba2Options& o = options_;
  for (int64_t r = 0; r < rows.count; ++r) {
    float* decay = rows.decay + r * o.heads;
    simd::AddScaled(1.0f, step_bias_, decay, o.heads);
    simd::Softplus(decay, o.heads);
    for (int64_t j = 0; j < o.heads; ++j) {
      float delta = std::max(decay[j], o.step_min);
      if (o.step_max) delta = std::min(delta, *o.step_max);
      decay[j] = delta * rates_[static_cast<size_t>(j)];
      float* values = rows.values + r * o.inner() + j * o.head_dim;
      std::copy_n(rows.after + r * o.conv_channels() + j * o.head_dim, o.head_dim, values);
      simd::Scale(delta, values, o.head_dim);
    }
  }
  simd::Exp(rows.decay, rows.count * o.heads);
}

// x += W_out RMSNorm((y + skip s) silu(z))
void Mamba2Cpu::Output(const Rows& rows, float* x) const {
  const Mamba2Options& o = options_;
  for (int64_t i = 0; i < rows.count * o.heads; ++i) {
    const int64_t row = i / o.heads, j = i % o.heads;
    simd::AddScaled(skip_[j], rows.after + row * o.conv_channels() + j * o.head_dim,
                    rows.out + i * o.head_dim, o.head_dim);
  }
  simd::MultiplySilu(rows.gate, rows.out, rows.count * o.inner());
  const int64_t group = o.inner() / o.groups;
  for (int64_t i = 0; i < rows.count * o.groups; ++i) {
    float* y = rows.out + i * group;
    simd::RmsNorm(y, out_norm_ + i % o.groups * group, o.norm_eps, y, group);
  }
  Linear({.rows = rows.count,
          .in = o.inner(),
          .out = o.d_model,
          .x = rows.out,
          .w = out_,
          .bias = out_bias_,
          .y = x,
          .accumulate = true});
}

void Mamba2Cpu::Forward(const Step& step, TensorView x_view) {
  const Mamba2Options& o = options_;
  float* x = x_view.as<float>();
  const Rows rows(o, step.rows, scratch_);
  for (int64_t r = 0; r < rows.count; ++r) {
    simd::RmsNorm(x + r * o.d_model, norm_, o.norm_eps, rows.normed + r * o.d_model, o.d_model);
  }
  Project(step, rows);
  StepSizes(rows);
  DecayScanCpu(step, {.shape = {.states = o.heads,
                                .key_heads = o.groups,
                                .query_heads = o.groups,
                                .key_dim = o.state_dim,
                                .value_dim = o.head_dim},
                      .q = rows.after + o.inner() + o.groups * o.state_dim,
                      .k = rows.after + o.inner(),
                      .query_stride = o.conv_channels(),
                      .key_stride = o.conv_channels(),
                      .v = rows.values,
                      .decay = rows.decay,
                      .state = state_,
                      .out = rows.out});
  Output(rows, x);
}

}  // namespace

int64_t Mamba2CpuFloatsPerRow(const Mamba2Options& o) {
  return o.d_model + 3 * o.inner() + 2 * o.conv_channels() + o.heads;
}

std::unique_ptr<Layer> MakeMamba2Cpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<Mamba2Cpu>(spec, parts);
}

}  // namespace eddy
