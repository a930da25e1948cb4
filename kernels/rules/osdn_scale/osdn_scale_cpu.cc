#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/rules/osdn_scale/osdn_scale.h"

namespace eddy {
namespace {

constexpr float kNormaliseEps = 1e-5f;

// d of one value head, [K], advanced by one token.
void Token(const OsdnScaleOptions& o, const float* k, float beta, float retention, int64_t key_dim,
           float* d, float* w) {
  simd::Multiply(d, k, w, key_dim);
  const float inner = simd::Dot(w, k, key_dim);
  float step = o.eta * (o.beta_aware ? beta * (1 - beta * inner) : 1 - inner);
  if (o.normalise) step /= simd::SumOfSquares(k, key_dim) + kNormaliseEps;
  for (int64_t i = 0; i < key_dim; ++i) d[i] = retention * d[i] + step * (k[i] * k[i]);
  if (!o.clips) return;
  // In this order a NaN stays one, so that it is found in the state.
  for (int64_t i = 0; i < key_dim; ++i) d[i] = std::min(std::max(d[i], o.clip_min), o.clip_max);
}

// d [HV, K] as it stands.
void Read(const OsdnScaleArgs& p, const float* d, int64_t row) {
  const int64_t count = p.value_heads * p.key_dim;
  const auto [least, greatest] = std::minmax_element(d, d + count);
  if (p.readouts.least != nullptr) p.readouts.least[row] = *least;
  if (p.readouts.greatest != nullptr) p.readouts.greatest[row] = *greatest;
  if (p.readouts.at_bound == nullptr) return;
  const auto bound = std::count_if(d, d + count, [&](float x) {
    return p.options.clips && (x == p.options.clip_min || x == p.options.clip_max);
  });
  p.readouts.at_bound[row] = static_cast<float>(bound) / static_cast<float>(count);
}

void ZeroRows(const OsdnScaleArgs& p, int64_t first, int64_t rows) {
  const auto zero = [&](float* to, int64_t width) {
    if (to != nullptr) std::fill_n(to + first * width, rows * width, 0.0f);
  };
  zero(p.w, p.value_heads * p.key_dim);
  zero(p.readouts.least, 1);
  zero(p.readouts.greatest, 1);
  zero(p.readouts.at_bound, 1);
}

}  // namespace

void OsdnScaleCpu(const Step& step, const OsdnScaleArgs& p) {
  const int64_t group = p.value_heads / p.heads;
  for (int i = 0; i < step.sequences; ++i) {
    const int64_t first = step.row_start[i], end = step.row_start[i + 1];
    if (step.slots[i] == kNoSlot) {
      ZeroRows(p, first, end - first);
      continue;
    }
    float* const d = p.scale.at<float>(step.slots[i]);
    for (int64_t row = first; row < end; ++row) {
      if (p.readouts.wanted()) Read(p, d, row);
      for (int64_t j = 0; j < p.value_heads; ++j) {
        const int64_t at = row * p.value_heads + j;
        const float retention =
            p.retention != nullptr ? p.retention[row * p.retention_stride + j] : 1.0f;
        Token(p.options, p.k + (row * p.heads + j / group) * p.key_dim, p.beta[at], retention,
              p.key_dim, d + j * p.key_dim, p.w + at * p.key_dim);
      }
    }
  }
}

}  // namespace eddy
