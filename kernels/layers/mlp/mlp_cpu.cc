#include <cmath>
#include <numbers>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/mlp/mlp.h"

namespace eddy {
namespace {

float Gelu(float a) {
  return 0.5f * a * (1.0f + std::erf(a * static_cast<float>(1.0 / std::numbers::sqrt2)));
}

class MlpCpu : public Layer {
 public:
  MlpCpu(const LayerSpec& spec, const LayerParts& parts)
      : d_model_(spec.d_model),
        size_(spec.Int("size")),
        eps_(static_cast<float>(spec.norm_eps)),
        scratch_(static_cast<float*>(parts.scratch)) {
    const LayerNeeds needs = MlpNeeds(spec, DeviceTraits{});
    const auto weight = [&](const char* name) -> const float* {
      const TensorView* view = FindWeight(needs, parts, name);
      return view == nullptr ? nullptr : view->as<float>();
    };
    norm_ = weight("norm.weight");
    gate_ = weight("gate.weight");
    up_ = weight("up.weight");
    down_ = weight("down.weight");
  }

  void Forward(const Step& step, TensorView x_view) override {
    const int64_t rows = step.rows;
    float* x = x_view.as<float>();
    float* normed = scratch_;              // [rows, D]
    float* up = normed + rows * d_model_;  // [rows, I]
    float* gate = up + rows * size_;       // [rows, I], swiglu only
    for (int64_t r = 0; r < rows; ++r) {
      simd::RmsNorm(x + r * d_model_, norm_, eps_, normed + r * d_model_, d_model_);
    }
    Linear({.rows = rows, .in = d_model_, .out = size_, .x = normed, .w = up_, .y = up});
    if (gate_ != nullptr) {
      Linear({.rows = rows, .in = d_model_, .out = size_, .x = normed, .w = gate_, .y = gate});
      simd::MultiplySilu(gate, up, rows * size_);
    } else {
      for (int64_t i = 0; i < rows * size_; ++i) up[i] = Gelu(up[i]);
    }
    Linear({.rows = rows,
            .in = size_,
            .out = d_model_,
            .x = up,
            .w = down_,
            .y = x,
            .accumulate = true});
  }

 private:
  const int64_t d_model_, size_;
  const float eps_;
  float* const scratch_;
  const float *norm_ = nullptr, *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr;
};

}  // namespace

std::unique_ptr<Layer> MakeMlpCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<MlpCpu>(spec, parts);
}

}  // namespace eddy
