// The sampler on the CPU: kernels/sampling.h says what it does. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ends/sampler/filters.h"
#include "kernels/sampling.h"

namespace eddy {

class SamplerCpu {
 public:
  explicit SamplerCpu(int64_t vocab);
  // One row of logits [vocab]; they are left as they are.
  void Sample(std::span<const float> logits, const SampleRow& row, SampleResult& result);

 private:
  // Steps 3 and 4: a view of the logits, or of a changed copy of them in adjusted_.
  std::span<const float> Adjust(std::span<const float> logits, const SampleRow& row);
  void Penalise(const SampleRow& row);
  // Steps 5 to 7, for a temperature above 0; `max` is the greatest of `logits`.
  int32_t DrawToken(std::span<const float> logits, float max, const SampleRow& row);
  // The tokens that can survive top_k and top_p; `mass` as KeepTopP wants it.
  void Gather(std::span<const float> logits, float max, const SamplingParams& params, double* mass);
  // Into choices_, in order of token: those with a key of at least `bound`, but no barred ones.
  void GatherAtLeast(std::span<const float> logits, std::span<const float> keys, float bound,
                     float scale);
  float NthBlockMaximum(std::span<const float> logits, size_t n);

  std::vector<float> adjusted_;  // [vocab]
  std::vector<float> weights_;   // [vocab]
  std::vector<float> maxima_;    // of blocks of logits
  std::vector<int32_t> counts_;  // [vocab], zero between calls
  std::vector<Choice> choices_;  // [<= vocab]
};

}  // namespace eddy
