// The CUDA version of layer "kalman": products, the convolution, the rule, and two element-wise
// kernels around it (kalman_parts_cuda.h).
#include "kernels/layers/kalman/kalman_cuda.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/layer_product.h"
#include "kernels/cuda/scratch.h"
#include "kernels/layers/kalman/kalman.h"
#include "kernels/layers/kalman/kalman_parts_cuda.h"
#include "kernels/rules/kalman/kalman_cuda.h"
#include "kernels/rules/short_conv/short_conv_cuda.h"

namespace eddy {
namespace {

using Value = KalmanOptions::Value;
using Noise = KalmanOptions::Noise;
using Skip = KalmanOptions::Skip;

constexpr Activation ActivationOf(KalmanOptions::Activation activation) {
  switch (activation) {
    case KalmanOptions::Activation::kNone:
      return Activation::kNone;
    case KalmanOptions::Activation::kSilu:
      return Activation::kSilu;
    case KalmanOptions::Activation::kGelu:
      return Activation::kGelu;
    case KalmanOptions::Activation::kRelu:
      return Activation::kRelu;
  }
  return Activation::kNone;
}

// Where the intermediate tensors of a step lie in scratch. Strides are in elements.
struct Rows {
  Rows(const KalmanOptions& o, DType matrices, ScratchCutter* cutter) {
    const int64_t channels = o.channels, rank = std::max(o.value_rank, o.noise_rank);
    const bool full_value = o.value == Value::kFull, full_noise = o.noise == Noise::kFull;
    normed = cutter->Take(matrices, o.d_model);
    wide_stride = o.gated() ? 2 * channels : channels;
    wide = cutter->Floats(wide_stride);
    c = cutter->Take(matrices, channels);
    sensed_stride = (full_value ? channels : 0) + (full_noise ? channels : 0) + 2 * o.state_dim;
    sensed_stride = (sensed_stride + 3) / 4 * 4;  // so that four can be read at once
    sensed = cutter->Floats(sensed_stride);
    low = rank > 0 ? cutter->Take(matrices, rank) : nullptr;
    low_float = rank > 0 && o.bias ? cutter->Floats(rank) : nullptr;
    value = full_value ? sensed : cutter->Floats(channels);
    value_stride = full_value ? sensed_stride : channels;
    kq = sensed + (full_value ? channels : 0) + (full_noise ? channels : 0);
    certainty = full_noise ? kq - channels : cutter->Floats(channels);
    certainty_stride = full_noise ? sensed_stride : channels;
    y = cutter->Floats(channels);
    partials = cutter->Floats(KalmanCudaPartials(channels, o.state_dim));
    mixed = cutter->Take(matrices, channels);
  }

  void* normed;      // [rows, D]
  float* wide;       // [rows, 2 M]: z, then the gate; or z alone
  void* c;           // [rows, M]
  float* sensed;     // [rows, *]: what is full of v and l, then k and q
  void* low;         // [rows, greater of the ranks]
  float* low_float;  // the same, while a bias is added to it
  float* value;      // [rows, M]
  float* certainty;  // [rows, M]: L; first l
  float* kq;         // [rows, 2 Sn]
  float* y;          // [rows, M]
  float* partials;
  void* mixed;  // [rows, M]: input of the last product
  int64_t wide_stride, sensed_stride, value_stride, certainty_stride;
};

class KalmanCudaLayer : public Layer {
 public:
  KalmanCudaLayer(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context);
  void Forward(const Step& step, TensorView x) override;

 private:
  // Rows [first, ...) of W_sensor.
  LayerMatrix SensorFrom(int64_t first) const {
    return sensor_.From(first, options_.channels, matrices_);
  }
  void Convolve(const Step& step, const Rows& rows) const;
  void Sense(const Step& step, const Rows& rows) const;
  void SenseLow(const Step& step, const Rows& rows, int64_t first, int64_t rank,
                const LayerMatrix& up, float* y) const;
  void Filter(const Step& step, const Rows& rows) const;
  void Output(const Step& step, const Rows& rows, float* x) const;

  const KalmanOptions options_;
  const DType matrices_;
  CudaGemm* const gemm_;
  void* const scratch_;
  LayerNorm norm_;
  LayerMatrix in_, conv_, sensor_, value_up_, noise_up_, out_;
  const float* skip_;
  float *transition_ = nullptr, *noise_ = nullptr;  // [M, Sn]
  FieldView precision_, information_, history_;
};

KalmanCudaLayer::KalmanCudaLayer(const LayerSpec& spec, const LayerParts& parts,
                                 const CudaContext& context)
    : options_(spec), matrices_(context.matrices), gemm_(context.gemm), scratch_(parts.scratch) {
  const LayerNeeds needs = KalmanNeeds(spec, {.matrices = matrices_});
  norm_ = {.weight = FindFloats(needs, parts, "norm.weight"), .eps = options_.norm_eps};
  in_ = FindMatrix(needs, parts, "in");
  conv_ = FindMatrix(needs, parts, "conv");
  sensor_ = FindMatrix(needs, parts, "sensor");
  value_up_ = FindMatrix(needs, parts, "value_up");
  noise_up_ = FindMatrix(needs, parts, "noise_up");
  out_ = FindMatrix(needs, parts, "out");
  skip_ = FindFloats(needs, parts, "skip");
  precision_ = *FindState(needs, parts, "precision");
  information_ = *FindState(needs, parts, "information");
  if (const FieldView* field = FindState(needs, parts, "conv")) history_ = *field;

  const KalmanDynamicsArgs dynamics = {.count = options_.states(),
                                       .step_raw = FindFloats(needs, parts, "step_raw"),
                                       .rate_log = FindFloats(needs, parts, "rate_log"),
                                       .process_noise = FindFloats(needs, parts, "process_noise"),
                                       .discretization = options_.discretization,
                                       .floored = options_.floored_process_noise,
                                       .noise_max = options_.clip.value_or(0.0f)};
  const int64_t bytes = options_.states() * static_cast<int64_t>(sizeof(float));
  transition_ = static_cast<float*>(context.keep(bytes));
  noise_ = static_cast<float*>(context.keep(bytes));
  if (transition_ != nullptr && noise_ != nullptr) {
    DiscretizeCuda(context.stream, dynamics, transition_, noise_);
  }
}

// c = act(conv(z) + bias)
void KalmanCudaLayer::Convolve(const Step& step, const Rows& rows) const {
  if (options_.conv_width == 0) {
    KalmanCopyCuda(step.stream, {.rows = step.rows,
                                 .width = options_.channels,
                                 .x = rows.wide,
                                 .x_stride = rows.wide_stride,
                                 .y = rows.c,
                                 .y_type = matrices_});
    return;
  }
  ShortConvCuda(step, {.channels = options_.channels,
                       .width = options_.conv_width,
                       .x = rows.wide,
                       .x_stride = rows.wide_stride,
                       .taps = conv_.weight,
                       .taps_type = matrices_,
                       .bias = conv_.bias,
                       .activation = ActivationOf(options_.conv_activation),
                       .state = history_,
                       .out = rows.c,
                       .out_type = matrices_,
                       .out_stride = options_.channels});
}

// y = W_up of rows [first, first + rank) of W_sensor.
void KalmanCudaLayer::SenseLow(const Step& step, const Rows& rows, int64_t first, int64_t rank,
                               const LayerMatrix& up, float* y) const {
  CudaProduct down = ProductOf(step, matrices_, SensorFrom(first), options_.channels, rank);
  down.x = rows.c;
  // A bias is added in float.
  const bool rounds_later = rows.low_float != nullptr;
  down.y = rounds_later ? rows.low_float : rows.low;
  down.y_type = rounds_later ? DType::kF32 : matrices_;
  RunProduct(gemm_, down);
  if (rounds_later) {
    KalmanCopyCuda(step.stream, {.rows = step.rows,
                                 .width = rank,
                                 .x = rows.low_float,
                                 .x_stride = rank,
                                 .y = rows.low,
                                 .y_type = matrices_});
  }
  CudaProduct product = ProductOf(step, matrices_, up, rank, options_.channels);
  product.x = rows.low;
  product.y = y;
  RunProduct(gemm_, product);
}

// v, certainty, k and q from c, and the gates' factors.
void KalmanCudaLayer::Sense(const Step& step, const Rows& rows) const {
  const KalmanOptions& o = options_;
  const int64_t channels = o.channels;
  std::array<CudaProduct, 2> products;
  size_t count = 0;
  int64_t column = 0;
  // Rows [first, first + width) of W_sensor become the next columns of `sensed`.
  const auto sense = [&](int64_t first, int64_t width) {
    CudaProduct product = ProductOf(step, matrices_, SensorFrom(first), channels, width);
    product.x = rows.c;
    product.y = rows.sensed + column;
    product.y_stride = rows.sensed_stride;
    column += width;
    products[count++] = product;
  };
  const int64_t noise_at = o.value_width(), keys_at = noise_at + o.noise_width();
  const bool full_value = o.value == Value::kFull, full_noise = o.noise == Noise::kFull;
  // What lies side by side in W_sensor is one product.
  if (full_value && !full_noise) sense(0, channels);
  const int64_t first = !full_noise ? keys_at : full_value ? 0 : noise_at;
  sense(first, keys_at + 2 * o.state_dim - first);
  RunProducts(gemm_, std::span(products).first(count));
  if (o.value == Value::kLow) SenseLow(step, rows, 0, o.value_rank, value_up_, rows.value);
  if (!full_noise) SenseLow(step, rows, noise_at, o.noise_rank, noise_up_, rows.certainty);
  KalmanSenseCuda(step.stream, {.rows = step.rows,
                                .channels = channels,
                                .state_dim = o.state_dim,
                                .gate = o.gated() ? rows.wide + channels : nullptr,
                                .gate_stride = rows.wide_stride,
                                .activation = ActivationOf(o.gate),
                                .certainty = rows.certainty,
                                .certainty_stride = rows.certainty_stride,
                                .noise_min = o.noise_min,
                                .noise_max = o.noise_max.value_or(0.0f),
                                .kq = rows.kq,
                                .kq_stride = rows.sensed_stride,
                                .qk_norm = o.qk_norm,
                                .clip = o.clip.value_or(0.0f),
                                .c = rows.c,
                                .c_type = matrices_,
                                .value = o.value == Value::kConv ? rows.value : nullptr});
}

// y, and what a step asks about the filters.
void KalmanCudaLayer::Filter(const Step& step, const Rows& rows) const {
  const KalmanOptions& o = options_;
  KalmanCudaReadouts readouts;
  if (step.readouts != nullptr) {
    readouts = {.out = step.readouts,
                .weight = o.gated() ? rows.wide + o.channels : nullptr,
                .weight_stride = rows.wide_stride,
                .partials = rows.partials};
  }
  KalmanCuda(step, {.channels = o.channels,
                    .state_dim = o.state_dim,
                    .transition = transition_,
                    .noise = noise_,
                    .v = rows.value,
                    .certainty = rows.certainty,
                    .k = rows.kq,
                    .q = rows.kq + o.state_dim,
                    .v_stride = rows.value_stride,
                    .certainty_stride = rows.certainty_stride,
                    .k_stride = rows.sensed_stride,
                    .q_stride = rows.sensed_stride,
                    .prior = o.prior_readout,
                    .precision = precision_,
                    .information = information_,
                    .y = rows.y,
                    .readouts = readouts});
}

// x += W_out ((y + skip c) gate)
void KalmanCudaLayer::Output(const Step& step, const Rows& rows, float* x) const {
  const KalmanOptions& o = options_;
  KalmanOutputCuda(step.stream, {.rows = step.rows,
                                 .channels = o.channels,
                                 .y = rows.y,
                                 .c = rows.c,
                                 .type = matrices_,
                                 .skip = o.skip == Skip::kNone ? nullptr : skip_,
                                 .skip_per_channel = o.skip == Skip::kChannel,
                                 .gate = o.gated() ? rows.wide + o.channels : nullptr,
                                 .gate_stride = rows.wide_stride,
                                 .out = rows.mixed});
  AddProduct(gemm_, step, matrices_, out_, o.channels, o.d_model, rows.mixed, x);
}

void KalmanCudaLayer::Forward(const Step& step, TensorView x) {
  const KalmanOptions& o = options_;
  ScratchCutter cutter(scratch_, step.rows);
  const Rows rows(o, matrices_, &cutter);
  CudaProduct in = NormedProductOf(step, matrices_, in_, o.d_model, rows.wide_stride, norm_,
                                   x.as<float>(), rows.normed);
  in.y = rows.wide;
  RunProduct(gemm_, in);
  Convolve(step, rows);
  Sense(step, rows);
  Filter(step, rows);
  Output(step, rows, x.as<float>());
}

std::unique_ptr<Layer> Make(const LayerSpec& spec, const LayerParts& parts,
                            const CudaContext& context) {
  return std::make_unique<KalmanCudaLayer>(spec, parts, context);
}

}  // namespace

const CudaLayerType& KalmanCudaType() {
  static constexpr CudaLayerType kType = {
      .name = "kalman", .make = Make, .scratch = ScratchOf<Rows, KalmanOptions>};
  return kType;
}

}  // namespace eddy
