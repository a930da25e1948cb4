#include <algorithm>

#include "kernels/cpu/simd.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_product.cc"
#include <hwy/foreach_target.h>  // before all that is compiled once for each target
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace eddy::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// A processor without SSSE3: a plain loop.
void Product(const ProductArgs& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < p.out; ++o) {
      float sum = 0;
      for (int64_t i = 0; i < p.in; ++i) sum += p.x[r * p.in + i] * p.w[o * p.in + i];
      float& y = p.y[r * p.out + o];
      y = p.accumulate ? y + sum : sum;
    }
  }
}

#else

using Full = hn::ScalableTag<float>;
using Four = hn::CappedTag<float, 4>;

// Adds the upper half of a vector to the lower one until four lanes are left.
template <class D, class V>
HWY_INLINE hn::Vec<Four> Fold(D d, V v) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return Fold(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// [sum a, sum b, sum c, sum d], always in the same order.
template <class V>
HWY_INLINE hn::Vec<Four> SumFour(V a, V b, V c, V e) {
  const Full d;
  const hn::Repartition<double, Full> d2;
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto low = hn::InterleaveLower(d2, hn::BitCast(d2, ab), hn::BitCast(d2, ce));
  const auto high = hn::InterleaveUpper(d2, hn::BitCast(d2, ab), hn::BitCast(d2, ce));
  return Fold(d, hn::Add(hn::BitCast(d, low), hn::BitCast(d, high)));
}

// kRows rows times four outputs; the tail of `in` that fills no vector is added one by one.
// kFetch: also asks for the weights of the next four outputs, which lie behind these and which the
// hardware does not foresee, since each row of weights is a new stream to it.
template <int kRows, bool kFetch>
HWY_INLINE void Tile(const ProductArgs& p, int64_t row, int64_t column) {
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* w0 = p.w + column * p.in;
  const float *w1 = w0 + p.in, *w2 = w1 + p.in, *w3 = w2 + p.in;
  const float* x0 = p.x + row * p.in;
  const float* x1 = kRows > 1 ? x0 + p.in : x0;
  const float* x2 = kRows > 2 ? x1 + p.in : x0;
  const float* x3 = kRows > 2 ? x2 + p.in : x0;
  const int64_t ahead = 4 * p.in;
  auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  auto b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  auto c0 = a0, c1 = a0, c2 = a0, c3 = a0;
  auto e0 = a0, e1 = a0, e2 = a0, e3 = a0;
  int64_t i = 0;
  for (; i + lanes <= p.in; i += lanes) {
    const auto u0 = hn::LoadU(d, w0 + i), u1 = hn::LoadU(d, w1 + i);
    const auto u2 = hn::LoadU(d, w2 + i), u3 = hn::LoadU(d, w3 + i);
    if constexpr (kFetch) {
      hwy::Prefetch(w0 + ahead + i);
      hwy::Prefetch(w1 + ahead + i);
      hwy::Prefetch(w2 + ahead + i);
      hwy::Prefetch(w3 + ahead + i);
    }
    const auto s0 = hn::LoadU(d, x0 + i);
    a0 = hn::MulAdd(s0, u0, a0);
    a1 = hn::MulAdd(s0, u1, a1);
    a2 = hn::MulAdd(s0, u2, a2);
    a3 = hn::MulAdd(s0, u3, a3);
    if constexpr (kRows > 1) {
      const auto s1 = hn::LoadU(d, x1 + i);
      b0 = hn::MulAdd(s1, u0, b0);
      b1 = hn::MulAdd(s1, u1, b1);
      b2 = hn::MulAdd(s1, u2, b2);
      b3 = hn::MulAdd(s1, u3, b3);
    }
    if constexpr (kRows > 2) {
      const auto s2 = hn::LoadU(d, x2 + i), s3 = hn::LoadU(d, x3 + i);
      c0 = hn::MulAdd(s2, u0, c0);
      c1 = hn::MulAdd(s2, u1, c1);
      c2 = hn::MulAdd(s2, u2, c2);
      c3 = hn::MulAdd(s2, u3, c3);
      e0 = hn::MulAdd(s3, u0, e0);
      e1 = hn::MulAdd(s3, u1, e1);
      e2 = hn::MulAdd(s3, u2, e2);
      e3 = hn::MulAdd(s3, u3, e3);
    }
  }
  const auto finish = [&](auto sums, const float* x, float* y) HWY_ATTR {
    const Four four;
    HWY_ALIGN float sum[4];
    hn::Store(sums, four, sum);
    for (int64_t t = i; t < p.in; ++t) {
      for (int j = 0; j < 4; ++j) sum[j] += x[t] * w0[j * p.in + t];
    }
    for (int j = 0; j < 4; ++j) y[j] = p.accumulate ? y[j] + sum[j] : sum[j];
  };
  float* y = p.y + row * p.out + column;
  finish(SumFour(a0, a1, a2, a3), x0, y);
  if constexpr (kRows > 1) finish(SumFour(b0, b1, b2, b3), x1, y + p.out);
  if constexpr (kRows > 2) {
    finish(SumFour(c0, c1, c2, c3), x2, y + 2 * p.out);
    finish(SumFour(e0, e1, e2, e3), x3, y + 3 * p.out);
  }
}

// One row times one output, in the order of Tile.
HWY_INLINE void Single(const ProductArgs& p, int64_t row, int64_t column) {
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* x = p.x + row * p.in;
  const float* w = p.w + column * p.in;
  auto a = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= p.in; i += lanes) {
    a = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, w + i), a);
  }
  float sum = hn::GetLane(SumFour(a, a, a, a));
  for (; i < p.in; ++i) sum += x[i] * w[i];
  float* y = p.y + row * p.out + column;
  *y = p.accumulate ? *y + sum : sum;
}

void Product(const ProductArgs& p) {
  // Rows in blocks that stay in the first cache beside four rows of w; w is read once per block.
  constexpr int64_t kBlockBytes = 32 << 10;
  const int64_t fit =
      kBlockBytes / static_cast<int64_t>(sizeof(float)) / std::max<int64_t>(p.in, 1);
  const int64_t block = std::max<int64_t>(fit / 4 * 4, 16);
  // Sixteen sums need more than sixteen registers: four rows at a time only where there are 32.
  constexpr bool kWide = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL;
  for (int64_t begin = 0; begin < p.rows; begin += block) {
    const int64_t end = std::min(p.rows, begin + block);
    int64_t column = 0;
    for (; column + 4 <= p.out; column += 4) {
      int64_t row = begin;
      if constexpr (kWide) {
        if (row + 4 <= end) Tile<4, true>(p, row, column), row += 4;
        for (; row + 4 <= end; row += 4) Tile<4, false>(p, row, column);
      }
      for (; row + 2 <= end; row += 2) Tile<2, true>(p, row, column);
      for (; row < end; ++row) Tile<1, false>(p, row, column);
    }
    for (; column < p.out; ++column) {
      for (int64_t row = begin; row < end; ++row) Single(p, row, column);
    }
  }
}

#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace eddy::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eddy::simd {

HWY_EXPORT(Product);

void Product(const ProductArgs& args) { HWY_DYNAMIC_DISPATCH(Product)(args); }

}  // namespace eddy::simd
#endif  // HWY_ONCE
