// The CUDA version of layer "gla": products, the decay scan, and two kernels around it
// (gla_parts_cuda.h).
#include "kernels/layers/gla/gla_cuda.h"

#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/cuda/layer_product.h"
#include "kernels/cuda/scratch.h"
#include "kernels/layers/gla/gla.h"
#include "kernels/layers/gla/gla_parts_cuda.h"
#include "kernels/rules/decay_scan/decay_scan_cuda.h"

namespace eddy {
namespace {

DecayScanShape ShapeOf(const GlaOptions& o) {
  return {.states = o.kv_heads,
          .key_heads = o.kv_heads,
          .query_heads = o.heads,
          .reads = o.heads / o.kv_heads,
          .key_dim = o.key_dim,
          .value_dim = o.value_dim};
}

// Where the intermediate tensors of a step lie in scratch; all are dense.
struct Rows {
  Rows(const GlaOptions& o, DType matrices, ScratchCutter* cutter)
      : normed(cutter->Take(matrices, o.d_model)),
        q(cutter->Floats(o.heads * o.key_dim)),
        k(cutter->Floats(o.kv_heads * o.key_dim)),
        v(cutter->Floats(o.kv_heads * o.value_dim)),
        gate(cutter->Floats(o.heads * o.value_dim)),
        low(cutter->Take(matrices, o.decay_rank)),
        decay(cutter->Floats(o.kv_heads * o.key_dim)),
        out(cutter->Floats(o.heads * o.value_dim)),
        scan(TakeDecayScratch(ShapeOf(o), /*channel_decay=*/true, matrices, cutter)),
        mixed(cutter->Take(matrices, o.heads * o.value_dim)) {}

  void* normed;  // [rows, D]
  float* q;      // [rows, H, K]
  float* k;      // [rows, HKV, K]
  float* v;      // [rows, HKV, V]
  float* gate;   // [rows, H, V]
  void* low;     // [rows, r]
  float* decay;  // [rows, HKV, K]: factors
  float* out;    // [rows, H, V]
  void* scan;    // of the decay scan
  void* mixed;   // [rows, H, V]: input of the last product
};

class GlaCuda : public Layer {
 public:
  GlaCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context);
  void Forward(const Step& step, TensorView x) override;

 private:
  void Project(const Step& step, const Rows& rows, const float* x) const;
  void Scan(const Step& step, const Rows& rows) const;

  const GlaOptions options_;
  const DType matrices_;
  CudaGemm* const gemm_;
  void* const scratch_;
  FieldView state_;
  LayerNorm norm_;
  LayerMatrix q_, k_, v_, decay_down_, decay_up_, gate_, out_;
  const float* out_norm_;
};

GlaCuda::GlaCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
    : options_(spec), matrices_(context.matrices), gemm_(context.gemm), scratch_(parts.scratch) {
  const LayerNeeds needs = GlaNeeds(spec, {.matrices = matrices_});
  norm_ = {.weight = FindFloats(needs, parts, "norm.weight"), .eps = options_.norm_eps};
  q_ = FindMatrix(needs, parts, "q");
  k_ = FindMatrix(needs, parts, "k");
  v_ = FindMatrix(needs, parts, "v");
  decay_down_ = FindMatrix(needs, parts, "decay_down");
  decay_up_ = FindMatrix(needs, parts, "decay_up");
  gate_ = FindMatrix(needs, parts, "gate");
  out_ = FindMatrix(needs, parts, "out");
  out_norm_ = FindFloats(needs, parts, "out_norm.weight");
  state_ = *FindState(needs, parts, "state");
}

// q, k, v, z and the decay.
void GlaCuda::Project(const Step& step, const Rows& rows, const float* x) const {
  const GlaOptions& o = options_;
  const int64_t keys = o.kv_heads * o.key_dim;
  const auto project = [&](const LayerMatrix& matrix, int64_t width, void* y, DType y_type) {
    CudaProduct product =
        NormedProductOf(step, matrices_, matrix, o.d_model, width, norm_, x, rows.normed);
    product.y = y;
    product.y_type = y_type;
    return product;
  };
  RunProducts(gemm_, std::array{project(q_, o.heads * o.key_dim, rows.q, DType::kF32),
                                project(k_, keys, rows.k, DType::kF32),
                                project(v_, o.kv_heads * o.value_dim, rows.v, DType::kF32),
                                project(gate_, o.heads * o.value_dim, rows.gate, DType::kF32),
                                project(decay_down_, o.decay_rank, rows.low, matrices_)});
  CudaProduct up = ProductOf(step, matrices_, decay_up_, o.decay_rank, keys);
  up.x = rows.low;
  up.y = rows.decay;
  RunProduct(gemm_, up);
  GlaDecayCuda(step.stream, step.rows * keys, o.decay_divisor,
               o.decay_min.value_or(-std::numeric_limits<float>::infinity()), rows.decay);
}

void GlaCuda::Scan(const Step& step, const Rows& rows) const {
  const GlaOptions& o = options_;
  DecayScanCuda(step, {.shape = ShapeOf(o),
                       .q = rows.q,
                       .k = rows.k,
                       .v = rows.v,
                       .query_stride = o.heads * o.key_dim,
                       .key_stride = o.kv_heads * o.key_dim,
                       .value_stride = o.kv_heads * o.value_dim,
                       .query_scale = 1.0f / std::sqrt(static_cast<float>(o.key_dim)),
                       .decay = rows.decay,
                       .channel_decay = true,
                       .state = state_,
                       .out = rows.out,
                       .scratch = rows.scan});
}

void GlaCuda::Forward(const Step& step, TensorView x) {
  const GlaOptions& o = options_;
  ScratchCutter cutter(scratch_, step.rows);
  const Rows rows(o, matrices_, &cutter);
  Project(step, rows, x.as<float>());
  Scan(step, rows);
  GlaOutputCuda(step.stream, {.rows = step.rows,
                              .heads = o.heads,
                              .value_dim = o.value_dim,
                              .eps = o.norm_eps,
                              .o = rows.out,
                              .z = rows.gate,
                              .norm = out_norm_,
                              .out = rows.mixed,
                              .out_type = matrices_});
  AddProduct(gemm_, step, matrices_, out_, o.heads * o.value_dim, o.d_model, rows.mixed,
             x.as<float>());
}

std::unique_ptr<Layer> Make(const LayerSpec& spec, const LayerParts& parts,
                            const CudaContext& context) {
  return std::make_unique<GlaCuda>(spec, parts, context);
}

}  // namespace

const CudaLayerType& GlaCudaType() {
  static constexpr CudaLayerType kType = {
      .name = "gla", .make = Make, .scratch = ScratchOf<Rows, GlaOptions>};
  return kType;
}

}  // namespace eddy
