#include "kernels/ends/ends_cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/ends/sampler/sampler_cpu.h"

namespace eddy {
namespace {

class EndsCpu : public Ends {
 public:
  EndsCpu(const EndsSpec& spec, const EndsParts& parts, int max_rows)
      : spec_(spec),
        embedding_(parts.embedding.as<float>()),
        final_norm_(parts.final_norm.as<float>()),
        head_(parts.head.as<float>()),
        normed_(static_cast<size_t>(max_rows * spec.d_model)),
        sampler_(spec.vocab) {}

  void Embed(const Step& step, TensorView x) override {
    for (int r = 0; r < step.rows; ++r) {
      EDDY_DCHECK(step.tokens[r] >= 0 && step.tokens[r] < spec_.vocab);
      std::copy_n(embedding_ + step.tokens[r] * spec_.d_model, spec_.d_model,
                  x.as<float>() + r * spec_.d_model);
    }
  }

  void Head(std::span<const int32_t> rows, TensorView x, TensorView logits) override {
    EDDY_CHECK(rows.size() * static_cast<size_t>(spec_.d_model) <= normed_.size());
    const auto count = static_cast<int64_t>(rows.size());
    for (int64_t i = 0; i < count; ++i) {
      simd::RmsNorm(x.as<float>() + rows[static_cast<size_t>(i)] * spec_.d_model, final_norm_,
                    static_cast<float>(spec_.norm_eps), normed_.data() + i * spec_.d_model,
                    spec_.d_model);
    }
    float* out = logits.as<float>();
    Linear({.rows = count,
            .in = spec_.d_model,
            .out = spec_.vocab,
            .x = normed_.data(),
            .w = head_,
            .y = out});
    if (spec_.logit_softcap == 0) return;
    const auto cap = static_cast<float>(spec_.logit_softcap);
    for (int64_t i = 0; i < count * spec_.vocab; ++i) out[i] = cap * std::tanh(out[i] / cap);
  }

  void Sample(TensorView logits, std::span<const SampleRow> rows,
              std::span<SampleResult> results) override {
    EDDY_CHECK(rows.size() == results.size());
    const auto vocab = static_cast<size_t>(spec_.vocab);
    for (size_t i = 0; i < rows.size(); ++i) {
      sampler_.Sample({logits.as<float>() + i * vocab, vocab}, rows[i], results[i]);
    }
  }

 private:
  const EndsSpec spec_;
  const float* const embedding_;   // [vocab, D]
  const float* const final_norm_;  // [D]
  const float* const head_;        // [vocab, D]
  std::vector<float> normed_;      // [max_rows, D]
  SamplerCpu sampler_;
};

}  // namespace

std::unique_ptr<Ends> MakeEndsCpu(const EndsSpec& spec, const EndsParts& parts, int max_rows) {
  return std::make_unique<EndsCpu>(spec, parts, max_rows);
}

}  // namespace eddy
