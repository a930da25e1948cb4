#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "tests/example_layer/leaky.h"

namespace eddy {
namespace {

class LeakyCpu : public Layer {
 public:
  LeakyCpu(const LayerSpec& spec, const LayerParts& parts)
      : d_model_(spec.d_model),
        size_(spec.Int("size")),
        eps_(static_cast<float>(spec.norm_eps)),
        scratch_(static_cast<float*>(parts.scratch)) {
    const LayerNeeds needs = LeakyNeeds(spec, DeviceTraits{});
    norm_ = FindWeight(needs, parts, "norm.weight")->as<float>();
    in_ = FindWeight(needs, parts, "in.weight")->as<float>();
    decay_ = FindWeight(needs, parts, "decay")->as<float>();
    out_ = FindWeight(needs, parts, "out.weight")->as<float>();
    h_ = *FindState(needs, parts, "h");
  }

  void Forward(const Step& step, TensorView x_view) override {
    const int64_t rows = step.rows;
    float* x = x_view.as<float>();
    float* keep = scratch_;               // [S]: sigmoid(a)
    float* normed = keep + size_;         // [rows, D]
    float* h = normed + rows * d_model_;  // [rows, S]: W_in n, then h after each row
    std::copy(decay_, decay_ + size_, keep);
    simd::Sigmoid(keep, size_);
    for (int64_t r = 0; r < rows; ++r) {
      simd::RmsNorm(x + r * d_model_, norm_, eps_, normed + r * d_model_, d_model_);
    }
    Linear({.rows = rows, .in = d_model_, .out = size_, .x = normed, .w = in_, .y = h});
    for (int s = 0; s < step.sequences; ++s) {
      Scan(step.slots[s], keep, h + step.row_start[s] * size_, h + step.row_start[s + 1] * size_);
    }
    Linear({.rows = rows,
            .in = size_,
            .out = d_model_,
            .x = h,
            .w = out_,
            .y = x,
            .accumulate = true});
  }

 private:
  // The rule, for the rows of one sequence: [first, end) is written over.
  void Scan(int32_t slot, const float* keep, float* first, float* end) const {
    if (slot == kNoSlot) return std::fill(first, end, 0.0f);
    float* state = h_.at<float>(slot);
    for (float* row = first; row != end; row += size_) {
      simd::MultiplyAdd(state, keep, row, size_);
      std::copy(row, row + size_, state);
    }
  }

  const int64_t d_model_, size_;
  const float eps_;
  float* const scratch_;
  const float *norm_, *in_, *decay_, *out_;
  FieldView h_;
};

}  // namespace

std::unique_ptr<Layer> MakeLeakyCpu(const LayerSpec& spec, const LayerParts& parts) {
  return std::make_unique<LeakyCpu>(spec, parts);
}

}  // namespace eddy
