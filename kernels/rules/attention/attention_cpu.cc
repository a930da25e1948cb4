#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/rules/attention/attention.h"

namespace eddy {
namespace {

// Keys of one block: its scores stay in the first cache.
constexpr int64_t kKeyBlock = 64;
// Queries of one block; those of a row's group of heads share their keys, so they stand together.
constexpr int64_t kQueryBlock = 64;
// Below so many queries, a product of matrices costs more in packing than it saves.
constexpr int64_t kFewQueries = 8;

int64_t Group(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }
int64_t RowsPerBlock(const AttentionShape& shape) {
  return std::max<int64_t>(1, kQueryBlock / Group(shape));
}

// One sequence of the step, and where its positions lie.
class PagedSequence {
 public:
  PagedSequence(const Step& step, int sequence, const AttentionArgs& args)
      : first_row(step.row_start[sequence]),
        rows(step.row_start[sequence + 1] - first_row),
        position(step.positions[sequence]),
        rows_per_page_(args.keys.shape[0]),
        row_floats_(args.shape.kv_heads * args.shape.head_dim),
        line_(step.pages + int64_t{sequence} * step.max_pages),
        max_pages_(step.max_pages) {}

  float* Row(const FieldView& view, int64_t at) const {
    const int32_t page = line_[at / rows_per_page_ % max_pages_];
    EDDY_DCHECK(page != kNoPage);
    return view.at<float>(page) + at % rows_per_page_ * row_floats_;
  }
  int64_t PageEnd(int64_t at) const { return (at / rows_per_page_ + 1) * rows_per_page_; }

  const int64_t first_row, rows, position;

 private:
  const int64_t rows_per_page_, row_floats_;
  const int32_t* const line_;
  const int64_t max_pages_;
};

void Turn(const float* cosines, const float* sines, int64_t half, float* x) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

// Turns q and k of the sequence's rows, and puts keys and values into the pages.
void TurnAndStore(const AttentionArgs& p, const PagedSequence& sequence) {
  const auto& [heads, kv_heads, head_dim] = p.shape;
  const int64_t half = head_dim / 2, kv_floats = kv_heads * head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  float* const cosines = p.scratch;
  float* const sines = p.scratch + half;
  for (int64_t r = 0; r < sequence.rows; ++r) {
    const int64_t row = sequence.first_row + r, position = sequence.position + r;
    // In double: a float angle of a late position would be off by its last digits.
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * p.frequencies[i];
      cosines[i] = static_cast<float>(std::cos(angle));
      sines[i] = static_cast<float>(std::sin(angle));
    }
    float* const q = p.q + row * heads * head_dim;
    float* const k = p.k + row * kv_floats;
    const float* const v = p.v + row * kv_floats;
    for (int64_t h = 0; h < heads; ++h) Turn(cosines, sines, half, q + h * head_dim);
    for (int64_t h = 0; h < kv_heads; ++h) Turn(cosines, sines, half, k + h * head_dim);
    simd::Scale(scale, q, heads * head_dim);
    std::copy_n(k, kv_floats, sequence.Row(p.keys, position));
    std::copy_n(v, kv_floats, sequence.Row(p.values, position));
  }
}

// The queries of some consecutive rows that read one head of keys.
class QueryBlock {
 public:
  QueryBlock(const AttentionArgs& args, const PagedSequence& sequence, int64_t kv_head,
             int64_t first, int64_t rows)
      : p_(args),
        sequence_(sequence),
        kv_head_(kv_head),
        first_(first),
        group_(Group(args.shape)),
        queries_(rows * group_),
        few_(queries_ < kFewQueries) {
    const int64_t most = RowsPerBlock(args.shape) * group_, head_dim = args.shape.head_dim;
    q_ = args.scratch;
    sum_of_values_ = q_ + most * head_dim;
    scores_ = sum_of_values_ + most * head_dim;
    greatest_ = scores_ + most * kKeyBlock;
    sum_ = greatest_ + most;
  }

  void Attend();

 private:
  struct Keys {
    int64_t begin = 0, end = 0;  // positions, all on one page
    int64_t count() const { return end - begin; }
  };

  int64_t PositionOf(int64_t query) const { return sequence_.position + first_ + query / group_; }
  int64_t FirstKeyOf(int64_t query) const {
    return p_.window == 0 ? 0 : std::max<int64_t>(0, PositionOf(query) - p_.window + 1);
  }
  bool Reads(int64_t query, int64_t key) const {
    return FirstKeyOf(query) <= key && key <= PositionOf(query);
  }
  // Whether every query reads every one of the keys.
  bool AllRead(const Keys& keys) const {
    return FirstKeyOf(queries_ - 1) <= keys.begin && keys.end <= PositionOf(0) + 1;
  }
  // Where head `kv_head_ * group_ + query % group_` of the query's row lies in a [rows, H, d].
  int64_t HeadAt(int64_t query) const {
    const int64_t row = sequence_.first_row + first_ + query / group_;
    return (row * p_.shape.heads + kv_head_ * group_ + query % group_) * p_.shape.head_dim;
  }
  void Score(const Keys& keys);
  void Weigh(const Keys& keys);
  void Weigh(int64_t query, const Keys& keys);
  void AddValues(const Keys& keys);
  void AddEachValue(const float* v, const Keys& keys);
  bool Finite(const float* v, int64_t rows) const;  // v [rows, d], of this head

  const AttentionArgs& p_;
  const PagedSequence& sequence_;
  const int64_t kv_head_, first_, group_, queries_;
  const bool few_;
  float *q_, *sum_of_values_;  // [queries, d]
  float* scores_;              // [queries, kKeyBlock]: scores, then weights
  float *greatest_, *sum_;     // [queries]
};

void QueryBlock::Attend() {
  const int64_t head_dim = p_.shape.head_dim;
  for (int64_t i = 0; i < queries_; ++i) {
    std::copy_n(p_.q + HeadAt(i), head_dim, q_ + i * head_dim);
  }
  std::fill_n(sum_of_values_, queries_ * head_dim, 0.0f);
  std::fill_n(greatest_, queries_, -std::numeric_limits<float>::infinity());
  std::fill_n(sum_, queries_, 0.0f);
  const int64_t end = PositionOf(queries_ - 1) + 1;
  for (Keys keys{.begin = FirstKeyOf(0)}; keys.begin < end; keys.begin = keys.end) {
    keys.end = std::min({end, sequence_.PageEnd(keys.begin), keys.begin + kKeyBlock});
    Score(keys);
    Weigh(keys);
    AddValues(keys);
  }
  for (int64_t i = 0; i < queries_; ++i) {
    float* const out = p_.out + HeadAt(i);
    std::copy_n(sum_of_values_ + i * head_dim, head_dim, out);
    simd::Scale(1.0f / sum_[i], out, head_dim);
  }
}

void QueryBlock::Score(const Keys& keys) {
  const int64_t head_dim = p_.shape.head_dim, stride = p_.shape.kv_heads * head_dim;
  const float* const k = sequence_.Row(p_.keys, keys.begin) + kv_head_ * head_dim;
  if (few_) {
    for (int64_t s = 0; s < keys.count(); ++s) {
      for (int64_t i = 0; i < queries_; ++i) {
        scores_[i * kKeyBlock + s] = simd::Dot(q_ + i * head_dim, k + s * stride, head_dim);
      }
    }
    return;
  }
  Gemm({.m = queries_,
        .n = keys.count(),
        .k = head_dim,
        .a = {.data = q_, .stride = head_dim},
        .b = {.data = k, .stride = stride, .transposed = true},
        .c = {.data = scores_, .stride = kKeyBlock}});
}

void QueryBlock::Weigh(const Keys& keys) {
  for (int64_t i = 0; i < queries_; ++i) {
    // What the query may read of the block; the weights of all else are zero.
    const Keys mine = {.begin = std::max(keys.begin, FirstKeyOf(i)),
                       .end = std::min(keys.end, PositionOf(i) + 1)};
    float* const scores = scores_ + i * kKeyBlock;
    if (mine.begin >= mine.end) {
      std::fill_n(scores, keys.count(), 0.0f);
      continue;
    }
    std::fill(scores, scores + (mine.begin - keys.begin), 0.0f);
    std::fill(scores + (mine.end - keys.begin), scores + keys.count(), 0.0f);
    Weigh(i, {.begin = mine.begin - keys.begin, .end = mine.end - keys.begin});
  }
}

// The softmax's step for the scores [begin, end) of one query.
void QueryBlock::Weigh(int64_t query, const Keys& keys) {
  float* const scores = scores_ + query * kKeyBlock + keys.begin;
  float& greatest = greatest_[query];
  float& sum = sum_[query];
  const simd::RowSummary summary = simd::Summarise(scores, keys.count());
  if (!summary.finite) {
    // The sequence's numbers are lost; NaN is what tells so further on.
    sum = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(scores, keys.count(), 0.0f);
    return;
  }
  if (summary.max > greatest) {
    const float shrink = std::exp(greatest - summary.max);  // from -infinity it is 0
    greatest = summary.max;
    sum *= shrink;
    simd::Scale(shrink, sum_of_values_ + query * p_.shape.head_dim, p_.shape.head_dim);
  }
  sum += static_cast<float>(simd::ExpInto(scores, 1.0f, greatest, scores, keys.count()));
}

// Matrices are multiplied whole, and a value that is lost times a weight of zero is lost too: so
// that a lost row never reaches rows which do not read it, such blocks are added key by key.
void QueryBlock::AddValues(const Keys& keys) {
  const int64_t head_dim = p_.shape.head_dim, stride = p_.shape.kv_heads * head_dim;
  const float* const v = sequence_.Row(p_.values, keys.begin) + kv_head_ * head_dim;
  if (few_ || (!AllRead(keys) && !Finite(v, keys.count()))) return AddEachValue(v, keys);
  Gemm({.m = queries_,
        .n = head_dim,
        .k = keys.count(),
        .a = {.data = scores_, .stride = kKeyBlock},
        .b = {.data = v, .stride = stride},
        .beta = 1.0f,
        .c = {.data = sum_of_values_, .stride = head_dim}});
}

void QueryBlock::AddEachValue(const float* v, const Keys& keys) {
  const int64_t head_dim = p_.shape.head_dim, stride = p_.shape.kv_heads * head_dim;
  for (int64_t s = 0; s < keys.count(); ++s) {
    for (int64_t i = 0; i < queries_; ++i) {
      if (!Reads(i, keys.begin + s)) continue;
      const float weight = scores_[i * kKeyBlock + s];
      simd::AddScaled(weight, v + s * stride, sum_of_values_ + i * head_dim, head_dim);
    }
  }
}

bool QueryBlock::Finite(const float* v, int64_t rows) const {
  const int64_t head_dim = p_.shape.head_dim, stride = p_.shape.kv_heads * head_dim;
  for (int64_t s = 0; s < rows; ++s) {
    if (!simd::Summarise(v + s * stride, head_dim).finite) return false;
  }
  return true;
}

}  // namespace

std::vector<double> RopeFrequencies(double theta, int64_t head_dim) {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  return frequencies;
}

int64_t AttentionScratchFloats(const AttentionShape& shape) {
  const int64_t queries = RowsPerBlock(shape) * Group(shape);
  return queries * (2 * shape.head_dim + kKeyBlock + 2);
}

void AttentionCpu(const Step& step, const AttentionArgs& p) {
  const int64_t width = p.shape.heads * p.shape.head_dim, block = RowsPerBlock(p.shape);
  for (int i = 0; i < step.sequences; ++i) {
    if (step.row_start[i] == step.row_start[i + 1]) continue;
    if (step.slots[i] == kNoSlot) {
      std::fill(p.out + step.row_start[i] * width, p.out + step.row_start[i + 1] * width, 0.0f);
      continue;
    }
    const PagedSequence sequence(step, i, p);
    TurnAndStore(p, sequence);
    for (int64_t kv_head = 0; kv_head < p.shape.kv_heads; ++kv_head) {
      for (int64_t first = 0; first < sequence.rows; first += block) {
        QueryBlock(p, sequence, kv_head, first, std::min(block, sequence.rows - first)).Attend();
      }
    }
  }
}

}  // namespace eddy
