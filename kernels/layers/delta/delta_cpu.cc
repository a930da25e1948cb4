#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/delta/delta.h"
#include "kernels/layers/delta/delta_cpu_rows.h"
#include "kernels/rules/delta_rule/delta_rule_half.h"
#include "kernels/rules/osdn_scale/osdn_scale.h"
#include "kernels/rules/short_conv/short_conv.h"

namespace eddy {
namespace {

constexpr float kL2Eps = 1e-6f;
constexpr float kLeastTiedDecay = 1e-6f;

// [channels, width] as the file has it -> [width, channels] as the rule wants it; empty without.
std::vector<float> Taps(const TensorView* weight) {
  if (weight == nullptr) return {};
  const int64_t channels = weight->shape[0], width = weight->shape[1];
  std::vector<float> taps(static_cast<size_t>(channels * width));
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < width; ++j) {
      taps[static_cast<size_t>(j * channels + c)] = weight->as<float>()[c * width + j];
    }
  }
  return taps;
}

void Activate(DeltaOptions::Activation activation, float* x, int64_t n) {
  switch (activation) {
    case DeltaOptions::Activation::kIdentity:
      break;
    case DeltaOptions::Activation::kSilu:
      simd::Silu(x, n);
      break;
    case DeltaOptions::Activation::kRelu:
      for (int64_t i = 0; i < n; ++i) x[i] = std::max(x[i], 0.0f);
      break;
    case DeltaOptions::Activation::kElu:  // elu(x) + 1
      for (int64_t i = 0; i < n; ++i) x[i] = x[i] > 0 ? x[i] + 1.0f : std::exp(x[i]);
      break;
  }
}

// Each of `vectors` vectors of `dim`, times `scale`.
void Normalise(DeltaOptions::Norm norm, float scale, int64_t vectors, int64_t dim, float* x) {
  for (int64_t i = 0; i < vectors; ++i, x += dim) {
    float factor = scale;
    if (norm == DeltaOptions::Norm::kL2) factor /= std::sqrt(simd::SumOfSquares(x, dim) + kL2Eps);
    if (norm == DeltaOptions::Norm::kSum) factor /= simd::Sum(x, dim);
    if (factor != 1.0f) simd::Scale(factor, x, dim);
  }
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// r of each value head where no token changes it; empty if it is 1, or another for each token.
std::vector<float> FixedRetention(const DeltaOptions& options, const float* logit) {
  const auto value_heads = static_cast<size_t>(options.shape.value_heads);
  std::vector<float> fixed;
  if (options.scale->retention == DeltaOptions::Retention::kConstant) {
    fixed.assign(value_heads, options.scale->gamma);
  }
  if (options.scale->retention == DeltaOptions::Retention::kLearned) {
    for (size_t j = 0; j < value_heads; ++j) fixed.push_back(Sigmoid(logit[j]));
  }
  return fixed;
}

class DeltaCpu : public Layer {
 public:
  DeltaCpu(const LayerSpec& spec, const LayerParts& parts);
  void Forward(const Step& step, TensorView x) override;
  void Flush(const Step& step) override;

 private:
  using Rows = DeltaCpuRows;
  struct Stream {  // one of q, k, v
    const float* weight = nullptr;
    std::vector<float> taps;
    FieldView history;
    int64_t width = 0;
    DeltaOptions::Activation activation = DeltaOptions::Activation::kSilu;
  };

  void Project(const Stream& stream, const Step& step, const Rows& rows, float* out) const;
  void StepSizes(const Rows& rows) const;
  void HeadDecay(const Rows& rows) const;
  void ChannelDecay(const Rows& rows) const;
  void ScaleKeys(const Step& step, const Rows& rows) const;
  void Output(const Rows& rows, float* x) const;
  DeltaRuleArgs StateArgs() const;

  const DeltaOptions options_;
  float* const scratch_;
  FieldView state_, scale_;
  DeltaRing ring_;
  Stream q_, k_, v_;
  std::vector<float> fixed_retention_;  // [HV], if the same for all tokens and not 1
  const float *norm_, *step_, *step_bias_, *step_scale_, *decay_, *decay_down_, *decay_up_;
  const float *decay_rate_log_, *decay_bias_, *gate_, *gate_down_, *gate_up_, *gate_bias_;
  const float *out_norm_, *out_, *retention_, *retention_bias_;
};

DeltaCpu::DeltaCpu(const LayerSpec& spec, const LayerParts& parts)
    : options_(spec), scratch_(static_cast<float*>(parts.scratch)) {
  const LayerNeeds needs = DeltaNeedsNamed(spec, parts);
  const auto weight = [&](const char* name) -> const float* {
    const TensorView* view = FindWeight(needs, parts, name);
    return view == nullptr ? nullptr : view->as<float>();
  };
  const auto stream = [&](const std::string& name, int64_t width) {
    Stream made;
    made.weight = weight((name + ".weight").c_str());
    made.taps = Taps(FindWeight(needs, parts, name + "_conv.weight"));
    if (const FieldView* field = FindState(needs, parts, "conv_" + name)) made.history = *field;
    made.width = width;
    return made;
  };
  q_ = stream("q", options_.q_width());
  k_ = stream("k", options_.q_width());
  v_ = stream("v", options_.v_width());
  q_.activation = k_.activation = options_.qk_activation;
  state_ = *FindState(needs, parts, "state");
  ring_ = DeltaRingOf(needs, parts);
  norm_ = weight("norm.weight");
  step_ = weight("step.weight");
  step_bias_ = weight("step.bias");
  step_scale_ = weight("step_scale_raw");
  decay_ = weight("decay.weight");
  decay_down_ = weight("decay_down.weight");
  decay_up_ = weight("decay_up.weight");
  decay_rate_log_ = weight("decay_rate_log");
  decay_bias_ = weight("decay_bias");
  gate_ = weight("gate.weight");
  gate_down_ = weight("gate_down.weight");
  gate_up_ = weight("gate_up.weight");
  gate_bias_ = weight("gate_up.bias");
  out_norm_ = weight("out_norm.weight");
  out_ = weight("out.weight");
  retention_ = weight("retention.weight");
  retention_bias_ = weight("retention.bias");
  if (!options_.scale) return;
  scale_ = *FindState(needs, parts, "scale");
  fixed_retention_ = FixedRetention(options_, weight("retention_logit"));
}

// out = act(conv(W n)) for one of q, k, v.
void DeltaCpu::Project(const Stream& stream, const Step& step, const Rows& rows, float* out) const {
  const bool conv = !stream.taps.empty();
  Linear({.rows = rows.count,
          .in = options_.d_model,
          .out = stream.width,
          .x = rows.normed,
          .w = stream.weight,
          .y = conv ? rows.before : out});
  if (conv) {
    ShortConvCpu(step, {.channels = stream.width,
                        .width = options_.conv_width,
                        .x = rows.before,
                        .taps = stream.taps.data(),
                        .state = stream.history,
                        .out = out});
  }
  Activate(stream.activation, out, rows.count * stream.width);
}

// beta, and with decay tied g too. |k|^2 is that of the value head's q/k head.
void DeltaCpu::StepSizes(const Rows& rows) const {
  using StepSize = DeltaOptions::StepSize;
  const auto& [heads, value_heads, key_dim, value_dim] = options_.shape;
  if (step_ != nullptr) {
    Linear({.rows = rows.count,
            .in = options_.d_model,
            .out = value_heads,
            .x = rows.normed,
            .w = step_,
            .y = rows.beta});
  }
  for (int64_t i = 0; i < rows.count * value_heads; ++i) {
    const int64_t row = i / value_heads, j = i % value_heads;
    float s = 1.0f;
    if (step_ != nullptr) {
      const float logit = rows.beta[i] + (step_bias_ != nullptr ? step_bias_[j] : 0.0f);
      s = options_.step_max * Sigmoid(logit);
      if (options_.decay == DeltaOptions::Decay::kTied) {
        rows.decay[i] = std::clamp(Sigmoid(-logit), kLeastTiedDecay, 1.0f);
        rows.log_decay[i] = std::log(rows.decay[i]);
      }
    }
    if (options_.uses_key_length()) {
      const int64_t head = row * heads + j / (value_heads / heads);
      const float square = simd::SumOfSquares(rows.k + head * key_dim, key_dim);
      const float scale = step_scale_ != nullptr ? Softplus(step_scale_[j]) : 1.0f;
      s /= options_.step == StepSize::kLonghorn ? 1.0f + s * square
                                                : scale * square + options_.step_eps;
    }
    rows.beta[i] = s;
  }
}

void DeltaCpu::HeadDecay(const Rows& rows) const {
  const int64_t value_heads = options_.shape.value_heads;
  Linear({.rows = rows.count,
          .in = options_.d_model,
          .out = value_heads,
          .x = rows.normed,
          .w = decay_,
          .y = rows.log_decay});
  for (int64_t i = 0; i < rows.count * value_heads; ++i) {
    const int64_t j = i % value_heads;
    rows.log_decay[i] =
        -std::exp(decay_rate_log_[j]) * Softplus(rows.log_decay[i] + decay_bias_[j]);
    rows.decay[i] = std::exp(rows.log_decay[i]);
  }
}

void DeltaCpu::ChannelDecay(const Rows& rows) const {
  const int64_t key_dim = options_.shape.key_dim, value_heads = options_.shape.value_heads;
  const int64_t channels = value_heads * key_dim;
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
          .y = rows.decay});
  for (int64_t r = 0; r < rows.count; ++r) {
    simd::AddScaled(1.0f, decay_bias_, rows.decay + r * channels, channels);
    for (int64_t j = 0; j < value_heads; ++j) {
      float* f = rows.decay + r * channels + j * key_dim;
      const float rate = std::exp(decay_rate_log_[j]);
      if (options_.decay_bound) {
        simd::Scale(rate, f, key_dim);
        simd::Sigmoid(f, key_dim);
        simd::Scale(*options_.decay_bound, f, key_dim);
      } else {
        simd::Softplus(f, key_dim);
        simd::Scale(-rate, f, key_dim);
      }
    }
  }
  simd::Exp(rows.decay, rows.count * channels);
}

// w = d * k for every value head, and the next d.
void DeltaCpu::ScaleKeys(const Step& step, const Rows& rows) const {
  const auto& [heads, value_heads, key_dim, value_dim] = options_.shape;
  const float* retention = fixed_retention_.empty() ? nullptr : fixed_retention_.data();
  if (retention_ != nullptr) {
    Linear({.rows = rows.count,
            .in = options_.d_model,
            .out = value_heads,
            .x = rows.normed,
            .w = retention_,
            .y = rows.retention});
    for (int64_t r = 0; r < rows.count; ++r) {
      simd::AddScaled(1.0f, retention_bias_, rows.retention + r * value_heads, value_heads);
    }
    simd::Sigmoid(rows.retention, rows.count * value_heads);
    retention = rows.retention;
  }
  OsdnScaleCpu(step, {.heads = heads,
                      .value_heads = value_heads,
                      .key_dim = key_dim,
                      .options = options_.scale->rule,
                      .k = rows.k,
                      .beta = rows.beta,
                      .retention = retention,
                      .retention_stride = retention_ != nullptr ? value_heads : 0,
                      .scale = scale_,
                      .w = rows.w});
}

// x += W_out (RMSNorm_V(o) * act(z))
void DeltaCpu::Output(const Rows& rows, float* x) const {
  const int64_t value_dim = options_.shape.value_dim, width = options_.v_width();
  for (int64_t i = 0; i < rows.count * options_.shape.value_heads; ++i) {
    float* o = rows.out + i * value_dim;
    simd::RmsNorm(o, out_norm_, options_.norm_eps, o, value_dim);
  }
  if (options_.gate != DeltaOptions::Gate::kNone) {
    const bool full = options_.gate_rank == 0;
    if (!full) {
      Linear({.rows = rows.count,
              .in = options_.d_model,
              .out = options_.gate_rank,
              .x = rows.normed,
              .w = gate_down_,
              .y = rows.low});
    }
    Linear({.rows = rows.count,
            .in = full ? options_.d_model : options_.gate_rank,
            .out = width,
            .x = full ? rows.normed : rows.low,
            .w = full ? gate_ : gate_up_,
            .y = rows.gate});
    for (int64_t r = 0; r < rows.count && !full; ++r) {
      simd::AddScaled(1.0f, gate_bias_, rows.gate + r * width, width);
    }
    const auto multiply =
        options_.gate == DeltaOptions::Gate::kSilu ? simd::MultiplySilu : simd::MultiplySigmoid;
    multiply(rows.gate, rows.out, rows.count * width);
  }
  Linear({.rows = rows.count,
          .in = width,
          .out = options_.d_model,
          .x = rows.out,
          .w = out_,
          .y = x,
          .accumulate = true});
}

// All but what a step brings.
DeltaRuleArgs DeltaCpu::StateArgs() const {
  return {.shape = options_.shape,
          .channel_decay = options_.decay == DeltaOptions::Decay::kChannel,
          .state = state_,
          .ring = ring_,
          .scratch = scratch_};
}

void DeltaCpu::Flush(const Step& step) {
  if (state_.dtype == DType::kBF16) DeltaRuleFlushHalf(step, StateArgs());
}

void DeltaCpu::Forward(const Step& step, TensorView x_view) {
  const DeltaRuleShape& shape = options_.shape;
  float* x = x_view.as<float>();
  const Rows rows(options_, state_.dtype, step.rows, scratch_);
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t at = r * options_.d_model;
    simd::RmsNorm(x + at, norm_, options_.norm_eps, rows.normed + at, options_.d_model);
  }
  Project(q_, step, rows, rows.q);
  Project(k_, step, rows, rows.k);
  Project(v_, step, rows, rows.v);
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  Normalise(options_.query_norm, query_scale, rows.count * shape.heads, shape.key_dim, rows.q);
  Normalise(options_.key_norm, 1.0f, rows.count * shape.heads, shape.key_dim, rows.k);
  StepSizes(rows);
  if (options_.decay == DeltaOptions::Decay::kHead) HeadDecay(rows);
  if (options_.decay == DeltaOptions::Decay::kChannel) ChannelDecay(rows);
  if (options_.scale) ScaleKeys(step, rows);

  DeltaReadouts wanted;
  if (step.readouts != nullptr) {
    // In the order of DeltaNeeds.
    wanted = {.residual = step.readouts,
              .contraction = step.readouts + rows.count,
              .decay = step.readouts + 2 * rows.count};
  }
  const bool decays = options_.decay != DeltaOptions::Decay::kNone;
  DeltaRuleArgs rule = StateArgs();
  rule.q = rows.q;
  rule.k = rows.k;
  rule.w = rows.w;
  rule.v = rows.v;
  rule.beta = rows.beta;
  if (decays) rule.decay = rows.decay;
  if (decays && !rule.channel_decay) rule.log_decay = rows.log_decay;
  rule.out = rows.out;
  rule.readouts = wanted;
  DeltaRuleCpu(step, rule);
  Output(rows, x);
}

}  // namespace

int64_t DeltaCpuFloatsPerRow(const DeltaOptions& o) {
  const auto& [heads, value_heads, key_dim, value_dim] = o.shape;
  const int64_t decays =
      o.decay == DeltaOptions::Decay::kChannel ? value_heads * key_dim : value_heads;
  return o.d_model + std::max(o.q_width(), o.v_width()) + 2 * o.q_width() + 3 * o.v_width() +
         std::max(o.decay_rank, o.gate_rank) + 2 * value_heads + decays +
         (o.scale ? value_heads * (key_dim + 1) : 0);
}

std::unique_ptr<Layer> MakeDeltaCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<DeltaCpu>(spec, parts);
}

}  // namespace eddy
