// Rule: causal softmax attention over keys and values in pages, with rotary positions. For head h
// of the row at position t, with q, k, v in R^d and h' = h / (H / HKV) (grouped queries, Ainslie et
// al. 2023, arXiv 2305.13245):
//   q, k   <- R_t q, R_t k
//   p_s    =  softmax over s in max(0, t - window + 1) .. t of  d^-1/2 q[h] . k_s[h']
//   o[h]   =  sum_s p_s v_s[h']
// R_t turns the pairs (x_i, x_{i + d/2}), i < d/2, by the angle t theta^(-2i/d) (Su et al. 2021,
// arXiv 2104.09864, pairs half a head apart as in flash-linear-attention). `window` 0: all of the
// past.
//
// Where position t of a sequence lies: row t % rows_per_page of the page that the entry
// (t / rows_per_page) % max_pages of its line in Step::pages names. A line that holds the whole
// sequence never wraps round; where a window bounds what is read, a line of RingPages entries is a
// ring, in which new positions take the places of those that no later row will read.
//
// The softmax runs online over blocks of keys (Milakov and Gimelshein 2018, arXiv 1805.02867), in
// float: with the greatest score m so far, the sum l and the weighted values a,
//   m' = max(m, max_s x_s);  l <- e^{m - m'} l + sum_s e^{x_s - m'};  a likewise;  o = a / l.
// Blocks of many rows take matrix products, few rows dot products; what is taken depends on the
// sequence's own rows alone.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // H, HKV, d
};

struct AttentionArgs {
  AttentionShape shape = {};
  int64_t window = 0;
  const double* frequencies = nullptr;  // [d / 2]; RopeFrequencies
  float* q = nullptr;                   // [rows, H, d]; turned and scaled in place
  float* k = nullptr;                   // [rows, HKV, d]; turned in place
  const float* v = nullptr;             // [rows, HKV, d]
  FieldView keys = {};                  // [rows_per_page, HKV, d] fp32; turned
  FieldView values = {};                // likewise
  float* out = nullptr;                 // [rows, H, d]
  float* scratch = nullptr;             // AttentionScratchFloats
};

// theta^(-2i/d) for i < d/2.
std::vector<double> RopeFrequencies(double theta, int64_t head_dim);

int64_t AttentionScratchFloats(const AttentionShape& shape);

// Writes keys and values of all rows, then attends. Rows of kNoSlot become zeros, and no page is
// touched for them.
void AttentionCpu(const Step& step, const AttentionArgs& args);

// The fewest pages in which a sequence can go on for ever if no row reads further back than
// `window` positions, itself included: room for the window and one step's rows, wherever on a page
// they begin. All >= 1.
struct RingNeeds {
  int64_t window = 0;
  int64_t max_rows_per_step = 0;
  int64_t rows_per_page = 0;
};
constexpr int64_t RingPages(const RingNeeds& needs) {
  // The rows of a step read window - 1 positions before the first of them.
  const int64_t span = needs.window - 1 + needs.max_rows_per_step;
  // Of the span, one position lies on the first page at least; the others follow.
  return 1 + (span - 1 + needs.rows_per_page - 1) / needs.rows_per_page;
}

}  // namespace eddy
