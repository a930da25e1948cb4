#include "kernels/ends/ends_cpu.h"

#include <algorithm>
#include <cmath>
#include <utility>
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
        sampler_(spec.vocab),
        results_(static_cast<size_t>(max_rows)) {}

  void Embed(const Step& step, TensorView x) override {
    for (int r = 0; r < step.rows; ++r) {
      EDDY_DCHECK(step.tokens[r] >= 0 && step.tokens[r] < spec_.vocab);
      std::copy_n(embedding_ + step.tokens[r] * spec_.d_model, spec_.d_model,
                  x.as<float>() + r * spec_.d_model);
    }
  }

  int Stage(std::span<const int32_t> rows, std::span<const SampleRow> samples) override {
    EDDY_CHECK(rows.size() == samples.size() && rows.size() <= results_.size());
    rows_.assign(rows.begin(), rows.end());
    samples_.assign(samples.begin(), samples.end());
    return static_cast<int>(rows.size());
  }

  void Run(int count, TensorView x, TensorView logits) override {
    EDDY_CHECK(static_cast<size_t>(count) >= rows_.size());
    Head(x, logits.as<float>());
    const auto vocab = static_cast<size_t>(spec_.vocab);
    for (size_t i = 0; i < samples_.size(); ++i) {
      sampler_.Sample({logits.as<float>() + i * vocab, vocab}, samples_[i], results_[i]);
    }
  }

  // Swapped, so that the lists of either keep their memory.
  void Collect(std::span<SampleResult> results) override {
    EDDY_CHECK(results.size() == samples_.size());
    for (size_t i = 0; i < results.size(); ++i) std::swap(results[i], results_[i]);
  }

 private:
  void Head(TensorView x, float* out) {
    const auto count = static_cast<int64_t>(rows_.size());
    for (int64_t i = 0; i < count; ++i) {
      simd::RmsNorm(x.as<float>() + rows_[static_cast<size_t>(i)] * spec_.d_model, final_norm_,
                    static_cast<float>(spec_.norm_eps), normed_.data() + i * spec_.d_model,
                    spec_.d_model);
    }
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

  const EndsSpec spec_;
  const float* const embedding_;   // [vocab, D]
  const float* const final_norm_;  // [D]
  const float* const head_;        // [vocab, D]
  std::vector<float> normed_;      // [max_rows, D]
  SamplerCpu sampler_;
  // The staged rows, what to do with each, and what came of it [max_rows].
  std::vector<int32_t> rows_;
  std::vector<SampleRow> samples_;
  std::vector<SampleResult> results_;
};

}  // namespace

std::unique_ptr<Ends> MakeEndsCpu(const EndsSpec& spec, const EndsParts& parts, int max_rows) {
  return std::make_unique<EndsCpu>(spec, parts, max_rows);
}

}  // namespace eddy
