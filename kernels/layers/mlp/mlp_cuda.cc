// Two products: x normalised times gate and up, with the activation behind it, then times down and
// onto x. For decoding rows the first is one launch, norm and activation included.
#include "kernels/layers/mlp/mlp_cuda.h"

#include <memory>

#include "base/check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norm.h"
#include "kernels/layers/mlp/mlp.h"

namespace eddy {
namespace {

// Addresses that products want aligned.
constexpr int64_t kAlignment = 16;

constexpr int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class MlpCuda : public Layer {
 public:
  MlpCuda(const LayerSpec& spec, const LayerParts& parts, const CudaContext& context)
      : d_model_(spec.d_model),
        size_(spec.Int("size")),
        eps_(static_cast<float>(spec.norm_eps)),
        type_(context.matrices),
        gemm_(context.gemm),
        scratch_(static_cast<std::byte*>(parts.scratch)) {
    const LayerNeeds needs = MlpNeeds(spec, DeviceTraits{.matrices = context.matrices});
    const auto weight = [&](const char* name) -> const void* {
      const TensorView* view = FindWeight(needs, parts, name);
      return view == nullptr ? nullptr : view->data;
    };
    norm_ = static_cast<const float*>(weight("norm.weight"));
    gate_ = weight("gate.weight");
    up_ = weight("up.weight");
    down_ = weight("down.weight");
    PrepareProduct(gemm_, {.in = d_model_,
                           .out = size_,
                           .type = type_,
                           .w = up_,
                           .y_type = InnerType(),
                           .gate = gate_});
    PrepareProduct(gemm_, {.in = size_, .out = d_model_, .type = type_, .accumulate = true});
  }

  void Forward(const Step& step, TensorView x_view) override {
    const int64_t rows = step.rows;
    auto* const x = x_view.as<float>();
    std::byte* const normed = scratch_;                                          // [rows, D]
    std::byte* const inner = normed + RoundUp(rows * d_model_ * SizeOf(type_));  // [rows, I]
    std::byte* const room = inner + RoundUp(rows * size_ * SizeOf(type_));       // [rows, 2 I]
    CudaProduct first = {.rows = rows,
                         .in = d_model_,
                         .out = size_,
                         .fixed_rows = step.single_row_sequences,
                         .type = type_,
                         .x = x,
                         .w = up_,
                         .y = inner,
                         .y_type = InnerType(),
                         .norm = norm_,
                         .norm_eps = eps_,
                         .normed = normed};
    if (gate_ != nullptr) {
      first.gate = gate_;
      first.gate_room = room;
      RunProduct(gemm_, first);
    } else {
      first.y = room;
      RunProduct(gemm_, first);
      RunGate(step.stream, {.function = GateFunction::kGelu,
                            .rows = rows,
                            .width = size_,
                            .gate = room,
                            .y_type = type_,
                            .y = inner});
    }
    RunProduct(gemm_, {.rows = rows,
                       .in = size_,
                       .out = d_model_,
                       .fixed_rows = step.single_row_sequences,
                       .type = type_,
                       .x = inner,
                       .w = down_,
                       .y = x,
                       .accumulate = true});
  }

 private:
  // What the first product gives: gelu comes after it and rounds only then.
  DType InnerType() const { return gate_ == nullptr ? DType::kF32 : type_; }

  const int64_t d_model_, size_;
  const float eps_;
  const DType type_;
  CudaGemm* const gemm_;
  std::byte* const scratch_;
  const float* norm_ = nullptr;
  const void *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr;
};

std::unique_ptr<Layer> MakeMlpCuda(const LayerSpec& spec, const LayerParts& parts,
                                   const CudaContext& context) {
  return std::make_unique<MlpCuda>(spec, parts, context);
}

CudaScratch MlpScratch(const LayerSpec& spec, DType matrices) {
  const int64_t size = spec.Int("size"), bytes = SizeOf(matrices);
  const int64_t room = spec.type == "swiglu" ? 2 * bytes : SizeOf(DType::kF32);
  return {.bytes = 2 * kAlignment,
          .bytes_per_row = spec.d_model * bytes + size * bytes + size * room};
}

}  // namespace

const CudaLayerType& MlpCudaType(std::string_view name) {
  static constexpr CudaLayerType kSwiglu = {
      .name = "swiglu", .make = MakeMlpCuda, .scratch = MlpScratch};
  static constexpr CudaLayerType kGelu = {
      .name = "gelu", .make = MakeMlpCuda, .scratch = MlpScratch};
  EDDY_CHECK(name == "swiglu" || name == "gelu");
  return name == "swiglu" ? kSwiglu : kGelu;
}

}  // namespace eddy
