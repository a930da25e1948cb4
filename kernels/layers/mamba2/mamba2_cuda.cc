// The CUDA version of layer "mamba2": products, the convolution, the decay scan, and two kernels
// around it (mamba2_parts_cuda.h).
#include "kernels/layers/mamba2/mamba2_cuda.h"

#include <limits>
#include <memory>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/layer_product.h"
#include "kernels/cuda/scratch.h"
#include "kernels/layers/mamba2/mamba2.h"
#include "kernels/layers/mamba2/mamba2_parts_cuda.h"
#include "kernels/rules/decay_scan/decay_scan_cuda.h"
#include "kernels/rules/short_conv/short_conv_cuda.h"

namespace eddy {
namespace {

DecayScanShape ShapeOf(const Mamba2Options& o) {
  return {.states = o.heads,
          .key_heads = o.groups,
          .query_heads = o.groups,
          .key_dim = o.state_dim,
          .value_dim = o.head_dim};
}

// Where the intermediate tensors of a step lie in scratch.
struct Rows {
  Rows(const Mamba2Options& o, DType matrices, ScratchCutter* cutter)
      : wide_stride(RoundUp(o.in_width())),
        after_stride(RoundUp(o.conv_channels())),
        normed(cutter->Take(matrices, o.d_model)),
        wide(cutter->Floats(wide_stride)),
        after(cutter->Floats(after_stride)),
        delta(cutter->Floats(o.heads)),
        decay(cutter->Floats(o.heads)),
        out(cutter->Floats(o.inner())),
        scan(TakeDecayScratch(ShapeOf(o), /*channel_decay=*/false, matrices, cutter)),
        mixed(cutter->Take(matrices, o.inner())) {}
  // So that four can be read at once in every row.
  static int64_t RoundUp(int64_t width) { return (width + 3) / 4 * 4; }

  int64_t wide_stride, after_stride;
  void* normed;  // [rows, D]
  float* wide;   // [rows, 2 I + 2 G N + H]: z, u, d
  float* after;  // [rows, I + 2 G N]: s, B, C
  float* delta;  // [rows, H]
  float* decay;  // [rows, H]
  float* out;    // [rows, H, P]
  void* scan;    // of the decay scan
  void* mixed;   // [rows, I]: input of the last product
};

class Mamba2Cuda : public Layer {
 public:
  Mamba2Cuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context);
  void Forward(const Step& step, TensorView x) override;

 private:
  void Project(const Step& step, const Rows& rows, const float* x) const;
  void Scan(const Step& step, const Rows& rows) const;

  const Mamba2Options options_;
  const DType matrices_;
  CudaGemm* const gemm_;
  void* const scratch_;
  FieldView state_, conv_state_;
  LayerNorm norm_;
  LayerMatrix in_, conv_, out_;
  const float *step_bias_, *rate_log_, *skip_, *out_norm_;
};

Mamba2Cuda::Mamba2Cuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
    : options_(spec), matrices_(context.matrices), gemm_(context.gemm), scratch_(parts.scratch) {
  const LayerNeeds needs = Mamba2Needs(spec, {.matrices = matrices_});
  norm_ = {.weight = FindFloats(needs, parts, "norm.weight"), .eps = options_.norm_eps};
  in_ = FindMatrix(needs, parts, "in");
  conv_ = FindMatrix(needs, parts, "conv");
  out_ = FindMatrix(needs, parts, "out");
  step_bias_ = FindFloats(needs, parts, "step_bias");
  rate_log_ = FindFloats(needs, parts, "decay_rate_log");
  skip_ = FindFloats(needs, parts, "skip");
  out_norm_ = FindFloats(needs, parts, "out_norm.weight");
  state_ = *FindState(needs, parts, "state");
  conv_state_ = *FindState(needs, parts, "conv");
}

// z, d and silu(conv(u)), and the steps from d.
void Mamba2Cuda::Project(const Step& step, const Rows& rows, const float* x) const {
  const Mamba2Options& o = options_;
  CudaProduct in =
      NormedProductOf(step, matrices_, in_, o.d_model, o.in_width(), norm_, x, rows.normed);
  in.y = rows.wide;
  in.y_stride = rows.wide_stride;
  RunProduct(gemm_, in);
  ShortConvCuda(step, {.channels = o.conv_channels(),
                       .width = o.conv_width,
                       .x = rows.wide + o.inner(),
                       .x_stride = rows.wide_stride,
                       .taps = conv_.weight,
                       .taps_type = matrices_,
                       .bias = conv_.bias,
                       .activation = Activation::kSilu,
                       .state = conv_state_,
                       .out = rows.after,
                       .out_stride = rows.after_stride});
  Mamba2StepsCuda(step.stream,
                  {.rows = step.rows,
                   .heads = o.heads,
                   .d = rows.wide + o.inner() + o.conv_channels(),
                   .d_stride = rows.wide_stride,
                   .step_bias = step_bias_,
                   .rate_log = rate_log_,
                   .step_min = o.step_min,
                   .step_max = o.step_max.value_or(std::numeric_limits<float>::infinity()),
                   .delta = rows.delta,
                   .decay = rows.decay});
}

void Mamba2Cuda::Scan(const Step& step, const Rows& rows) const {
  const Mamba2Options& o = options_;
  DecayScanCuda(step, {.shape = ShapeOf(o),
                       .q = rows.after + o.inner() + o.groups * o.state_dim,
                       .k = rows.after + o.inner(),
                       .v = rows.after,
                       .query_stride = rows.after_stride,
                       .key_stride = rows.after_stride,
                       .value_stride = rows.after_stride,
                       .write = rows.delta,
                       .decay = rows.decay,
                       .state = state_,
                       .out = rows.out,
                       .scratch = rows.scan});
}

void Mamba2Cuda::Forward(const Step& step, TensorView x) {
  const Mamba2Options& o = options_;
  ScratchCutter cutter(scratch_, step.rows);
  const Rows rows(o, matrices_, &cutter);
  Project(step, rows, x.as<float>());
  Scan(step, rows);
  Mamba2OutputCuda(step.stream, {.rows = step.rows,
                                 .heads = o.heads,
                                 .head_dim = o.head_dim,
                                 .groups = o.groups,
                                 .eps = o.norm_eps,
                                 .y = rows.out,
                                 .s = rows.after,
                                 .s_stride = rows.after_stride,
                                 .z = rows.wide,
                                 .z_stride = rows.wide_stride,
                                 .skip = skip_,
                                 .norm = out_norm_,
                                 .out = rows.mixed,
                                 .out_type = matrices_});
  AddProduct(gemm_, step, matrices_, out_, o.inner(), o.d_model, rows.mixed, x.as<float>());
}

std::unique_ptr<Layer> Make(const LayerSpec& spec, const LayerParts& parts,
                            const CudaContext& context) {
  return std::make_unique<Mamba2Cuda>(spec, parts, context);
}

}  // namespace

const CudaLayerType& Mamba2CudaType() {
  static constexpr CudaLayerType kType = {
      .name = "mamba2", .make = Make, .scratch = ScratchOf<Rows, Mamba2Options>};
  return kType;
}

}  // namespace eddy
