// Proves the attention rule against the softmax written out in float64: over random shapes,
// windows, page sizes and splits of a prompt, with pages in any order, in rings no longer than
// RingPages says, and with everything that was not written full of NaN. And that a sequence whose
// numbers are lost harms no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/rules/attention/attention.h"
#include "tests/testing/layer_conformance.h"

namespace eddy {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kTolerance = 1e-5;

struct Case {
  AttentionShape shape = {};
  int64_t window = 0;
  double theta = 10000;
  int64_t rows_per_page = 16;
  int64_t max_rows_per_step = 1;
  int64_t first_position = 0;  // of the sequence's first row; what lies before is never written
};

// What one sequence brings: q [T, H, d], k and v [T, HKV, d].
struct Rows {
  Rows(const Case& of, int64_t count, std::mt19937& random, float size = 1)
      : rows(count),
        q(Random(count * of.shape.heads * of.shape.head_dim, random, size)),
        k(Random(count * of.shape.kv_heads * of.shape.head_dim, random, size)),
        v(Random(count * of.shape.kv_heads * of.shape.head_dim, random, 1)) {}
  static std::vector<float> Random(int64_t n, std::mt19937& random, float size) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = normal(random);
    return values;
  }
  int64_t rows;
  std::vector<float> q, k, v;
};

// x turned by the angles of its position.
std::vector<double> Turned(const Case& of, const float* x, int64_t position) {
  const int64_t d = of.shape.head_dim;
  std::vector<double> y(static_cast<size_t>(d));
  for (int64_t i = 0; i < d / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(d);
    const double angle = static_cast<double>(position) * std::pow(of.theta, exponent);
    const double a = x[i], b = x[i + d / 2];
    y[static_cast<size_t>(i)] = a * std::cos(angle) - b * std::sin(angle);
    y[static_cast<size_t>(i + d / 2)] = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

std::vector<double> Reference(const Case& of, const Rows& rows) {
  const auto& [heads, kv_heads, d] = of.shape;
  std::vector<std::vector<double>> keys;  // [T * HKV]
  for (int64_t i = 0; i < rows.rows * kv_heads; ++i) {
    keys.push_back(Turned(of, rows.k.data() + i * d, of.first_position + i / kv_heads));
  }
  std::vector<double> out;
  for (int64_t i = 0; i < rows.rows * heads; ++i) {
    const int64_t t = i / heads, kv = i % heads / (heads / kv_heads);
    const int64_t from = of.window == 0 ? 0 : std::max<int64_t>(0, t - of.window + 1);
    const auto q = Turned(of, rows.q.data() + i * d, of.first_position + t);
    std::vector<double> weights;
    for (int64_t s = from; s <= t; ++s) {
      const std::vector<double>& k = keys[static_cast<size_t>(s * kv_heads + kv)];
      const double score = std::inner_product(q.begin(), q.end(), k.begin(), 0.0);
      weights.push_back(score / std::sqrt(static_cast<double>(d)));
    }
    const double greatest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - greatest);
    for (int64_t m = 0; m < d; ++m) {
      double value = 0;
      for (int64_t s = from; s <= t; ++s) {
        const float v = rows.v[static_cast<size_t>((s * kv_heads + kv) * d + m)];
        value += weights[static_cast<size_t>(s - from)] / sum * static_cast<double>(v);
      }
      out.push_back(value);
    }
  }
  return out;
}

// Some sequences with their pages, of which nothing has been written.
class Paged {
 public:
  Paged(const Case& of, int sequences, int64_t most_rows, std::mt19937& random) : of_(of) {
    const int64_t all = (of.first_position + most_rows + of.rows_per_page - 1) / of.rows_per_page;
    const int64_t ring = RingPages({.window = of.window,
                                    .max_rows_per_step = of.max_rows_per_step,
                                    .rows_per_page = of.rows_per_page});
    max_pages_ = static_cast<int>(of.window == 0 ? all : std::min(all, ring));
    std::vector<int32_t> ids(static_cast<size_t>(sequences * max_pages_));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i) + 1;
    std::shuffle(ids.begin(), ids.end(), random);
    pages_ = ids;
    floats_ = of.rows_per_page * of.shape.kv_heads * of.shape.head_dim;
    keys_.assign((ids.size() + 1) * static_cast<size_t>(floats_), kNan);
    values_ = keys_;
    scratch_.assign(static_cast<size_t>(AttentionScratchFloats(of.shape)), kNan);
    positions_.assign(static_cast<size_t>(sequences), static_cast<int32_t>(of.first_position));
  }

  // Feeds the next `counts[i]` rows of each sequence; appends their outputs to `outs`.
  void Feed(const std::vector<Rows>& sequences, const std::vector<int64_t>& counts,
            std::vector<std::vector<float>>* outs, const std::vector<int32_t>& slots = {}) {
    const auto& [heads, kv_heads, d] = of_.shape;
    std::vector<float> q, k, v;
    std::vector<int32_t> starts = {0}, all_slots = slots;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto at = static_cast<int64_t>(positions_[i]) - of_.first_position;
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from, int64_t n) {
        to.insert(to.end(), from.begin() + at * n, from.begin() + (at + counts[i]) * n);
      };
      append(q, sequences[i].q, heads * d);
      append(k, sequences[i].k, kv_heads * d);
      append(v, sequences[i].v, kv_heads * d);
      starts.push_back(starts.back() + static_cast<int32_t>(counts[i]));
      if (slots.empty()) all_slots.push_back(static_cast<int32_t>(i) + 1);
    }
    std::vector<float> out(q.size(), kNan);
    const std::vector<double> frequencies = RopeFrequencies(of_.theta, d);
    AttentionCpu({.rows = starts.back(),
                  .sequences = static_cast<int>(sequences.size()),
                  .row_start = starts.data(),
                  .slots = all_slots.data(),
                  .positions = positions_.data(),
                  .pages = pages_.data(),
                  .max_pages = max_pages_},
                 {.shape = of_.shape,
                  .window = of_.window,
                  .frequencies = frequencies.data(),
                  .q = q.data(),
                  .k = k.data(),
                  .v = v.data(),
                  .keys = View(keys_),
                  .values = View(values_),
                  .out = out.data(),
                  .scratch = scratch_.data()});
    for (size_t i = 0; i < sequences.size(); ++i) {
      (*outs)[i].insert((*outs)[i].end(), out.begin() + starts[i] * heads * d,
                        out.begin() + starts[i + 1] * heads * d);
      positions_[i] += static_cast<int32_t>(counts[i]);
    }
  }
  // Whether nothing was written to page 0.
  bool NobodysPageIsUntouched() const {
    const auto nan = [](float x) { return std::isnan(x); };
    return std::all_of(keys_.begin(), keys_.begin() + floats_, nan) &&
           std::all_of(values_.begin(), values_.begin() + floats_, nan);
  }

 private:
  FieldView View(std::vector<float>& pool) const {
    return {.base = reinterpret_cast<std::byte*>(pool.data()),
            .stride = floats_ * 4,
            .shape = {of_.rows_per_page, of_.shape.kv_heads, of_.shape.head_dim, 1}};
  }

  const Case of_;
  int max_pages_ = 0;
  int64_t floats_ = 0;  // of one field of a page
  std::vector<int32_t> pages_, positions_;
  std::vector<float> keys_, values_, scratch_;
};

// All rows of all sequences, in steps of random sizes.
std::vector<std::vector<float>> RunAll(const Case& of, const std::vector<Rows>& sequences,
                                       std::mt19937& random) {
  int64_t most = 0;
  for (const Rows& rows : sequences) most = std::max(most, rows.rows);
  Paged paged(of, static_cast<int>(sequences.size()), most, random);
  std::vector<std::vector<float>> outs(sequences.size());
  std::vector<int64_t> left;
  for (const Rows& rows : sequences) left.push_back(rows.rows);
  while (std::any_of(left.begin(), left.end(), [](int64_t n) { return n > 0; })) {
    std::vector<int64_t> counts;
    for (int64_t& n : left) {
      const int64_t most_now = std::min(n, of.max_rows_per_step);
      counts.push_back(most_now == 0 ? 0 : 1 + static_cast<int64_t>(random() % most_now));
      n -= counts.back();
    }
    paged.Feed(sequences, counts, &outs);
  }
  EXPECT_TRUE(paged.NobodysPageIsUntouched());
  return outs;
}

TEST(AttentionRule, EqualsTheReferenceForRandomShapesWindowsPagesAndSplits) {
  std::mt19937 random(testing::TestSeed());
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 150; ++i) {
    const int64_t kv_heads = draw(1, 4);
    const Case of = {.shape = {.heads = kv_heads * draw(1, 5),
                               .kv_heads = kv_heads,
                               .head_dim = 2 * draw(1, 40)},
                     .window = draw(0, 1) == 0 ? 0 : draw(1, 90),
                     .theta = draw(0, 1) == 0 ? 10000.0 : 50.0,
                     .rows_per_page = draw(0, 2) == 0 ? draw(1, 8) : 16 * draw(1, 8),
                     .max_rows_per_step = draw(0, 2) == 0 ? draw(1, 4) : draw(1, 150)};
    std::vector<Rows> sequences;
    for (int64_t n = draw(1, 3); n > 0; --n) sequences.emplace_back(of, draw(1, 200), random);
    const auto outs = RunAll(of, sequences, random);
    for (size_t s = 0; s < sequences.size(); ++s) {
      testing::ExpectClose(outs[s], Reference(of, sequences[s]), kTolerance,
                           "case " + std::to_string(i) + ", window " + std::to_string(of.window));
    }
    if (HasFailure()) return;
  }
}

TEST(AttentionRule, HoldsForScoresWhoseExponentialOverflows) {
  std::mt19937 random(testing::TestSeed());
  const Case of = {.shape = {.heads = 3, .kv_heads = 3, .head_dim = 16}, .max_rows_per_step = 40};
  // Scores in the hundreds: e to their power is beyond float, and their own rounding, some 3e-5,
  // is what the weights are off by.
  const std::vector<Rows> sequences = {Rows(of, 100, random, 10)};
  const auto outs = RunAll(of, sequences, random);
  testing::ExpectClose(outs[0], Reference(of, sequences[0]), 2e-4, "large scores");
}

TEST(AttentionRule, TurnsLatePositionsToTheLastDigit) {
  std::mt19937 random(testing::TestSeed());
  const Case of = {.shape = {.heads = 2, .kv_heads = 1, .head_dim = 32},
                   .window = 4,
                   .rows_per_page = 16,
                   .max_rows_per_step = 20,
                   .first_position = 3'000'001};
  const std::vector<Rows> sequences = {Rows(of, 23, random)};
  Paged paged(of, 1, 23, random);
  std::vector<std::vector<float>> outs(1);
  // The first three read positions that nobody wrote; from the fourth on the window is full.
  paged.Feed(sequences, {3}, &outs);
  paged.Feed(sequences, {20}, &outs);
  const std::vector<double> expected = Reference(of, sequences[0]);
  testing::ExpectClose(std::span(outs[0]).subspan(3 * 64), std::span(expected).subspan(3 * 64),
                       kTolerance, "late positions");
}

TEST(AttentionRule, GivesZerosForNobodyAndTouchesNoPage) {
  std::mt19937 random(testing::TestSeed());
  const Case of = {.shape = {.heads = 2, .kv_heads = 1, .head_dim = 8}, .max_rows_per_step = 9};
  const std::vector<Rows> sequences = {Rows(of, 9, random), Rows(of, 9, random)};
  Paged paged(of, 2, 9, random);
  std::vector<std::vector<float>> outs(2);
  paged.Feed(sequences, {9, 9}, &outs, {kNoSlot, 2});
  for (float value : outs[0]) EXPECT_EQ(value, 0.0f);
  EXPECT_TRUE(paged.NobodysPageIsUntouched());
  testing::ExpectClose(outs[1], Reference(of, sequences[1]), kTolerance, "beside nobody");
}

// In long steps, and in steps of so few rows that no matrices are multiplied; with a window, too.
// Row 35 is the last of a step of three, and amid one of sixty.
TEST(AttentionRule, LosesTheNumbersOfOneSequenceAloneAndFromTheLostRowOn) {
  const uint32_t seed = testing::TestSeed();
  constexpr int64_t kRows = 60, kLost = 35, kRowFloats = 4 * 8;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t window : {0, 20}) {
    for (const int64_t most : {1, 3, 60}) {
      const Case of = {.shape = {.heads = 4, .kv_heads = 2, .head_dim = 8},
                       .window = window,
                       .max_rows_per_step = most};
      const auto run = [&](std::vector<float> Rows::*spoilt, float with) {
        std::mt19937 random(seed);
        std::vector<Rows> sequences = {Rows(of, kRows, random), Rows(of, kRows, random)};
        if (spoilt != nullptr) (sequences[0].*spoilt)[kLost * 16] = with;
        Paged paged(of, 2, kRows, random);
        std::vector<std::vector<float>> outs(2);
        for (int64_t row = 0; row < kRows; row += most) {
          paged.Feed(sequences, {most, most}, &outs);
        }
        return outs;
      };
      const auto good = run(nullptr, 0);
      for (const auto spoilt : {&Rows::k, &Rows::v}) {
        for (const float with : {kNan, infinity, -infinity}) {
          SCOPED_TRACE(::testing::Message() << "window " << window << ", " << most << " rows, "
                                            << (spoilt == &Rows::k ? "k" : "v") << " " << with);
          const auto lost = run(spoilt, with);
          EXPECT_EQ(good[1], lost[1]);
          const std::vector<float>& out = lost[0];
          testing::ExpectClose(
              std::span(out).first(kLost * kRowFloats),
              std::vector<double>(good[0].begin(), good[0].begin() + kLost * kRowFloats),
              kTolerance, "rows before the lost one");
          // Row 35 and all that read it show it, in the two heads that read that key.
          const int64_t last = window == 0 ? kRows : kLost + window;
          for (int64_t row = kLost; row < last; ++row) {
            EXPECT_FALSE(std::isfinite(out[static_cast<size_t>(row * kRowFloats)])) << row;
          }
          for (int64_t i = last * kRowFloats; i < kRows * kRowFloats; ++i) {
            ASSERT_TRUE(std::isfinite(out[static_cast<size_t>(i)])) << "element " << i;
          }
        }
      }
    }
  }
}

TEST(RingPages, AreAsManyAsAStepCanTouchAndNoMore) {
  for (int64_t window = 1; window < 14; ++window) {
    for (int64_t rows = 1; rows < 14; ++rows) {
      for (int64_t per_page = 1; per_page < 9; ++per_page) {
        size_t most = 0;
        for (int64_t first = window; first < window + 3 * per_page; ++first) {
          std::set<int64_t> pages;
          for (int64_t t = first - window + 1; t < first + rows; ++t) pages.insert(t / per_page);
          most = std::max(most, pages.size());
        }
        EXPECT_EQ(
            RingPages({.window = window, .max_rows_per_step = rows, .rows_per_page = per_page}),
            static_cast<int64_t>(most))
            << window << " " << rows << " " << per_page;
      }
    }
  }
}

}  // namespace
}  // namespace eddy
