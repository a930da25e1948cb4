// The CUDA version of layers "mamba" and "longhorn": products, the convolution, the scan, and two
// element-wise kernels around it (mamba_parts_cuda.h).
#include "kernels/layers/mamba/mamba_cuda.h"

#include <array>
#include <memory>

#include "base/check.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/layer_product.h"
#include "kernels/cuda/scratch.h"
#include "kernels/layers/mamba/mamba.h"
#include "kernels/layers/mamba/mamba_parts_cuda.h"
#include "kernels/rules/selective_scan/selective_scan_cuda.h"
#include "kernels/rules/short_conv/short_conv_cuda.h"

namespace eddy {
namespace {

// Where the intermediate tensors of a step lie in scratch.
struct Rows {
  Rows(const MambaOptions& o, DType matrices, ScratchCutter* cutter)
      : normed(cutter->Take(matrices, o.d_model)),
        wide(cutter->Floats(2 * o.channels)),
        input(cutter->Take(matrices, o.channels)),
        low(cutter->Take(matrices, o.step_rank)),
        kq(cutter->Floats(2 * o.state_dim)),
        step(cutter->Floats(o.channels)),
        out(cutter->Floats(o.channels)),
        mixed(cutter->Take(matrices, o.channels)) {}

  void* normed;  // [rows, D]
  float* wide;   // [rows, 2 I]: u, z
  void* input;   // [rows, I]: s
  void* low;     // [rows, R]: r
  float* kq;     // [rows, 2 N]
  float* step;   // [rows, I]: d, then delta or e
  float* out;    // [rows, I]
  void* mixed;   // [rows, I]: input of the last product
};

class MambaCuda : public Layer {
 public:
  MambaCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context);
  void Forward(const Step& step, TensorView x) override;

 private:
  void Project(const Step& step, const Rows& rows, const float* x) const;
  void Select(const Step& step, const Rows& rows) const;

  const MambaOptions options_;
  const DType matrices_;
  CudaGemm* const gemm_;
  void* const scratch_;
  FieldView state_, conv_state_;
  LayerNorm norm_;
  LayerMatrix in_, conv_, select_, step_up_, out_;
  const float* skip_;
  float* rates_ = nullptr;  // as the rule wants them, [N, I]; null: Longhorn
};

MambaCuda::MambaCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
    : options_(spec), matrices_(context.matrices), gemm_(context.gemm), scratch_(parts.scratch) {
  const LayerNeeds needs = MambaNeeds(spec, {.matrices = matrices_});
  norm_ = {.weight = FindFloats(needs, parts, "norm.weight"), .eps = options_.norm_eps};
  in_ = FindMatrix(needs, parts, "in");
  conv_ = FindMatrix(needs, parts, "conv");
  select_ = FindMatrix(needs, parts, "select");
  step_up_ = FindMatrix(needs, parts, "step_up");
  out_ = FindMatrix(needs, parts, "out");
  skip_ = FindFloats(needs, parts, "skip");
  state_ = *FindState(needs, parts, "state");
  conv_state_ = *FindState(needs, parts, "conv");
  if (options_.longhorn) return;
  const int64_t count = options_.channels * options_.state_dim;
  rates_ = static_cast<float*>(context.keep(count * static_cast<int64_t>(sizeof(float))));
  if (rates_ == nullptr) return;
  SelectiveScanRatesCuda(context.stream, options_.channels, options_.state_dim,
                         FindFloats(needs, parts, "decay_rate_log"), rates_);
}

// z and s.
void MambaCuda::Project(const Step& step, const Rows& rows, const float* x) const {
  const MambaOptions& o = options_;
  CudaProduct in =
      NormedProductOf(step, matrices_, in_, o.d_model, 2 * o.channels, norm_, x, rows.normed);
  in.y = rows.wide;
  RunProduct(gemm_, in);
  ShortConvCuda(step, {.channels = o.channels,
                       .width = o.conv_width,
                       .x = rows.wide,
                       .x_stride = 2 * o.channels,
                       .taps = conv_.weight,
                       .taps_type = matrices_,
                       .bias = conv_.bias,
                       .activation = Activation::kSilu,
                       .state = conv_state_,
                       .out = rows.input,
                       .out_type = matrices_,
                       .out_stride = o.channels});
}

// k, q and the steps, from s.
void MambaCuda::Select(const Step& step, const Rows& rows) const {
  const MambaOptions& o = options_;
  CudaProduct low = ProductOf(step, matrices_, select_, o.channels, o.step_rank);
  low.x = rows.input;
  low.y = rows.low;
  low.y_type = matrices_;
  CudaProduct kq = ProductOf(step, matrices_, select_.From(o.step_rank, o.channels, matrices_),
                             o.channels, 2 * o.state_dim);
  kq.x = rows.input;
  kq.y = rows.kq;
  RunProducts(gemm_, std::array{low, kq});
  CudaProduct up = ProductOf(step, matrices_, step_up_, o.step_rank, o.channels);
  up.x = rows.low;
  up.y = rows.step;
  RunProduct(gemm_, up);
  MambaStepsCuda(step.stream, {.rows = step.rows,
                               .channels = o.channels,
                               .state_dim = o.state_dim,
                               .longhorn = o.longhorn,
                               .step = rows.step,
                               .k = rows.kq,
                               .k_stride = 2 * o.state_dim});
}

void MambaCuda::Forward(const Step& step, TensorView x) {
  const MambaOptions& o = options_;
  ScratchCutter cutter(scratch_, step.rows);
  const Rows rows(o, matrices_, &cutter);
  Project(step, rows, x.as<float>());
  Select(step, rows);
  SelectiveScanCuda(step, {.channels = o.channels,
                           .states = o.state_dim,
                           .x = rows.input,
                           .x_type = matrices_,
                           .step = rows.step,
                           .k = rows.kq,
                           .q = rows.kq + o.state_dim,
                           .row_stride = 2 * o.state_dim,
                           .rates = rates_,
                           .state = state_,
                           .out = rows.out});
  MambaOutputCuda(step.stream, {.rows = step.rows,
                                .channels = o.channels,
                                .o = rows.out,
                                .s = rows.input,
                                .type = matrices_,
                                .skip = skip_,
                                .z = rows.wide + o.channels,
                                .z_stride = 2 * o.channels,
                                .out = rows.mixed});
  AddProduct(gemm_, step, matrices_, out_, o.channels, o.d_model, rows.mixed, x.as<float>());
}

std::unique_ptr<Layer> Make(const LayerSpec& spec, const LayerParts& parts,
                            const CudaContext& context) {
  return std::make_unique<MambaCuda>(spec, parts, context);
}

}  // namespace

const CudaLayerType& MambaCudaType(std::string_view name) {
  static constexpr CudaLayerType kMamba = {
      .name = "mamba", .make = Make, .scratch = ScratchOf<Rows, MambaOptions>};
  static constexpr CudaLayerType kLonghorn = {
      .name = "longhorn", .make = Make, .scratch = ScratchOf<Rows, MambaOptions>};
  EDDY_CHECK(name == "mamba" || name == "longhorn");
  return name == "mamba" ? kMamba : kLonghorn;
}

}  // namespace eddy
