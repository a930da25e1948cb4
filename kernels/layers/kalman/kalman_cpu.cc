#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/kalman/kalman.h"
#include "kernels/rules/short_conv/short_conv.h"

namespace eddy {
namespace {

using Activation = KalmanOptions::Activation;

// A product with its bias; null bias: none.
struct Projection {
  const float* weight = nullptr;  // [out, in]
  const float* bias = nullptr;    // [out]
  // Rows [first, ...) of it.
  Projection From(int64_t first, int64_t in) const {
    return {.weight = weight + first * in, .bias = bias == nullptr ? nullptr : bias + first};
  }
};

struct Sizes {
  int64_t rows, in, out;
};

// y = W x + bias, or y += W x + bias; x [rows, in], y [rows, out].
void Project(const Projection& p, const Sizes& sizes, const float* x, float* y,
             bool accumulate = false) {
  Linear({.rows = sizes.rows,
          .in = sizes.in,
          .out = sizes.out,
          .x = x,
          .w = p.weight,
          .y = y,
          .accumulate = accumulate});
  if (p.bias == nullptr) return;
  for (int64_t r = 0; r < sizes.rows; ++r) {
    simd::AddScaled(1.0f, p.bias, y + r * sizes.out, sizes.out);
  }
}

float Gelu(float a) {
  return 0.5f * a * (1.0f + std::erf(a * static_cast<float>(1.0 / std::numbers::sqrt2)));
}

void Activate(Activation activation, float* x, int64_t n) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kSilu:
      simd::Silu(x, n);
      break;
    case Activation::kGelu:
      for (int64_t i = 0; i < n; ++i) x[i] = Gelu(x[i]);
      break;
    case Activation::kRelu:
      for (int64_t i = 0; i < n; ++i) x[i] = std::max(x[i], 0.0f);
      break;
  }
}

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

class KalmanLayerCpu : public Layer {
 public:
  KalmanLayerCpu(const LayerSpec& spec, const LayerParts& parts);
  void Forward(const Step& step, TensorView x) override;

 private:
  struct Rows;  // where the intermediate tensors of a step lie in scratch

  void Convolve(const Step& step, const Rows& rows) const;
  void Sense(const Rows& rows) const;
  void Filter(const Step& step, const Rows& rows) const;
  void Output(const Rows& rows, float* x) const;

  const KalmanOptions options_;
  float* const scratch_;
  const float *norm_, *conv_bias_, *skip_;
  Projection in_, sensor_, value_up_, noise_up_, out_;
  std::vector<float> taps_;
  KalmanDynamics dynamics_;
  FieldView precision_, information_, history_;
};

struct KalmanLayerCpu::Rows {
  Rows(const KalmanOptions& o, int64_t rows, float* scratch) : count(rows) {
    float* at = scratch;
    const auto take = [&](int64_t width) {
      float* const taken = at;
      at += rows * width;
      return taken;
    };
    normed = take(o.d_model);
    z = take(o.channels);
    c = o.conv_width > 0 ? take(o.channels) : z;
    gate = take(o.gated() ? o.channels : 0);
    v = o.value == KalmanOptions::Value::kConv ? c : take(o.channels);
    certainty = take(o.channels);
    kq = take(2 * o.state_dim);
    low = take(std::max(o.value_rank, o.noise_rank));
    y = take(o.channels);
    variance = take(o.channels);
    EDDY_DCHECK(at - scratch == rows * KalmanCpuFloatsPerRow(o));
  }

  int64_t count;
  float* normed;     // [rows, D]
  float* z;          // [rows, M]: input of the convolution
  float* c;          // [rows, M]
  float* gate;       // [rows, M]: act(u)
  float* v;          // [rows, M]
  float* certainty;  // [rows, M]: L; first l
  float* kq;         // [rows, 2 Sn]: k, then q
  float* low;        // [rows, max(value_rank, noise_rank)]
  float* y;          // [rows, M]
  float* variance;   // [rows, M]: of y; only if a step asks for read-outs
};

KalmanLayerCpu::KalmanLayerCpu(const LayerSpec& spec, const LayerParts& parts)
    : options_(spec), scratch_(static_cast<float*>(parts.scratch)) {
  const LayerNeeds needs = KalmanNeeds(spec, DeviceTraits{});
  const auto weight = [&](const std::string& name) -> const float* {
    const TensorView* view = FindWeight(needs, parts, name);
    return view == nullptr ? nullptr : view->as<float>();
  };
  const auto projection = [&](const std::string& name) {
    return Projection{.weight = weight(name + ".weight"), .bias = weight(name + ".bias")};
  };
  norm_ = weight("norm.weight");
  conv_bias_ = weight("conv.bias");
  skip_ = weight("skip");
  in_ = projection("in");
  sensor_ = projection("sensor");
  value_up_ = projection("value_up");
  noise_up_ = projection("noise_up");
  out_ = projection("out");
  taps_ = Taps(FindWeight(needs, parts, "conv.weight"));
  dynamics_ = Discretize({.count = options_.states(),
                          .step_raw = weight("step_raw"),
                          .rate_log = weight("rate_log"),
                          .process_noise = weight("process_noise"),
                          .discretization = options_.discretization,
                          .floored = options_.floored_process_noise,
                          .noise_max = options_.clip.value_or(0.0f)});
  precision_ = *FindState(needs, parts, "precision");
  information_ = *FindState(needs, parts, "information");
  if (const FieldView* field = FindState(needs, parts, "conv")) history_ = *field;
}

// c = act(conv(z) + bias)
void KalmanLayerCpu::Convolve(const Step& step, const Rows& rows) const {
  const int64_t channels = options_.channels;
  if (options_.conv_width == 0) return;
  if (options_.conv_width > 1) {
    ShortConvCpu(step, {.channels = channels,
                        .width = options_.conv_width,
                        .x = rows.z,
                        .taps = taps_.data(),
                        .state = history_,
                        .out = rows.c});
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    float* c = rows.c + r * channels;
    // A single tap has no history.
    if (options_.conv_width == 1) {
      simd::Multiply(rows.z + r * channels, taps_.data(), c, channels);
    }
    simd::AddScaled(1.0f, conv_bias_, c, channels);
  }
  Activate(options_.conv_activation, rows.c, rows.count * channels);
}

// v, certainty, k and q from c.
void KalmanLayerCpu::Sense(const Rows& rows) const {
  const KalmanOptions& o = options_;
  const int64_t channels = o.channels, states = o.state_dim;
  const Projection noise = sensor_.From(o.value_width(), channels);
  const Projection kq = sensor_.From(o.value_width() + o.noise_width(), channels);
  const bool low_value = o.value == KalmanOptions::Value::kLow;
  const bool low_noise = o.noise == KalmanOptions::Noise::kLow;
  if (o.value != KalmanOptions::Value::kConv) {
    Project(sensor_, {rows.count, channels, o.value_width()}, rows.c,
            low_value ? rows.low : rows.v);
  }
  if (low_value) Project(value_up_, {rows.count, o.value_rank, channels}, rows.low, rows.v);
  Project(noise, {rows.count, channels, o.noise_width()}, rows.c,
          low_noise ? rows.low : rows.certainty);
  if (low_noise) Project(noise_up_, {rows.count, o.noise_rank, channels}, rows.low, rows.certainty);
  Project(kq, {rows.count, channels, 2 * states}, rows.c, rows.kq);

  for (int64_t i = 0; i < 2 * rows.count && o.qk_norm; ++i) {
    float* x = rows.kq + i * states;
    simd::Scale(1.0f / std::max(std::sqrt(simd::SumOfSquares(x, states)), 1e-12f), x, states);
  }
  for (int64_t i = 0; i < 2 * rows.count * states && o.clip; ++i) {
    rows.kq[i] = std::clamp(rows.kq[i], -*o.clip, *o.clip);
  }
  simd::Softplus(rows.certainty, rows.count * channels);
  for (int64_t i = 0; i < rows.count * channels; ++i) {
    float variance = rows.certainty[i] + o.noise_min;
    if (o.noise_max) variance = std::min(variance, *o.noise_max);
    rows.certainty[i] = 1.0f / variance;
  }
}

// y, and what a step asks about the filters. The gates hold their factors already.
void KalmanLayerCpu::Filter(const Step& step, const Rows& rows) const {
  const int64_t channels = options_.channels;
  KalmanReadouts wanted;
  float* deviation = nullptr;
  float* spread = nullptr;
  if (step.readouts != nullptr) {
    float* at = step.readouts;
    const auto next = [&] { return std::exchange(at, at + rows.count); };
    // In the order of KalmanNeeds.
    wanted.precision = next();
    wanted.least_precision = next();
    deviation = next();
    wanted.surprise = next();
    wanted.information = next();
    spread = next();
    wanted.variance = rows.variance;
  }
  KalmanCpu(step, {.channels = channels,
                   .state_dim = options_.state_dim,
                   .transition = dynamics_.transition.data(),
                   .noise = dynamics_.noise.data(),
                   .v = rows.v,
                   .certainty = rows.certainty,
                   .k = rows.kq,
                   .q = rows.kq + options_.state_dim,
                   .k_stride = 2 * options_.state_dim,
                   .q_stride = 2 * options_.state_dim,
                   .prior = options_.prior_readout,
                   .precision = precision_,
                   .information = information_,
                   .y = rows.y,
                   .readouts = wanted});
  for (int64_t r = 0; r < rows.count && step.readouts != nullptr; ++r) {
    const int64_t row = r * channels;
    deviation[r] = KalmanDeviation(rows.variance + row, channels);
    spread[r] = KalmanSpread(rows.y + row, rows.variance + row,
                             options_.gated() ? rows.gate + row : nullptr, channels);
  }
}

// x += W_out ((y + skip c) gate)
void KalmanLayerCpu::Output(const Rows& rows, float* x) const {
  const int64_t channels = options_.channels, all = rows.count * channels;
  if (options_.skip == KalmanOptions::Skip::kScalar) simd::AddScaled(*skip_, rows.c, rows.y, all);
  for (int64_t r = 0; r < rows.count && options_.skip == KalmanOptions::Skip::kChannel; ++r) {
    simd::MultiplyAdd(rows.c + r * channels, skip_, rows.y + r * channels, channels);
  }
  if (options_.gated()) simd::Multiply(rows.y, rows.gate, rows.y, all);
  Project(out_, {rows.count, channels, options_.d_model}, rows.y, x, /*accumulate=*/true);
}

void KalmanLayerCpu::Forward(const Step& step, TensorView x_view) {
  const KalmanOptions& o = options_;
  float* x = x_view.as<float>();
  const Rows rows(o, step.rows, scratch_);
  for (int64_t r = 0; r < rows.count; ++r) {
    simd::RmsNorm(x + r * o.d_model, norm_, o.norm_eps, rows.normed + r * o.d_model, o.d_model);
  }
  const Sizes sizes = {rows.count, o.d_model, o.channels};
  Project(in_, sizes, rows.normed, rows.z);
  if (o.gated()) {
    Project(in_.From(o.channels, o.d_model), sizes, rows.normed, rows.gate);
    Activate(o.gate, rows.gate, rows.count * o.channels);
  }
  Convolve(step, rows);
  Sense(rows);
  Filter(step, rows);
  Output(rows, x);
}

}  // namespace

int64_t KalmanCpuFloatsPerRow(const KalmanOptions& o) {
  const int64_t wide =
      4 + (o.conv_width > 0) + o.gated() + (o.value != KalmanOptions::Value::kConv);
  return o.d_model + wide * o.channels + 2 * o.state_dim + std::max(o.value_rank, o.noise_rank);
}

std::unique_ptr<Layer> MakeKalmanCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<KalmanLayerCpu>(spec, parts);
}

}  // namespace eddy
