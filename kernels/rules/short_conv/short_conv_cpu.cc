#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/rules/short_conv/short_conv.h"

namespace eddy {
namespace {

// `rows` rows of one sequence.
void OneSequence(const ShortConvArgs& p, const float* x, int64_t rows, float* state, float* out) {
  const int64_t history = p.width - 1;
  // Input of row t, where negative rows lie in the state.
  const auto input = [&](int64_t t) {
    return t >= 0 ? x + t * p.channels : state + (history + t) * p.channels;
  };
  for (int64_t t = 0; t < rows; ++t) {
    float* y = out + t * p.channels;
    simd::Multiply(input(t - history), p.taps, y, p.channels);
    for (int64_t j = 1; j < p.width; ++j) {
      simd::MultiplyAdd(input(t - history + j), p.taps + j * p.channels, y, p.channels);
    }
    if (p.bias != nullptr) simd::AddScaled(1.0f, p.bias, y, p.channels);
  }
  // Oldest first, so that no row is overwritten before it has moved.
  for (int64_t j = 0; j < history; ++j) {
    const float* from = input(rows - history + j);
    std::copy(from, from + p.channels, state + j * p.channels);
  }
}

}  // namespace

std::vector<float> ShortConvTaps(const TensorView& weight) {
  const int64_t channels = weight.shape[0], width = weight.shape[1];
  std::vector<float> taps(static_cast<size_t>(channels * width));
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < width; ++j) {
      taps[static_cast<size_t>(j * channels + c)] = weight.as<float>()[c * width + j];
    }
  }
  return taps;
}

void ShortConvCpu(const Step& step, const ShortConvArgs& p) {
  for (int i = 0; i < step.sequences; ++i) {
    const int64_t first = step.row_start[i], rows = step.row_start[i + 1] - first;
    if (rows == 0) continue;
    float* out = p.out + first * p.channels;
    if (step.slots[i] == kNoSlot) {
      std::fill(out, out + rows * p.channels, 0.0f);
      continue;
    }
    OneSequence(p, p.x + first * p.channels, rows, p.state.at<float>(step.slots[i]), out);
  }
}

}  // namespace eddy
