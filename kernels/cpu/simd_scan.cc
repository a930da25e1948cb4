#include "kernels/cpu/simd_scan.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_scan.cc"
#include <hwy/foreach_target.h>  // before all that is compiled once for each target
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace eddy::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One token, one vector of columns: S = diag(a) S + k v' and y = S'q in one traversal.
template <bool kChannel, class D>
HWY_INLINE void Write(D d, const DecayState& s, int64_t t, int64_t column) {
  const float* k = s.k + t * s.key_stride;
  const float* q = s.q + t * s.query_stride;
  const float* a = s.decay + t * s.decay_stride;
  const auto v = hn::LoadU(d, s.v + t * s.value_stride + column);
  auto y = hn::Zero(d);
  float* r = s.state + column;
  for (int64_t i = 0; i < s.key_dim; ++i, r += s.value_dim) {
    const auto decayed = hn::Mul(hn::Set(d, a[kChannel ? i : 0]), hn::LoadU(d, r));
    const auto written = hn::MulAdd(hn::Set(d, k[i]), v, decayed);
    hn::StoreU(written, d, r);
    y = hn::MulAdd(hn::Set(d, q[i]), written, y);
  }
  hn::StoreU(y, d, s.out + t * s.out_stride + column);
}

// The same for four vectors of columns, so that the sums do not wait for each other.
template <bool kChannel, class D>
HWY_INLINE void WriteFour(D d, const DecayState& s, int64_t t, int64_t column) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* k = s.k + t * s.key_stride;
  const float* q = s.q + t * s.query_stride;
  const float* a = s.decay + t * s.decay_stride;
  const float* v = s.v + t * s.value_stride + column;
  const auto v0 = hn::LoadU(d, v), v1 = hn::LoadU(d, v + lanes);
  const auto v2 = hn::LoadU(d, v + 2 * lanes), v3 = hn::LoadU(d, v + 3 * lanes);
  auto y0 = hn::Zero(d), y1 = y0, y2 = y0, y3 = y0;
  float* r = s.state + column;
  for (int64_t i = 0; i < s.key_dim; ++i, r += s.value_dim) {
    const auto ai = hn::Set(d, a[kChannel ? i : 0]);
    const auto ki = hn::Set(d, k[i]), qi = hn::Set(d, q[i]);
    const auto write = [&](auto vi, float* at) HWY_ATTR {
      const auto written = hn::MulAdd(ki, vi, hn::Mul(ai, hn::LoadU(d, at)));
      hn::StoreU(written, d, at);
      return written;
    };
    y0 = hn::MulAdd(qi, write(v0, r), y0);
    y1 = hn::MulAdd(qi, write(v1, r + lanes), y1);
    y2 = hn::MulAdd(qi, write(v2, r + 2 * lanes), y2);
    y3 = hn::MulAdd(qi, write(v3, r + 3 * lanes), y3);
  }
  float* o = s.out + t * s.out_stride + column;
  hn::StoreU(y0, d, o);
  hn::StoreU(y1, d, o + lanes);
  hn::StoreU(y2, d, o + 2 * lanes);
  hn::StoreU(y3, d, o + 3 * lanes);
}

// The queries behind the first: y = S'q for one vector of columns.
template <class D>
HWY_INLINE void ReadMore(D d, const DecayState& s, int64_t t, int64_t column) {
  for (int64_t read = 1; read < s.reads; ++read) {
    const float* q = s.q + t * s.query_stride + read * s.read_step;
    auto y = hn::Zero(d);
    const float* r = s.state + column;
    for (int64_t i = 0; i < s.key_dim; ++i, r += s.value_dim) {
      y = hn::MulAdd(hn::Set(d, q[i]), hn::LoadU(d, r), y);
    }
    hn::StoreU(y, d, s.out + t * s.out_stride + read * s.value_dim + column);
  }
}

// Columns of S do not meet, so a strip of them takes all tokens before the next one is begun: K
// times the width of a strip stays in the first cache.
template <bool kChannel>
void AllTokens(const DecayState& s) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + 4 * lanes <= s.value_dim; column += 4 * lanes) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      WriteFour<kChannel>(d, s, t, column);
      for (int64_t part = 0; part < 4; ++part) ReadMore(d, s, t, column + part * lanes);
    }
  }
  for (; column + lanes <= s.value_dim; column += lanes) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      Write<kChannel>(d, s, t, column);
      ReadMore(d, s, t, column);
    }
  }
  for (; column < s.value_dim; ++column) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      Write<kChannel>(one, s, t, column);
      ReadMore(one, s, t, column);
    }
  }
}

void DecaySteps(const DecayState& state) {
  if (state.channel_decay) return AllTokens<true>(state);
  AllTokens<false>(state);
}

}  // namespace HWY_NAMESPACE
}  // namespace eddy::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eddy::simd {

HWY_EXPORT(DecaySteps);

void DecaySteps(const DecayState& state) { HWY_DYNAMIC_DISPATCH(DecaySteps)(state); }

}  // namespace eddy::simd
#endif  // HWY_ONCE
