#include "kernels/cpu/simd.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_delta.cc"
#include <hwy/foreach_target.h>  // before all that is compiled once for each target
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace eddy::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

enum class Decay { kNone, kHead, kChannel };

// One token, four vectors of columns (or one): p = S~'k and y = S~'q in one traversal, then
// n = beta (v - p), S = S~ + w n', o = y + (w.q) n, where S~ = diag(a) S.
// kFetch: also asks for the same columns of the next head's S, which lies behind this one.
template <Decay kDecay, bool kFetch, class D>
HWY_INLINE void FourColumns(D d, const DeltaHead& h, int64_t t, int64_t column, float wq) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* q = h.q + t * h.key_stride;
  const float* k = h.k + t * h.key_stride;
  const float* w = h.w + t * h.write_stride;
  const float* a = kDecay == Decay::kNone ? nullptr : h.decay + t * h.decay_stride;
  auto p0 = hn::Zero(d), p1 = p0, p2 = p0, p3 = p0;
  auto y0 = p0, y1 = p0, y2 = p0, y3 = p0;
  const float* s = h.state + column;
  for (int64_t i = 0; i < h.key_dim; ++i, s += h.value_dim) {
    const float f = kDecay == Decay::kChannel ? a[i] : 1.0f;
    const auto ki = hn::Set(d, k[i] * f), qi = hn::Set(d, q[i] * f);
    const auto s0 = hn::LoadU(d, s), s1 = hn::LoadU(d, s + lanes);
    const auto s2 = hn::LoadU(d, s + 2 * lanes), s3 = hn::LoadU(d, s + 3 * lanes);
    p0 = hn::MulAdd(ki, s0, p0);
    p1 = hn::MulAdd(ki, s1, p1);
    p2 = hn::MulAdd(ki, s2, p2);
    p3 = hn::MulAdd(ki, s3, p3);
    y0 = hn::MulAdd(qi, s0, y0);
    y1 = hn::MulAdd(qi, s1, y1);
    y2 = hn::MulAdd(qi, s2, y2);
    y3 = hn::MulAdd(qi, s3, y3);
  }
  const auto all = hn::Set(d, kDecay == Decay::kHead ? a[0] : 1.0f);
  const auto beta = hn::Set(d, h.beta[t * h.beta_stride]);
  const float* v = h.v + t * h.value_stride + column;
  float* o = h.out + t * h.value_stride + column;
  const auto finish = [&](auto p, auto y, int64_t at) HWY_ATTR {
    const auto n = hn::Mul(beta, hn::NegMulAdd(all, p, hn::LoadU(d, v + at)));
    hn::StoreU(hn::MulAdd(hn::Set(d, wq), n, hn::Mul(all, y)), d, o + at);
    return n;
  };
  const auto n0 = finish(p0, y0, 0), n1 = finish(p1, y1, lanes);
  const auto n2 = finish(p2, y2, 2 * lanes), n3 = finish(p3, y3, 3 * lanes);
  const int64_t next_head = h.key_dim * h.value_dim;
  float* r = h.state + column;
  for (int64_t i = 0; i < h.key_dim; ++i, r += h.value_dim) {
    const auto wi = hn::Set(d, w[i]);
    const auto ai = kDecay == Decay::kChannel ? hn::Set(d, a[i]) : all;
    const auto decayed = [&](float* at) HWY_ATTR {
      const auto value = hn::LoadU(d, at);
      if constexpr (kDecay == Decay::kNone) return value;
      return hn::Mul(ai, value);
    };
    if constexpr (kFetch) {
      for (int part = 0; part < 4; ++part) hwy::Prefetch(r + next_head + part * lanes);
    }
    hn::StoreU(hn::MulAdd(wi, n0, decayed(r)), d, r);
    hn::StoreU(hn::MulAdd(wi, n1, decayed(r + lanes)), d, r + lanes);
    hn::StoreU(hn::MulAdd(wi, n2, decayed(r + 2 * lanes)), d, r + 2 * lanes);
    hn::StoreU(hn::MulAdd(wi, n3, decayed(r + 3 * lanes)), d, r + 3 * lanes);
  }
}

// The same for one vector of columns.
template <Decay kDecay, class D>
HWY_INLINE void Columns(D d, const DeltaHead& h, int64_t t, int64_t column, float wq) {
  const float* q = h.q + t * h.key_stride;
  const float* k = h.k + t * h.key_stride;
  const float* w = h.w + t * h.write_stride;
  const float* a = kDecay == Decay::kNone ? nullptr : h.decay + t * h.decay_stride;
  auto p = hn::Zero(d), y = p;
  const float* s = h.state + column;
  for (int64_t i = 0; i < h.key_dim; ++i, s += h.value_dim) {
    const float f = kDecay == Decay::kChannel ? a[i] : 1.0f;
    const auto si = hn::LoadU(d, s);
    p = hn::MulAdd(hn::Set(d, k[i] * f), si, p);
    y = hn::MulAdd(hn::Set(d, q[i] * f), si, y);
  }
  const auto all = hn::Set(d, kDecay == Decay::kHead ? a[0] : 1.0f);
  const auto v = hn::LoadU(d, h.v + t * h.value_stride + column);
  const auto n = hn::Mul(hn::Set(d, h.beta[t * h.beta_stride]), hn::NegMulAdd(all, p, v));
  hn::StoreU(hn::MulAdd(hn::Set(d, wq), n, hn::Mul(all, y)), d,
             h.out + t * h.value_stride + column);
  float* r = h.state + column;
  for (int64_t i = 0; i < h.key_dim; ++i, r += h.value_dim) {
    auto value = hn::LoadU(d, r);
    if constexpr (kDecay == Decay::kHead) value = hn::Mul(all, value);
    if constexpr (kDecay == Decay::kChannel) value = hn::Mul(hn::Set(d, a[i]), value);
    hn::StoreU(hn::MulAdd(hn::Set(d, w[i]), n, value), d, r);
  }
}

HWY_INLINE float InnerProduct(const float* a, const float* b, int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

// Columns of S do not meet, so a strip of them takes all tokens before the next one is begun: K
// times the width of a strip stays in the first cache.
template <Decay kDecay>
void AllTokens(const DeltaHead& h) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto strip = [&](auto&& step) HWY_ATTR {
    for (int64_t t = 0; t < h.tokens; ++t) {
      step(t, InnerProduct(h.w + t * h.write_stride, h.q + t * h.key_stride, h.key_dim));
    }
  };
  int64_t column = 0;
  for (; column + 4 * lanes <= h.value_dim; column += 4 * lanes) {
    strip([&](int64_t t, float wq) HWY_ATTR {
      if (h.tokens == 1) {
        FourColumns<kDecay, true>(d, h, t, column, wq);
      } else {
        FourColumns<kDecay, false>(d, h, t, column, wq);
      }
    });
  }
  for (; column + lanes <= h.value_dim; column += lanes) {
    strip([&](int64_t t, float wq) HWY_ATTR { Columns<kDecay>(d, h, t, column, wq); });
  }
  for (; column < h.value_dim; ++column) {
    strip([&](int64_t t, float wq) HWY_ATTR { Columns<kDecay>(one, h, t, column, wq); });
  }
}

void DeltaSteps(const DeltaHead& head) {
  if (head.decay == nullptr) return AllTokens<Decay::kNone>(head);
  if (head.channel_decay) return AllTokens<Decay::kChannel>(head);
  AllTokens<Decay::kHead>(head);
}

}  // namespace HWY_NAMESPACE
}  // namespace eddy::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eddy::simd {

HWY_EXPORT(DeltaSteps);

void DeltaSteps(const DeltaHead& head) { HWY_DYNAMIC_DISPATCH(DeltaSteps)(head); }

}  // namespace eddy::simd
#endif  // HWY_ONCE
