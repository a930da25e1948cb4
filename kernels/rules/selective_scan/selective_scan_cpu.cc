#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/rules/selective_scan/selective_scan.h"

namespace eddy {
namespace {

// One row of a sequence whose state is `state` [N, channels].
void OneRow(const SelectiveScanArgs& p, int64_t row, float* state) {
  const int64_t channels = p.channels;
  const float* step = p.step + row * channels;
  const float* k = p.k + row * p.row_stride;
  const float* q = p.q + row * p.row_stride;
  float* out = p.out + row * channels;
  float* input = p.scratch;             // s x
  float* decay = p.scratch + channels;  // a[n]
  simd::Multiply(step, p.x + row * channels, input, channels);
  std::fill(out, out + channels, 0.0f);
  for (int64_t n = 0; n < p.states; ++n, state += channels) {
    if (p.rates != nullptr) {
      simd::Multiply(step, p.rates + n * channels, decay, channels);
      simd::Exp(decay, channels);
    } else {
      std::fill(decay, decay + channels, 1.0f);
      simd::AddScaled(-k[n] * k[n], step, decay, channels);
    }
    simd::Multiply(state, decay, state, channels);
    simd::AddScaled(k[n], input, state, channels);
    simd::AddScaled(q[n], state, out, channels);
  }
}

}  // namespace

void SelectiveScanCpu(const Step& step, const SelectiveScanArgs& p) {
  for (int i = 0; i < step.sequences; ++i) {
    const int64_t first = step.row_start[i], end = step.row_start[i + 1];
    if (step.slots[i] == kNoSlot) {
      std::fill(p.out + first * p.channels, p.out + end * p.channels, 0.0f);
      continue;
    }
    float* state = p.state.at<float>(step.slots[i]);
    for (int64_t row = first; row < end; ++row) OneRow(p, row, state);
  }
}

}  // namespace eddy
