#include <cuda_runtime.h>

#include <array>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/layer_product.h"
#include "kernels/layers/attention/attention.h"
#include "kernels/layers/attention/attention_cuda.h"
#include "kernels/rules/attention/attention_cuda.h"

namespace eddy {
namespace {

constexpr int64_t kAlign = 256;
int64_t Aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t QkvWidth(const AttentionOptions& o) { return o.q_width() + 2 * o.kv_width(); }

class AttentionLayerCuda : public Layer {
 public:
  AttentionLayerCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
      : options_(spec),
        context_(context),
        scratch_(static_cast<std::byte*>(parts.scratch)),
        frequencies_(KeepFrequencies(context)) {
    const LayerNeeds needs =
        AttentionNeeds(spec, {.matrices = context.matrices, .kv = context.matrices});
    const int64_t q = options_.q_width(), kv = options_.kv_width();
    projections_ = {{{.weight = FindMatrix(needs, parts, "q").weight, .width = q},
                     {.weight = FindMatrix(needs, parts, "k").weight, .width = kv, .at = q},
                     {.weight = FindMatrix(needs, parts, "v").weight, .width = kv, .at = q + kv}}};
    q_bias_ = FindFloats(needs, parts, "q.bias");
    k_bias_ = FindFloats(needs, parts, "k.bias");
    v_bias_ = FindFloats(needs, parts, "v.bias");
    out_ = FindMatrix(needs, parts, "out");
    norm_ = {.weight = FindFloats(needs, parts, "norm.weight"), .eps = options_.norm_eps};
    keys_ = *FindKv(needs, parts, "k");
    values_ = *FindKv(needs, parts, "v");
    EDDY_CHECK(keys_.dtype == context.matrices && values_.dtype == context.matrices);
    JoinProjections();
  }

  void Forward(const Step& step, TensorView x_view) override {
    const int64_t rows = step.rows, d_model = options_.d_model, width = QkvWidth(options_);
    auto* const x = x_view.as<float>();
    const int64_t element = SizeOf(context_.matrices);
    std::byte* at = scratch_;
    auto* const qkv = reinterpret_cast<float*>(at);                  // [rows, H d + 2 HKV d]
    std::byte* const normed = at += Aligned(rows * width * 4);       // [rows, D]
    std::byte* const out = at += Aligned(rows * d_model * element);  // [rows, H, d]
    std::byte* const rule = at += Aligned(rows * options_.q_width() * element);
    std::array<CudaProduct, 3> products;
    size_t count = 0;
    for (const Projection& p : projections_) {
      if (p.width == 0) continue;
      CudaProduct& product = products[count++];
      product = NormedProductOf(step, context_.matrices, {.weight = p.weight}, d_model, p.width,
                                norm_, x, normed);
      product.y = qkv + p.at;
      product.y_stride = width;
    }
    RunProducts(context_.gemm, std::span(products).first(count));
    AttentionCuda(step, {.shape = options_.shape,
                         .window = options_.window,
                         .type = context_.matrices,
                         .frequencies = frequencies_,
                         .q = qkv,
                         .k = qkv + options_.q_width(),
                         .v = qkv + options_.q_width() + options_.kv_width(),
                         .qkv_stride = width,
                         .q_bias = q_bias_,
                         .k_bias = k_bias_,
                         .v_bias = v_bias_,
                         .keys = keys_,
                         .values = values_,
                         .out = out,
                         .scratch = rule});
    CudaProduct last = ProductOf(step, context_.matrices, out_, options_.q_width(), d_model);
    last.x = out;
    last.y = x;
    last.accumulate = true;
    RunProduct(context_.gemm, last);
  }

 private:
  struct Projection {
    const std::byte* weight = nullptr;
    int64_t width = 0;  // 0: part of another one's product
    int64_t at = 0;     // in a row of [q, k, v]
  };

  // Null if there is no memory: the device fails in Finish then, and nothing of this is used.
  const double* KeepFrequencies(const CudaContext& context) const {
    const std::vector<double> host = RopeFrequencies(options_.rope_theta, options_.shape.head_dim);
    const size_t bytes = host.size() * sizeof(double);
    void* const kept = context.keep(static_cast<int64_t>(bytes));
    if (kept == nullptr) return nullptr;
    const auto stream = static_cast<cudaStream_t>(context.stream);
    static_cast<void>(cudaMemcpyAsync(kept, host.data(), bytes, cudaMemcpyHostToDevice, stream));
    static_cast<void>(cudaStreamSynchronize(stream));  // the table on the host ends here
    return static_cast<const double*>(kept);
  }

  // Weights that follow each other in memory make one product.
  void JoinProjections() {
    const int64_t row_bytes = options_.d_model * SizeOf(context_.matrices);
    for (size_t i = projections_.size() - 1; i > 0; --i) {
      Projection& before = projections_[i - 1];
      if (projections_[i].weight != before.weight + before.width * row_bytes) continue;
      before.width += projections_[i].width;
      projections_[i].width = 0;
    }
  }

  const AttentionOptions options_;
  const CudaContext context_;
  std::byte* const scratch_;
  const double* const frequencies_;
  LayerNorm norm_ = {};
  std::array<Projection, 3> projections_ = {};
  const float *q_bias_ = nullptr, *k_bias_ = nullptr, *v_bias_ = nullptr;  // null: none
  LayerMatrix out_ = {};
  FieldView keys_ = {}, values_ = {};
};

std::unique_ptr<Layer> Make(const LayerSpec& spec, const LayerParts& parts,
                            const CudaContext& context) {
  return std::make_unique<AttentionLayerCuda>(spec, parts, context);
}

CudaScratch Scratch(const LayerSpec& spec, DType matrices) {
  const AttentionOptions o(spec);
  const int64_t element = SizeOf(matrices);
  return {.bytes = AttentionCudaScratchBytes(o.shape) + 3 * kAlign,
          .bytes_per_row = QkvWidth(o) * 4 + (o.d_model + o.q_width()) * element +
                           AttentionCudaScratchBytesPerRow(o.shape)};
}

}  // namespace

const CudaLayerType& AttentionCudaType() {
  static constexpr CudaLayerType kType = {.name = "attention", .make = Make, .scratch = Scratch};
  return kType;
}

}  // namespace eddy
