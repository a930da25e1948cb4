#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/rules/delta_rule/delta_rule.h"

namespace eddy {
namespace {

constexpr int64_t kChunk = 64;

// Scratch of one chunk of one value head.
struct Scratch {
  Scratch(float* at, const DeltaRuleShape& shape)
      : reads(at),
        grams(reads + 2 * kChunk * shape.key_dim),
        writes(grams + 2 * kChunk * kChunk),
        products(writes + kChunk * shape.key_dim),
        sums(products + 2 * kChunk * shape.value_dim) {}

  float* reads;     // [2c, K]: k, then q; later times e^G
  float* grams;     // [2c, c]: k w', then q w'; later X and P
  float* writes;    // [c, K]: w; later times e^{G_c - G}
  float* products;  // [2c, V]: reads S; the first half becomes N, the second one O
  float* sums;      // [c]: G
};

struct Head {
  const float* q;
  const float* k;
  const float* w;
  const float* v;
  const float* beta;
  const float* decay;      // factors; null: none
  const float* log_decay;  // null: none
  float* out;
  float* residual;  // null: not wanted
  int64_t key_stride, write_stride, value_stride, head_stride;
};

void SumDecay(const Head& h, int64_t c, float* sums) {
  float sum = 0;
  for (int64_t i = 0; i < c; ++i) {
    sum += h.log_decay != nullptr ? h.log_decay[i * h.head_stride] : 0.0f;
    sums[i] = sum;
  }
}

void CopyRows(const float* from, int64_t stride, int64_t rows, int64_t width, float* to) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * stride, width, to + i * width);
}

// Grams to X and P in place: decay between the tokens, beta, and the mask (before any exponent).
void MaskGrams(const Head& h, int64_t c, const float* sums, float* grams) {
  float* x = grams;
  float* p = grams + c * c;
  for (int64_t i = 0; i < c; ++i) {
    const float beta = h.beta[i * h.head_stride];
    for (int64_t j = 0; j <= i; ++j) {
      const float between = std::exp(sums[i] - sums[j]);
      x[i * c + j] *= beta * between;
      p[i * c + j] *= between;
    }
    std::fill(p + i * c + i + 1, p + (i + 1) * c, 0.0f);
  }
}

// Adds this head's share of the residuals, from N = diag(beta) e.
void AddResiduals(const Head& h, int64_t c, int64_t value_dim, const float* n) {
  const auto value_heads = static_cast<float>(h.head_stride);
  for (int64_t i = 0; i < c; ++i) {
    const float length = h.beta[i * h.head_stride] *
                         std::sqrt(simd::SumOfSquares(h.v + i * h.value_stride, value_dim));
    if (length == 0) continue;
    h.residual[i] +=
        std::sqrt(simd::SumOfSquares(n + i * value_dim, value_dim)) / length / value_heads;
  }
}

// The rows of a chunk that loses its numbers, one by one. Products and the solver spread NaN to the
// rows before it too (zero times NaN is NaN), and the first row that is lost is to be known. Of the
// residuals nothing is to be had.
void LostChunk(const Head& h, const DeltaRuleShape& shape, int64_t c, float* state) {
  simd::DeltaSteps({.tokens = c,
                    .key_dim = shape.key_dim,
                    .value_dim = shape.value_dim,
                    .q = h.q,
                    .k = h.k,
                    .w = h.w,
                    .v = h.v,
                    .beta = h.beta,
                    .decay = h.decay,
                    .key_stride = h.key_stride,
                    .write_stride = h.write_stride,
                    .value_stride = h.value_stride,
                    .beta_stride = h.head_stride,
                    .decay_stride = h.head_stride,
                    .state = state,
                    .out = h.out});
  if (h.residual == nullptr) return;
  std::fill_n(h.residual, c, std::numeric_limits<float>::quiet_NaN());
}

void Chunk(const Head& h, const DeltaRuleShape& shape, int64_t c, const Scratch& s, float* state) {
  const int64_t key_dim = shape.key_dim, value_dim = shape.value_dim;
  SumDecay(h, c, s.sums);
  CopyRows(h.k, h.key_stride, c, key_dim, s.reads);
  CopyRows(h.q, h.key_stride, c, key_dim, s.reads + c * key_dim);
  CopyRows(h.w, h.write_stride, c, key_dim, s.writes);
  Gemm({.m = 2 * c,
        .n = c,
        .k = key_dim,
        .a = {.data = s.reads, .stride = key_dim},
        .b = {.data = s.writes, .stride = key_dim, .transposed = true},
        .c = {.data = s.grams, .stride = c}});
  MaskGrams(h, c, s.sums, s.grams);

  for (int64_t i = 0; i < 2 * c; ++i) {
    simd::Scale(std::exp(s.sums[i % c]), s.reads + i * key_dim, key_dim);
  }
  Gemm({.m = 2 * c,
        .n = value_dim,
        .k = key_dim,
        .a = {.data = s.reads, .stride = key_dim},
        .b = {.data = state, .stride = value_dim},
        .c = {.data = s.products, .stride = value_dim}});
  float* n = s.products;
  for (int64_t i = 0; i < c; ++i) {
    const float* v = h.v + i * h.value_stride;
    const float beta = h.beta[i * h.head_stride];
    for (int64_t m = 0; m < value_dim; ++m) {
      n[i * value_dim + m] = beta * (v[m] - n[i * value_dim + m]);
    }
  }
  SolveUnitLower({.data = s.grams, .stride = c}, {.data = n, .stride = value_dim}, c, value_dim);
  if (!simd::Summarise(n, c * value_dim).finite) return LostChunk(h, shape, c, state);
  if (h.residual != nullptr) AddResiduals(h, c, value_dim, n);
  float* out = s.products + c * value_dim;
  Gemm({.m = c,
        .n = value_dim,
        .k = c,
        .a = {.data = s.grams + c * c, .stride = c},
        .b = {.data = n, .stride = value_dim},
        .beta = 1,
        .c = {.data = out, .stride = value_dim}});
  for (int64_t i = 0; i < c; ++i) {
    std::copy_n(out + i * value_dim, value_dim, h.out + i * h.value_stride);
    simd::Scale(std::exp(s.sums[c - 1] - s.sums[i]), s.writes + i * key_dim, key_dim);
  }
  Gemm({.m = key_dim,
        .n = value_dim,
        .k = c,
        .a = {.data = s.writes, .stride = key_dim, .transposed = true},
        .b = {.data = n, .stride = value_dim},
        .beta = std::exp(s.sums[c - 1]),
        .c = {.data = state, .stride = value_dim}});
}

}  // namespace

int64_t DeltaChunkFloats(const DeltaRuleShape& shape) {
  return kChunk * (3 * shape.key_dim + 2 * kChunk + 2 * shape.value_dim + 1);
}

void DeltaRuleChunks(const DeltaRuleArgs& p, int64_t first, int64_t rows, float* state) {
  EDDY_CHECK(!p.channel_decay && (p.decay == nullptr) == (p.log_decay == nullptr));
  const auto& [heads, value_heads, key_dim, value_dim] = p.shape;
  const int64_t group = value_heads / heads;
  for (int64_t j = 0; j < value_heads; ++j) {
    for (int64_t begin = first; begin < first + rows; begin += kChunk) {
      const int64_t key_at = (begin * heads + j / group) * key_dim;
      const int64_t head_at = begin * value_heads + j;
      const Head head{
          .q = p.q + key_at,
          .k = p.k + key_at,
          .w = p.w != nullptr ? p.w + head_at * key_dim : p.k + key_at,
          .v = p.v + head_at * value_dim,
          .beta = p.beta + head_at,
          .decay = p.decay != nullptr ? p.decay + head_at : nullptr,
          .log_decay = p.log_decay != nullptr ? p.log_decay + head_at : nullptr,
          .out = p.out + head_at * value_dim,
          .residual = p.readouts.residual != nullptr ? p.readouts.residual + begin : nullptr,
          .key_stride = heads * key_dim,
          .write_stride = (p.w != nullptr ? value_heads : heads) * key_dim,
          .value_stride = value_heads * value_dim,
          .head_stride = value_heads};
      Chunk(head, p.shape, std::min(kChunk, first + rows - begin), Scratch(p.scratch, p.shape),
            state + j * key_dim * value_dim);
    }
  }
}

}  // namespace eddy
