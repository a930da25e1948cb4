#include "kernels/cpu/simd.h"

#include <algorithm>
#include <cmath>
#include <limits>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd.cc"
#include <hwy/foreach_target.h>  // before all that is compiled once for each target
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace eddy::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Full = hn::ScalableTag<float>;
using One = hn::CappedTag<float, 1>;  // what is left over goes through the same code, lane by lane

// Calls op(d, i) for all i in steps of the width of d.
template <class Op>
HWY_INLINE void ForAll(int64_t n, const Op& op) {
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) op(d, i);
  for (; i < n; ++i) op(One(), i);
}

// Highway's Exp gives nonsense where the result is no float; from here on it is e^88 instead.
template <class V>
HWY_INLINE V ExpOf(V x) {
  const hn::DFromV<V> d;
  return hn::Exp(d, hn::Min(x, hn::Set(d, 88.0f)));
}

template <class V>
HWY_INLINE V SigmoidOf(V x) {
  const hn::DFromV<V> d;
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, ExpOf(hn::Neg(x))));
}

float Dot(const float* a, const float* b, int64_t n) {
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), sum1);
  }
  for (; i + lanes <= n; i += lanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

float SumOfSquares(const float* x, int64_t n) { return Dot(x, x, n); }

float Sum(const float* x, int64_t n) {
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::Add(sum, hn::LoadU(d, x + i));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i];
  return total;
}

void AddScaled(float a, const float* x, float* y, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::Set(d, a), hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  });
}

void Scale(float a, float* x, int64_t n) {
  ForAll(n, [&](auto d, int64_t i)
                HWY_ATTR { hn::StoreU(hn::Mul(hn::Set(d, a), hn::LoadU(d, x + i)), d, x + i); });
}

void Multiply(const float* x, const float* w, float* y, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, w + i)), d, y + i);
  });
}

void MultiplyAdd(const float* x, const float* w, float* y, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, w + i), hn::LoadU(d, y + i)), d, y + i);
  });
}

void Exp(float* x, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(ExpOf(hn::LoadU(d, x + i)), d, x + i); });
}

void Sigmoid(float* x, int64_t n) {
  ForAll(n,
         [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(SigmoidOf(hn::LoadU(d, x + i)), d, x + i); });
}

void Silu(float* x, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto a = hn::LoadU(d, x + i);
    hn::StoreU(hn::Mul(a, SigmoidOf(a)), d, x + i);
  });
}

void Softplus(float* x, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto a = hn::LoadU(d, x + i);
    const auto limit = hn::Set(d, 20.0f);
    const auto soft = hn::Log1p(d, hn::Exp(d, hn::Min(a, limit)));
    hn::StoreU(hn::IfThenElse(hn::Gt(a, limit), a, soft), d, x + i);
  });
}

void MultiplySilu(const float* gate, float* x, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto z = hn::LoadU(d, gate + i);
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Mul(z, SigmoidOf(z))), d, x + i);
  });
}

void MultiplySigmoid(const float* gate, float* x, int64_t n) {
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), SigmoidOf(hn::LoadU(d, gate + i))), d, x + i);
  });
}

void RmsNorm(const float* x, const float* w, float eps, float* y, int64_t n) {
  const float scale = 1.0f / std::sqrt(Dot(x, x, n) / static_cast<float>(n) + eps);
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto normed = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale));
    hn::StoreU(hn::Mul(normed, hn::LoadU(d, w + i)), d, y + i);
  });
}

RowSummary Summarise(const float* x, int64_t n) {
  // x * 0 is NaN where x is NaN or infinite, and so is every sum with it.
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto most = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto zeros = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto a = hn::LoadU(d, x + i);
    most = hn::Max(most, a);
    zeros = hn::MulAdd(a, hn::Zero(d), zeros);
  }
  float max = hn::GetLane(hn::MaxOfLanes(d, most));
  float zero = hn::GetLane(hn::SumOfLanes(d, zeros));
  for (; i < n; ++i) {
    max = std::max(max, x[i]);
    zero += x[i] * 0.0f;
  }
  return {.finite = zero == 0.0f, .max = max};
}

// Floats are summed in short runs, runs in double.
constexpr int64_t kRun = 1024;

ExpSums SumExp(const float* x, float max, int64_t n) {
  ExpSums sums;
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t end = std::min(n, begin + kRun);
    auto exp = hn::Zero(d), exp_x = hn::Zero(d);
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const auto a = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, max));
      const auto e = hn::Exp(d, a);
      exp = hn::Add(exp, e);
      exp_x = hn::MulAdd(e, a, exp_x);
    }
    sums.exp += hn::GetLane(hn::SumOfLanes(d, exp));
    sums.exp_x += hn::GetLane(hn::SumOfLanes(d, exp_x));
    for (; i < end; ++i) {
      const float a = x[i] - max, e = std::exp(a);
      sums.exp += e;
      sums.exp_x += e * a;
    }
  }
  return sums;
}

double ExpInto(const float* x, float scale, float max, float* y, int64_t n) {
  double total = 0;
  // Below e^-87 there are no normal floats; this also keeps infinities out of the polynomial.
  constexpr float kLeast = -87.0f;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t count = std::min(kRun, n - begin);
    ForAll(count, [&](auto d, int64_t i) HWY_ATTR {
      const auto raw = hn::LoadU(d, x + begin + i);
      const auto a = hn::Mul(hn::Set(d, scale), hn::Sub(raw, hn::Set(d, max)));
      const auto e = hn::Exp(d, hn::Max(a, hn::Set(d, kLeast)));
      hn::StoreU(hn::IfThenElseZero(hn::Ge(a, hn::Set(d, kLeast)), e), d, y + begin + i);
    });
    total += Sum(y + begin, count);
  }
  return total;
}

int64_t CountAbove(const float* x, float bound, int64_t n) {
  int64_t count = 0;
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto above = hn::Gt(hn::LoadU(d, x + i), hn::Set(d, bound));
    count += static_cast<int64_t>(hn::CountTrue(d, above));
  });
  return count;
}

int64_t CountEqual(const float* x, float value, int64_t n) {
  int64_t count = 0;
  ForAll(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto equal = hn::Eq(hn::LoadU(d, x + i), hn::Set(d, value));
    count += static_cast<int64_t>(hn::CountTrue(d, equal));
  });
  return count;
}

float Max(const float* x, int64_t n) {
  const Full d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto most = hn::Set(d, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  float max = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) max = std::max(max, x[i]);
  return max;
}

void BlockMaxima(const float* x, int64_t n, int64_t block, float* maxima) {
  for (int64_t begin = 0; begin < n; begin += block) {
    maxima[begin / block] = Max(x + begin, std::min(block, n - begin));
  }
}

int64_t ArgMax(const float* x, int64_t n) {
  const float max = Max(x, n);
  return std::find(x, x + n, max) - x;
}

std::string Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace eddy::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eddy::simd {

HWY_EXPORT(Target);
HWY_EXPORT(Dot);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(Sum);
HWY_EXPORT(AddScaled);
HWY_EXPORT(Scale);
HWY_EXPORT(Multiply);
HWY_EXPORT(MultiplyAdd);
HWY_EXPORT(Exp);
HWY_EXPORT(Sigmoid);
HWY_EXPORT(Silu);
HWY_EXPORT(Softplus);
HWY_EXPORT(MultiplySilu);
HWY_EXPORT(MultiplySigmoid);
HWY_EXPORT(RmsNorm);
HWY_EXPORT(Summarise);
HWY_EXPORT(SumExp);
HWY_EXPORT(ExpInto);
HWY_EXPORT(CountAbove);
HWY_EXPORT(CountEqual);
HWY_EXPORT(BlockMaxima);
HWY_EXPORT(ArgMax);

std::string Target() { return HWY_DYNAMIC_DISPATCH(Target)(); }
float Dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n); }
float SumOfSquares(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, n); }
float Sum(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Sum)(x, n); }
void AddScaled(float a, const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(a, x, y, n);
}
void Scale(float a, float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Scale)(a, x, n); }
void Multiply(const float* x, const float* w, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Multiply)(x, w, y, n);
}
void MultiplyAdd(const float* x, const float* w, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(MultiplyAdd)(x, w, y, n);
}
void Exp(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Exp)(x, n); }
void Sigmoid(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Sigmoid)(x, n); }
void Silu(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Silu)(x, n); }
void Softplus(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Softplus)(x, n); }
void MultiplySilu(const float* gate, float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(MultiplySilu)(gate, x, n);
}
void MultiplySigmoid(const float* gate, float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(MultiplySigmoid)(gate, x, n);
}
void RmsNorm(const float* x, const float* w, float eps, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, w, eps, y, n);
}
RowSummary Summarise(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Summarise)(x, n); }
ExpSums SumExp(const float* x, float max, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumExp)(x, max, n);
}
double ExpInto(const float* x, float scale, float max, float* y, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(ExpInto)(x, scale, max, y, n);
}
int64_t CountAbove(const float* x, float bound, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(CountAbove)(x, bound, n);
}
int64_t CountEqual(const float* x, float value, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(CountEqual)(x, value, n);
}
void BlockMaxima(const float* x, int64_t n, int64_t block, float* maxima) {
  HWY_DYNAMIC_DISPATCH(BlockMaxima)(x, n, block, maxima);
}
int64_t ArgMax(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(ArgMax)(x, n); }

}  // namespace eddy::simd
#endif  // HWY_ONCE
