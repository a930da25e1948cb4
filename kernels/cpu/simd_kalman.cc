#include "kernels/cpu/simd_kalman.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_kalman.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace eddy::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What all states of a channel share in one token.
struct Seen {
  const float* k;
  const float* q;
  float certainty;
  float weighted_v;  // certainty * v
};

// The filters at `s` of one channel, whose arrays start at `base`: returns q times their means.
template <bool kPrior, class D>
HWY_INLINE hn::Vec<D> Advance(D d, const KalmanFilters& f, const Seen& seen, int64_t base,
                              int64_t s) {
  // As first operand of Max, so that NaN passes and shows.
  const auto least = hn::Set(d, 1e-12f);
  const auto a = hn::LoadU(d, f.transition + base + s);
  const auto p = hn::LoadU(d, f.noise + base + s);
  const auto k = hn::LoadU(d, seen.k + s);
  const auto lambda = hn::LoadU(d, f.precision + base + s);
  const auto eta = hn::LoadU(d, f.information + base + s);

  const auto den = hn::Max(least, hn::MulAdd(p, lambda, hn::Mul(a, a)));
  const auto inverse = hn::Div(hn::Set(d, 1.0f), den);
  const auto phi = hn::Mul(hn::Set(d, seen.certainty), hn::Mul(k, k));
  const auto rho = hn::Mul(hn::Set(d, seen.weighted_v), k);
  const auto new_lambda = hn::MulAdd(lambda, inverse, phi);
  const auto new_eta = hn::MulAdd(hn::Mul(a, inverse), eta, rho);
  hn::StoreU(new_lambda, d, f.precision + base + s);
  hn::StoreU(new_eta, d, f.information + base + s);

  auto mean = hn::Div(new_eta, hn::Max(least, new_lambda));
  if constexpr (kPrior) mean = hn::Mul(a, mean);
  return hn::Mul(hn::LoadU(d, seen.q + s), mean);
}

template <bool kPrior>
HWY_INLINE void OneToken(const KalmanFilters& f, int64_t t, int64_t channel) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float certainty = f.certainty[t * f.channels + channel];
  const Seen seen = {.k = f.k + t * f.k_stride,
                     .q = f.q + t * f.q_stride,
                     .certainty = certainty,
                     .weighted_v = certainty * f.v[t * f.channels + channel]};
  const int64_t base = channel * f.state_dim;
  auto sum = hn::Zero(d);
  int64_t s = 0;
  for (; s + lanes <= f.state_dim; s += lanes) {
    sum = hn::Add(sum, Advance<kPrior>(d, f, seen, base, s));
  }
  float y = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; s < f.state_dim; ++s) y += hn::GetLane(Advance<kPrior>(one, f, seen, base, s));
  f.y[t * f.channels + channel] = y;
}

// Channels do not meet, so a few of them take all tokens before the next ones are begun: their
// filters stay in the first cache, and they share the cache lines of v, certainty and y.
template <bool kPrior>
void AllTokens(const KalmanFilters& f) {
  constexpr int64_t kTogether = 16;
  for (int64_t begin = 0; begin < f.channels; begin += kTogether) {
    const int64_t end = std::min(f.channels, begin + kTogether);
    for (int64_t t = 0; t < f.tokens; ++t) {
      for (int64_t m = begin; m < end; ++m) OneToken<kPrior>(f, t, m);
    }
  }
}

void KalmanSteps(const KalmanFilters& filters) {
  if (filters.prior) return AllTokens<true>(filters);
  AllTokens<false>(filters);
}

}  // namespace HWY_NAMESPACE
}  // namespace eddy::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eddy::simd {

HWY_EXPORT(KalmanSteps);

void KalmanSteps(const KalmanFilters& filters) { HWY_DYNAMIC_DISPATCH(KalmanSteps)(filters); }

}  // namespace eddy::simd
#endif  // HWY_ONCE
