// The CUDA version of layer "mlstm": products, the decay scan for memory and normaliser, and two
// kernels around it (mlstm_parts_cuda.h).
#include "kernels/layers/mlstm/mlstm_cuda.h"

#include <array>
#include <cmath>
#include <memory>

#include "kernels/cuda/layer_product.h"
#include "kernels/cuda/scratch.h"
#include "kernels/layers/mlstm/mlstm.h"
#include "kernels/layers/mlstm/mlstm_parts_cuda.h"
#include "kernels/rules/decay_scan/decay_scan_cuda.h"

namespace eddy {
namespace {

DecayScanShape ShapeOf(const MlstmOptions& o) {
  return {.states = o.heads,
          .key_heads = o.heads,
          .query_heads = o.heads,
          .key_dim = o.key_dim,
          .value_dim = o.value_dim};
}

// Where the intermediate tensors of a step lie in scratch; all are dense.
struct Rows {
  Rows(const MlstmOptions& o, DType matrices, ScratchCutter* cutter)
      : normed(cutter->Take(matrices, o.d_model)),
        q(cutter->Floats(o.key_width())),
        k(cutter->Floats(o.key_width())),
        v(cutter->Floats(o.value_width())),
        gate(cutter->Floats(o.value_width())),
        write(cutter->Floats(o.heads)),
        keep(cutter->Floats(o.heads)),
        least(cutter->Floats(o.heads)),
        sums(cutter->Floats(o.heads)),
        out(cutter->Floats(o.value_width())),
        scan(TakeDecayScratch(ShapeOf(o), /*channel_decay=*/false, matrices, cutter)),
        mixed(cutter->Take(matrices, o.value_width())) {}

  void* normed;  // [rows, D]
  float* q;      // [rows, H, K]
  float* k;      // [rows, H, K]
  float* v;      // [rows, H, V]
  float* gate;   // [rows, H, V]
  float* write;  // [rows, H]: i, then what k is written with
  float* keep;   // [rows, H]: f, then the decay
  float* least;  // [rows, H]: e^-m'
  float* sums;   // [rows, H]: u.q
  float* out;    // [rows, H, V]
  void* scan;    // of the decay scan
  void* mixed;   // [rows, H, V]: input of the last product
};

class MlstmCuda : public Layer {
 public:
  MlstmCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context);
  void Forward(const Step& step, TensorView x) override;

 private:
  void Project(const Step& step, const Rows& rows, const float* x) const;
  void Scan(const Step& step, const Rows& rows) const;

  const MlstmOptions options_;
  const DType matrices_;
  CudaGemm* const gemm_;
  void* const scratch_;
  FieldView state_, normaliser_, stabiliser_;
  LayerNorm norm_;
  LayerMatrix q_, k_, v_, input_gate_, forget_gate_, gate_, out_;
  const float* out_norm_;
};

MlstmCuda::MlstmCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
    : options_(spec), matrices_(context.matrices), gemm_(context.gemm), scratch_(parts.scratch) {
  const LayerNeeds needs = MlstmNeeds(spec, {.matrices = matrices_});
  norm_ = {.weight = FindFloats(needs, parts, "norm.weight"), .eps = options_.norm_eps};
  q_ = FindMatrix(needs, parts, "q");
  k_ = FindMatrix(needs, parts, "k");
  v_ = FindMatrix(needs, parts, "v");
  input_gate_ = FindMatrix(needs, parts, "input_gate");
  forget_gate_ = FindMatrix(needs, parts, "forget_gate");
  gate_ = FindMatrix(needs, parts, "gate");
  out_ = FindMatrix(needs, parts, "out");
  out_norm_ = FindFloats(needs, parts, "out_norm.weight");
  state_ = *FindState(needs, parts, "state");
  normaliser_ = *FindState(needs, parts, "normaliser");
  stabiliser_ = *FindState(needs, parts, "stabiliser");
}

// q, k, v, z, and the gates i and f.
void MlstmCuda::Project(const Step& step, const Rows& rows, const float* x) const {
  const MlstmOptions& o = options_;
  const auto project = [&](const LayerMatrix& matrix, int64_t width, float* y) {
    CudaProduct product =
        NormedProductOf(step, matrices_, matrix, o.d_model, width, norm_, x, rows.normed);
    product.y = y;
    return product;
  };
  RunProducts(
      gemm_,
      std::array{project(q_, o.key_width(), rows.q), project(k_, o.key_width(), rows.k),
                 project(v_, o.value_width(), rows.v), project(gate_, o.value_width(), rows.gate),
                 project(input_gate_, o.heads, rows.write),
                 project(forget_gate_, o.heads, rows.keep)});
}

// C'q and u.q: the normaliser is a memory with one column, written with ones; it stays in float.
void MlstmCuda::Scan(const Step& step, const Rows& rows) const {
  const MlstmOptions& o = options_;
  MlstmGatesCuda(step, {.heads = o.heads,
                        .key_scale = 1.0f / std::sqrt(static_cast<float>(o.key_dim)),
                        .softcap = o.gate_softcap.value_or(0.0f),
                        .exponential_forget = o.exponential_forget,
                        .stabiliser = stabiliser_,
                        .write = rows.write,
                        .keep = rows.keep,
                        .least = rows.least});
  DecayScanCudaArgs args = {.shape = ShapeOf(o),
                            .q = rows.q,
                            .k = rows.k,
                            .v = rows.v,
                            .query_stride = o.key_width(),
                            .key_stride = o.key_width(),
                            .value_stride = o.value_width(),
                            .write = rows.write,
                            .decay = rows.keep,
                            .state = state_,
                            .out = rows.out,
                            .scratch = rows.scan};
  DecayScanCuda(step, args);
  args.shape.value_dim = 1;
  args.v = nullptr;
  args.state = normaliser_;
  args.out = rows.sums;
  DecayScanCuda(step, args);
}

void MlstmCuda::Forward(const Step& step, TensorView x) {
  const MlstmOptions& o = options_;
  ScratchCutter cutter(scratch_, step.rows);
  const Rows rows(o, matrices_, &cutter);
  Project(step, rows, x.as<float>());
  Scan(step, rows);
  MlstmOutputCuda(step.stream, {.rows = step.rows,
                                .heads = o.heads,
                                .value_dim = o.value_dim,
                                .eps = o.norm_eps,
                                .h = rows.out,
                                .sums = rows.sums,
                                .least = rows.least,
                                .z = rows.gate,
                                .norm = out_norm_,
                                .out = rows.mixed,
                                .out_type = matrices_});
  AddProduct(gemm_, step, matrices_, out_, o.value_width(), o.d_model, rows.mixed, x.as<float>());
}

std::unique_ptr<Layer> Make(const LayerSpec& spec, const LayerParts& parts,
                            const CudaContext& context) {
  return std::make_unique<MlstmCuda>(spec, parts, context);
}

}  // namespace

const CudaLayerType& MlstmCudaType() {
  static constexpr CudaLayerType kType = {
      .name = "mlstm", .make = Make, .scratch = ScratchOf<Rows, MlstmOptions>};
  return kType;
}

}  // namespace eddy
