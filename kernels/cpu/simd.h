// Vector primitives of the CPU back end. The best instruction set is picked at run time; simd.cc
// and simd_delta.cc are the only users of Highway. Arrays need no alignment, lengths any value from
// 0. Results depend on the values and lengths alone, never on an address.
#pragma once

#include <cstdint>
#include <string>

namespace eddy::simd {

// The instruction set in use, for the log.
std::string Target();

float Dot(const float* a, const float* b, int64_t n);
float SumOfSquares(const float* x, int64_t n);
float Sum(const float* x, int64_t n);
// y += a * x
void AddScaled(float a, const float* x, float* y, int64_t n);
// x *= a
void Scale(float a, float* x, int64_t n);
// y = x * w
void Multiply(const float* x, const float* w, float* y, int64_t n);
// y += x * w
void MultiplyAdd(const float* x, const float* w, float* y, int64_t n);

// In place, float accuracy (a few units in the last place).
void Exp(float* x, int64_t n);  // no more than e^88
void Sigmoid(float* x, int64_t n);
void Silu(float* x, int64_t n);
void Softplus(float* x, int64_t n);  // ln(1 + e^x); the identity above 20
// x *= silu(gate), x *= sigmoid(gate)
void MultiplySilu(const float* gate, float* x, int64_t n);
void MultiplySigmoid(const float* gate, float* x, int64_t n);

// y = x * rsqrt(mean(x^2) + eps) * w; y may be x.
void RmsNorm(const float* x, const float* w, float eps, float* y, int64_t n);

// y[r, o] (+)= sum_i x[r, i] w[o, i]: x [rows, in], w [out, in], y [rows, out]. Every element is
// summed in the same order whatever `rows` and its place, so that a row's bits do not depend on its
// company.
struct ProductArgs {
  int64_t rows = 0, in = 0, out = 0;
  const float* x = nullptr;
  const float* w = nullptr;
  float* y = nullptr;
  bool accumulate = false;
};
void Product(const ProductArgs& args);

// What one pass over a row of logits tells.
struct RowSummary {
  bool finite = true;  // false: it holds NaN or infinity, and `max` means nothing
  float max = 0;
};
RowSummary Summarise(const float* x, int64_t n);
// Sums of e^(x - max) and of e^(x - max) (x - max).
struct ExpSums {
  double exp = 0, exp_x = 0;
};
ExpSums SumExp(const float* x, float max, int64_t n);
// y = e^(scale (x - max)); returns the sum. Where x is -infinity, y is 0.
double ExpInto(const float* x, float scale, float max, float* y, int64_t n);
// How many x are above `bound`, and how many equal it.
int64_t CountAbove(const float* x, float bound, int64_t n);
int64_t CountEqual(const float* x, float value, int64_t n);
// The greatest of each `block` elements (the last block may be shorter): maxima [ceil(n / block)].
void BlockMaxima(const float* x, int64_t n, int64_t block, float* maxima);
// Lowest index of the greatest element; n > 0, no NaN.
int64_t ArgMax(const float* x, int64_t n);

// The asymmetric gated delta rule for one value head, token by token: see
// kernels/rules/delta_rule/delta_rule.h. A `*_stride` is the distance from one token to the next.
struct DeltaHead {
  int64_t tokens = 0, key_dim = 0, value_dim = 0;
  const float* q = nullptr;  // [tokens, K], scaled
  const float* k = nullptr;  // [tokens, K]
  const float* w = nullptr;  // [tokens, K]
  const float* v = nullptr;  // [tokens, V]
  const float* beta = nullptr;
  const float* decay =
      nullptr;  // factors e^g: [tokens], or [tokens, K] if `channel_decay`; null: 1
  int64_t key_stride = 0, write_stride = 0, value_stride = 0, beta_stride = 0, decay_stride = 0;
  bool channel_decay = false;
  float* state = nullptr;  // [K, V]
  float* out = nullptr;    // [tokens, V], at value_stride
};
void DeltaSteps(const DeltaHead& head);

}  // namespace eddy::simd
