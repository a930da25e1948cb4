// Proves the attention rule on the GPU against the softmax written out in float64: over random
// shapes, windows, page sizes, splits of a prompt and company, with pages at random places, in
// rings no longer than RingPages says, and with NaN in everything that was not written or is out of
// reach. Further: what a row gets is the same to the bit whatever runs beside it, long contexts are
// split rightly, and lost numbers harm no row that does not read them.
//
// Tolerances, relative L2: float is off by its rounding. In bfloat16 the query, the weights of the
// softmax and the output are each rounded to 2^-8; keys and values are so in the reference too.
#include <future>

#include "tests/kernels/cuda/attention_case.h"
#include "tests/testing/trials.h"

namespace eddy::cuda_test {
namespace {

constexpr AttentionTiles kWarps = AttentionTiles::kWarps;
constexpr AttentionTiles kWarpgroups = AttentionTiles::kWarpgroups;

double Tolerance(DType type) { return type == DType::kF32 ? 1e-5 : 6e-3; }

AttentionCase RandomCase(Random& random) {
  const int64_t kv_heads = Pick(random, 1, 4);
  const int64_t groups[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 20};
  AttentionCase of;
  of.type = Pick(random, 0, 2) == 0 ? DType::kF32 : DType::kBF16;
  of.shape = {
      .heads = kv_heads * groups[Pick(random, 0, 9)],
      .kv_heads = kv_heads,
      .head_dim = Pick(random, 0, 2) > 0 ? 64 * Pick(random, 1, 2) : 2 * Pick(random, 1, 100)};
  of.window = Pick(random, 0, 1) == 0 ? 0 : Pick(random, 1, 400);
  of.theta = Pick(random, 0, 1) == 0 ? 10000.0 : 50.0;
  of.rows_per_page = Pick(random, 0, 2) == 0 ? Pick(random, 1, 8) : 16 * Pick(random, 1, 8);
  of.most_rows = Pick(random, 0, 2) == 0 ? Pick(random, 1, 4) : Pick(random, 1, 150);
  of.biased = Pick(random, 0, 2) == 0;
  of.page_gap = 256 * Pick(random, 0, 2);
  of.tiles = Pick(random, 0, 2) > 0 ? kWarpgroups : kWarps;
  return of;
}

// Feeds each sequence its rows in steps of random sizes and random company, some of it padding.
std::vector<Plan> PlansFor(const AttentionCase& of, const std::vector<AttentionRows>& sequences,
                           Random& random) {
  std::vector<Plan> plans;
  std::vector<int> done(sequences.size(), 0);
  for (bool any = true; any;) {
    any = false;
    Plan plan;
    std::vector<std::pair<int, int>> many;
    for (int i = 0; i < std::ssize(sequences); ++i) {
      const int left = static_cast<int>(sequences[i].rows) - done[i];
      any |= left > 0;
      if (left == 0 || Pick(random, 0, 4) == 0) continue;
      const auto count = static_cast<int>(Pick(random, 1, std::min<int64_t>(left, of.most_rows)));
      if (count > 1 || Pick(random, 0, 3) == 0) {
        many.emplace_back(i, count);
        continue;
      }
      if (Pick(random, 0, 3) == 0) plan.Add(-1, 0, 1);
      plan.Add(i, done[i]++, 1);
    }
    plan.single = static_cast<int>(plan.slots.size());
    for (const auto& [i, count] : many) {
      if (Pick(random, 0, 3) == 0) plan.Add(-1, 0, static_cast<int>(Pick(random, 1, 40)));
      plan.Add(i, done[i], count);
      done[i] += count;
    }
    if (plan.rows() > 0) plans.push_back(plan);
  }
  return plans;
}

// What `plans` have of sequence `index`, alone.
std::vector<Plan> Alone(const std::vector<Plan>& plans, int index) {
  std::vector<Plan> alone;
  for (const Plan& plan : plans) {
    for (size_t i = 0; i < plan.sequence.size(); ++i) {
      if (plan.sequence[i] != index) continue;
      Plan& mine = alone.emplace_back();
      mine.Add(0, plan.first_row[i], plan.row_start[i + 1] - plan.row_start[i]);
      mine.single = static_cast<int>(i) < plan.single ? 1 : 0;
    }
  }
  return alone;
}

// The given rows of a sequence against the truth.
double DistanceOf(const AttentionTruth& truth, const AttentionCase& of, const Floats& out,
                  const std::vector<int64_t>& rows) {
  const int64_t width = of.shape.heads * of.shape.head_dim;
  std::vector<std::future<std::vector<double>>> wanted;
  for (int64_t t : rows) {
    wanted.push_back(std::async(std::launch::async, [&truth, t] { return truth.Row(t); }));
  }
  Floats got;
  std::vector<double> want;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<double> row = wanted[i].get();
    want.insert(want.end(), row.begin(), row.end());
    got.insert(got.end(), out.begin() + rows[i] * width, out.begin() + (rows[i] + 1) * width);
  }
  return Distance(got, want);
}

std::vector<int64_t> SomeRows(int64_t rows, int64_t most, Random& random) {
  std::vector<int64_t> some = {0, rows - 1};
  for (int64_t i = 0; i < rows; ++i) {
    if (rows <= most || Pick(random, 0, rows - 1) < most) some.push_back(i);
  }
  return some;
}

TEST(AttentionCuda, EqualsTheReferenceForRandomShapesWindowsPagesAndSplits) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  double worst[2] = {};
  for (int trial : testing::Trials(80)) {
    const AttentionCase of = RandomCase(random);
    const AttentionBiases biases(of, random);
    std::vector<AttentionRows> sequences;
    for (int64_t n = Pick(random, 1, 6); n > 0; --n) {
      sequences.emplace_back(of, Pick(random, 1, 500), random, 1.0f);
    }
    PagedAttention paged(of, sequences, biases, random);
    for (const Plan& plan : PlansFor(of, sequences, random)) paged.Feed(plan);
    EXPECT_TRUE(paged.NobodysPageIsUntouched()) << of.Name();
    for (size_t s = 0; s < sequences.size(); ++s) {
      const AttentionTruth truth(of, sequences[s], biases);
      const double distance =
          DistanceOf(truth, of, paged.out(s), SomeRows(sequences[s].rows, 24, random));
      EXPECT_LT(distance, Tolerance(of.type)) << of.Name();
      double& most = worst[of.type == DType::kF32 ? 0 : 1];
      most = std::max(most, distance);
    }
    if (::testing::Test::HasFailure()) return;
  }
  std::printf("worst relative distance: float %.1e, bfloat16 %.1e\n", worst[0], worst[1]);
}

TEST(AttentionCuda, TakesHeadsOfAnySize) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  std::vector<int64_t> sizes = {2, 130, 190, 256, 258, 480, 512, 514, 1000, 1024};
  std::ranges::shuffle(sizes, random);
  for (int i : testing::Trials(static_cast<int>(sizes.size()))) {
    const int64_t d = sizes[i];
    for (DType type : {DType::kF32, DType::kBF16}) {
      const AttentionCase of = {
          .shape = {.heads = 9, .kv_heads = 1, .head_dim = d}, .type = type, .most_rows = 40};
      const AttentionBiases biases(of, random);
      const int rows = testing::InTime(300, 90);
      const std::vector<AttentionRows> sequences = {AttentionRows(of, rows, random, 1.0f),
                                                    AttentionRows(of, 61, random, 1.0f)};
      PagedAttention paged(of, sequences, biases, random);
      for (const Plan& plan : PlansFor(of, sequences, random)) paged.Feed(plan);
      const AttentionTruth truth(of, sequences[0], biases);
      EXPECT_LT(DistanceOf(truth, of, paged.out(0), SomeRows(rows, 8, random)), Tolerance(type))
          << of.Name();
    }
  }
}

TEST(AttentionCuda, SplitsLongContextsAndJoinsThem) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(12)) {
    AttentionCase of = {.shape = {.heads = 8, .kv_heads = trial % 3 == 0 ? 1 : 2, .head_dim = 64},
                        .type = trial % 2 == 0 ? DType::kBF16 : DType::kF32,
                        .window = trial % 4 == 3 ? Pick(random, 300, 3000) : 0,
                        .rows_per_page = Pick(random, 1, 100),
                        .most_rows = 4096,
                        .tiles = trial == 2 || trial == 6 ? kWarps : kWarpgroups};
    if (trial >= 6) of.shape.head_dim = trial < 10 ? 128 : 96;
    const AttentionBiases biases(of, random);
    std::vector<AttentionRows> sequences;
    for (int i = 0; i < 4; ++i) {
      sequences.emplace_back(of, Pick(random, 300, i == 0 ? 9000 : 1500), random, 1.0f);
    }
    PagedAttention paged(of, sequences, biases, random);
    std::vector<int> done(4, 0);
    Plan prompts;
    for (int i = 0; i < 4; ++i) {
      done[i] = std::min(4096, static_cast<int>(sequences[i].rows) - 20);
      prompts.Add(i, 0, done[i]);
    }
    paged.Feed(prompts);
    Plan rest;
    for (int i = 0; i < 4; ++i) {
      const int left = static_cast<int>(sequences[i].rows) - 20 - done[i];
      if (left > 4096) continue;  // beyond what one step may take; two are enough of this
      if (left > 0) rest.Add(i, done[i], left), done[i] += left;
    }
    if (rest.rows() > 0) paged.Feed(rest);
    for (int token = 0; token < 20; ++token) {
      Plan decode;
      for (int i = 0; i < 4; ++i) decode.Add(i, done[i]++, 1);
      decode.single = 4;
      paged.Feed(decode);
    }
    for (int i = 0; i < 4; ++i) {
      const AttentionTruth truth(of, sequences[i], biases);
      std::vector<int64_t> rows = SomeRows(done[i] - 20, 6, random);
      for (int64_t t = done[i] - 20; t < done[i]; ++t) rows.push_back(t);
      EXPECT_LT(DistanceOf(truth, of, paged.out(i), rows), Tolerance(of.type))
          << of.Name() << " position " << done[i];
    }
  }
}

TEST(AttentionCuda, GivesEachSequenceTheSameBitsInAnyCompany) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int trial : testing::Trials(40)) {
    const AttentionCase of = RandomCase(random);
    const AttentionBiases biases(of, random);
    std::vector<AttentionRows> sequences;
    for (int i = 0; i < 5; ++i) sequences.emplace_back(of, Pick(random, 1, 400), random, 1.0f);
    const std::vector<Plan> plans = PlansFor(of, sequences, random);
    PagedAttention together(of, sequences, biases, random);
    for (const Plan& plan : plans) together.Feed(plan);
    for (int i : {0, 4}) {
      PagedAttention alone(of, {sequences[i]}, biases, random);
      for (const Plan& plan : Alone(plans, i)) alone.Feed(plan);
      EXPECT_TRUE(SameBits(together.out(i), alone.out(0))) << of.Name();
    }
  }
}

TEST(AttentionCuda, DecodesManySequencesWithTheBitsOfOne) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  for (int64_t d : {64, 96, 128}) {
    // More than one launch takes: the longest of them has all the splits there are.
    const AttentionCase of = {.shape = {.heads = 2, .kv_heads = 1, .head_dim = d},
                              .type = DType::kBF16,
                              .rows_per_page = 32,
                              .most_rows = 12000};
    const AttentionBiases biases(of, random);
    std::vector<AttentionRows> sequences = {AttentionRows(of, 12000, random, 1.0f)};
    for (int i = 0; i < 150; ++i) sequences.emplace_back(of, Pick(random, 2, 300), random, 1.0f);
    const int last = static_cast<int>(sequences.size()) - 1;
    std::swap(sequences[0], sequences[last]);
    Plan prompts, decode, prompt_alone, decode_alone;
    for (int i = 0; i <= last; ++i) {
      const auto rows = static_cast<int>(sequences[i].rows);
      prompts.Add(i, 0, rows - 1);
      decode.Add(i, rows - 1, 1);
    }
    decode.single = last + 1;
    PagedAttention together(of, sequences, biases, random);
    together.Feed(prompts), together.Feed(decode);
    PagedAttention alone(of, {sequences[last]}, biases, random);
    prompt_alone.Add(0, 0, 11999), decode_alone.Add(0, 11999, 1);
    decode_alone.single = 1;
    alone.Feed(prompt_alone), alone.Feed(decode_alone);
    EXPECT_TRUE(SameBits(together.out(last), alone.out(0))) << d;
    for (int i : {3, 77}) {
      const AttentionTruth truth(of, sequences[i], biases);
      EXPECT_LT(DistanceOf(truth, of, together.out(i), {sequences[i].rows - 1}),
                Tolerance(DType::kBF16));
    }
  }
}

TEST(AttentionCuda, KeepsLostNumbersFromRowsThatDoNotReadThem) {
  EDDY_SKIP_WITHOUT_GPU();
  const uint64_t seed = TestSeed();
  struct Kind {
    DType type;
    AttentionTiles tiles;
  };
  for (const auto& [type, tiles] :
       {Kind{DType::kF32, kWarps}, Kind{DType::kBF16, kWarpgroups}, Kind{DType::kBF16, kWarps}}) {
    for (int64_t d : {64, 128, 40}) {
      for (int64_t window : {0, 9}) {
        const AttentionCase of = {.shape = {.heads = 4, .kv_heads = 2, .head_dim = d},
                                  .type = type,
                                  .window = window,
                                  .most_rows = 150,
                                  .tiles = tiles};
        const auto run = [&](int spoil, float with) {
          Random random(seed);
          const AttentionBiases biases(of, random);
          std::vector<AttentionRows> sequences = {AttentionRows(of, 150, random, 1.0f),
                                                  AttentionRows(of, 150, random, 1.0f)};
          if (spoil == 1) sequences[0].k[(85 * 2 + 1) * d + 3] = with;
          if (spoil == 2) sequences[0].v[(85 * 2 + 1) * d + 3] = with;
          PagedAttention paged(of, sequences, biases, random);
          Plan prompts;
          prompts.Add(0, 0, 140), prompts.Add(1, 0, 140);
          paged.Feed(prompts);
          for (int t = 140; t < 150; ++t) {
            Plan decode;
            decode.Add(0, t, 1), decode.Add(1, t, 1);
            decode.single = 2;
            paged.Feed(decode);
          }
          return std::pair(paged.out(0), paged.out(1));
        };
        const auto good = run(0, 0.0f);
        for (int spoil : {1, 2}) {
          for (float with : {kNan, std::numeric_limits<float>::infinity()}) {
            const auto spoilt = run(spoil, with);
            const std::string what = of.Name() + (spoil == 1 ? " key " : " value ");
            EXPECT_TRUE(SameBits(good.second, spoilt.second)) << what;
            for (int64_t t = 0; t < 150; ++t) {
              for (int64_t h = 0; h < 4; ++h) {
                const int64_t at = (t * 4 + h) * d;
                const bool reads = h >= 2 && t >= 85 && (window == 0 || t < 85 + window);
                if (reads) {
                  EXPECT_FALSE(std::isfinite(spoilt.first[at + 3])) << what << t << " " << h;
                } else {
                  EXPECT_TRUE(SameBits(std::span(good.first).subspan(at, d),
                                       std::span(spoilt.first).subspan(at, d)))
                      << what << t << " " << h;
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace eddy::cuda_test
