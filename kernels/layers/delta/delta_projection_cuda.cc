#include "kernels/layers/delta/delta_projection_cuda.h"

#include <array>
#include <span>

#include "base/check.h"

namespace eddy {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

template <typename T>
const T* DataOf(const LayerNeeds& needs, const LayerParts& parts, const char* name) {
  const TensorView* const view = FindWeight(needs, parts, name);
  return view == nullptr ? nullptr : view->as<T>();
}

// The taps of q, k and v in their columns.
const float* MakeTaps(const DeltaOptions& o, const LayerNeeds& needs, const LayerParts& parts,
                      const CudaContext& context) {
  if (o.conv_width == 0) return nullptr;
  const DeltaColumns columns(o);
  auto* const taps =
      static_cast<float*>(context.keep(DeltaTaps(o.conv_width) * columns.gate * kFloat));
  if (taps == nullptr) return nullptr;
  const auto make = [&](const char* name, int64_t column) {
    const TensorView& weight = *FindWeight(needs, parts, name);
    DeltaTapsCuda(context.stream, {.weight = weight.data,
                                   .type = weight.dtype,
                                   .width = o.conv_width,
                                   .channels = weight.shape[0],
                                   .taps = taps + column,
                                   .taps_stride = columns.gate});
  };
  make("q_conv.weight", 0);
  make("k_conv.weight", columns.k);
  make("v_conv.weight", columns.v);
  return taps;
}

// Null if tokens have retentions of their own, or none.
const float* MakeFixedRetention(const DeltaOptions& o, const LayerNeeds& needs,
                                const LayerParts& parts, const CudaContext& context) {
  if (!o.scale) return nullptr;
  const bool constant = o.scale->retention == DeltaOptions::Retention::kConstant;
  const auto* const logit = DataOf<float>(needs, parts, "retention_logit");
  if (!constant && logit == nullptr) return nullptr;
  auto* const fixed = static_cast<float*>(context.keep(o.shape.value_heads * kFloat));
  if (fixed == nullptr) return nullptr;
  DeltaFixedRetentionCuda(context.stream, o.shape.value_heads, logit, o.scale->gamma, fixed);
  return fixed;
}

}  // namespace

// Products with one input, of which those that lie side by side, as weights and as results, are
// one.
class DeltaProjection::Products {
 public:
  explicit Products(const CudaProduct& common) : common_(common) {}
  void Add(std::span<const Matrix> matrices, void* y, int64_t y_stride, DType y_type) {
    for (const Matrix& matrix : matrices) {
      std::byte* const to = static_cast<std::byte*>(y) + matrix.column * SizeOf(y_type);
      if (matrix.data == end_ && to == y_end_ && y_type == products_[count_ - 1].y_type) {
        products_[count_ - 1].out += matrix.out;
      } else {
        EDDY_CHECK(count_ < products_.size());
        CudaProduct& product = products_[count_++];
        product = common_;
        product.out = matrix.out;
        product.w = matrix.data;
        product.y = to;
        product.y_stride = y_stride;
        product.y_type = y_type;
      }
      end_ = matrix.data + matrix.out * common_.in * SizeOf(common_.type);
      y_end_ = to + matrix.out * SizeOf(y_type);
    }
  }
  std::span<const CudaProduct> all() const { return std::span(products_).first(count_); }

 private:
  const CudaProduct common_;
  std::array<CudaProduct, kMostProducts> products_ = {};
  size_t count_ = 0;
  const std::byte *end_ = nullptr, *y_end_ = nullptr;  // of the last one's weights and results
};

DeltaProjection::DeltaProjection(const DeltaOptions& options, const LayerNeeds& needs,
                                 const LayerParts& parts, const CudaContext& context)
    : columns_(options),
      type_(context.matrices),
      gemm_(context.gemm),
      d_model_(options.d_model),
      v_width_(options.v_width()),
      channels_(options.shape.value_heads * options.shape.key_dim),
      gate_rank_(options.gate_rank),
      decay_rank_(options.decay_rank),
      norm_eps_(options.norm_eps),
      norm_(DataOf<float>(needs, parts, "norm.weight")),
      gate_up_(DataOf<std::byte>(needs, parts, "gate_up.weight")),
      decay_up_(DataOf<std::byte>(needs, parts, "decay_up.weight")) {
  const auto add = [&](std::vector<Matrix>& to, const char* name, int64_t column) {
    const TensorView* const view = FindWeight(needs, parts, name);
    if (view != nullptr) to.push_back({view->as<std::byte>(), view->shape[0], column});
  };
  add(wide_, "q.weight", 0);
  add(wide_, "k.weight", columns_.k);
  add(wide_, "v.weight", columns_.v);
  add(wide_, "gate.weight", columns_.gate);
  add(logits_, "step.weight", columns_.step);
  add(logits_, "decay.weight", columns_.decay);
  add(logits_, "retention.weight", columns_.retention);
  add(low_, "gate_down.weight", 0);
  add(low_, "decay_down.weight", columns_.low_decay);
}

DeltaProjection::Products DeltaProjection::ProductsOf(const DeltaPart& part, const float* x,
                                                      void* normed,
                                                      const DeltaCudaRows& rows) const {
  Products products({.rows = part.rows,
                     .in = d_model_,
                     .fixed_rows = part.single ? part.rows : 0,
                     .type = type_,
                     .x = x,
                     .norm = norm_,
                     .norm_eps = norm_eps_,
                     .normed = normed});
  products.Add(wide_, rows.projected, rows.projected_stride, rows.type);
  products.Add(logits_, rows.logits, rows.logits_stride, DType::kF32);
  products.Add(low_, rows.low, columns_.low, type_);
  return products;
}

void DeltaProjection::PrepareLong(const DeltaCudaRows& rows) const {
  PrepareLongProducts(gemm_, ProductsOf({}, nullptr, nullptr, rows).all());
}

void DeltaProjection::Run(const DeltaPart& part, const float* x, void* normed,
                          const DeltaCudaRows& rows) const {
  const int64_t fixed_rows = part.single ? part.rows : 0;
  RunProducts(gemm_, ProductsOf(part, x, normed, rows).all());
  const auto up = [&](const std::byte* w, int64_t column, const CudaProduct& shape) {
    if (w == nullptr) return;
    CudaProduct product = shape;
    product.rows = part.rows;
    product.fixed_rows = fixed_rows;
    product.type = type_;
    product.x = static_cast<const std::byte*>(rows.low) + column * SizeOf(type_);
    product.x_stride = columns_.low;
    product.w = w;
    RunProduct(gemm_, product);
  };
  up(gate_up_, 0,
     {.in = gate_rank_,
      .out = v_width_,
      .y = rows.z,
      .y_stride = rows.z_stride,
      .y_type = rows.type});
  up(decay_up_, columns_.low_decay, {.in = decay_rank_, .out = channels_, .y = rows.channel_decay});
}

DeltaVectors MakeDeltaVectors(const DeltaOptions& options, const LayerNeeds& needs,
                              const LayerParts& parts, const CudaContext& context) {
  const auto floats = [&](const char* name) { return DataOf<float>(needs, parts, name); };
  return {.taps = MakeTaps(options, needs, parts, context),
          .taps_stride = DeltaColumns(options).gate,
          .step_bias = floats("step.bias"),
          .step_scale = floats("step_scale_raw"),
          .decay_rate_log = floats("decay_rate_log"),
          .decay_bias = floats("decay_bias"),
          .retention_bias = floats("retention.bias"),
          .fixed_retention = MakeFixedRetention(options, needs, parts, context)};
}

}  // namespace eddy
