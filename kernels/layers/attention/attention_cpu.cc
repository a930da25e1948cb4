#include <vector>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/layers/attention/attention.h"

namespace eddy {
namespace {

class AttentionLayerCpu : public Layer {
 public:
  AttentionLayerCpu(const LayerSpec& spec, const LayerParts& parts)
      : options_(spec),
        frequencies_(RopeFrequencies(options_.rope_theta, options_.shape.head_dim)),
        scratch_(static_cast<float*>(parts.scratch)) {
    const LayerNeeds needs = AttentionNeeds(spec, DeviceTraits{});
    const auto weight = [&](const char* name) -> const float* {
      const TensorView* view = FindWeight(needs, parts, name);
      return view == nullptr ? nullptr : view->as<float>();
    };
    norm_ = weight("norm.weight");
    q_ = {.weight = weight("q.weight"), .bias = weight("q.bias"), .width = options_.q_width()};
    k_ = {.weight = weight("k.weight"), .bias = weight("k.bias"), .width = options_.kv_width()};
    v_ = {.weight = weight("v.weight"), .bias = weight("v.bias"), .width = options_.kv_width()};
    out_ = weight("out.weight");
    keys_ = *FindKv(needs, parts, "k");
    values_ = *FindKv(needs, parts, "v");
  }

  void Forward(const Step& step, TensorView x_view) override {
    const int64_t rows = step.rows, d_model = options_.d_model;
    float* x = x_view.as<float>();
    float* rule = scratch_;
    float* normed = rule + AttentionScratchFloats(options_.shape);  // [rows, D]
    float* q = normed + rows * d_model;                             // [rows, H, d]
    float* k = q + rows * q_.width;                                 // [rows, HKV, d]
    float* v = k + rows * k_.width;                                 // [rows, HKV, d]
    float* out = v + rows * v_.width;                               // [rows, H, d]
    for (int64_t r = 0; r < rows; ++r) {
      simd::RmsNorm(x + r * d_model, norm_, options_.norm_eps, normed + r * d_model, d_model);
    }
    Project(q_, rows, normed, q);
    Project(k_, rows, normed, k);
    Project(v_, rows, normed, v);
    AttentionCpu(step, {.shape = options_.shape,
                        .window = options_.window,
                        .frequencies = frequencies_.data(),
                        .q = q,
                        .k = k,
                        .v = v,
                        .keys = keys_,
                        .values = values_,
                        .out = out,
                        .scratch = rule});
    Linear({.rows = rows,
            .in = q_.width,
            .out = d_model,
            .x = out,
            .w = out_,
            .y = x,
            .accumulate = true});
  }

 private:
  struct Projection {
    const float* weight = nullptr;
    const float* bias = nullptr;  // null: none
    int64_t width = 0;
  };

  void Project(const Projection& to, int64_t rows, const float* normed, float* y) const {
    Linear({.rows = rows,
            .in = options_.d_model,
            .out = to.width,
            .x = normed,
            .w = to.weight,
            .y = y});
    for (int64_t r = 0; r < rows && to.bias != nullptr; ++r) {
      simd::AddScaled(1.0f, to.bias, y + r * to.width, to.width);
    }
  }

  const AttentionOptions options_;
  const std::vector<double> frequencies_;
  float* const scratch_;
  const float* norm_ = nullptr;
  Projection q_, k_, v_;
  const float* out_ = nullptr;
  FieldView keys_, values_;
};

}  // namespace

int64_t AttentionCpuFloatsPerRow(const AttentionOptions& o) {
  return o.d_model + 2 * o.q_width() + 2 * o.kv_width();
}

std::unique_ptr<Layer> MakeAttentionCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<AttentionLayerCpu>(spec, parts);
}

}  // namespace eddy
