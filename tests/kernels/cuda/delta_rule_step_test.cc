// Proves the CUDA delta rule, in its step form with deferred write-back, its exact form over many
// rows and its flush, against a float64 recurrence: random shapes, decays (0 and 1e-30 among them),
// lengths of the ring and histories of steps, chunks and flushes. All memory begins as NaN, so what
// is read though nobody wrote it shows in the results, and what is written though it is nobody's
// shows in the bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/kernels/cuda/delta_rule_case.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/testing/trials.h"

namespace eddy::testing {
namespace {

// Float32 with sums of up to 256 products: a relative error of some 1e-7 in each output. The worst
// single number has been seen 30 times as far off as the root mean square.
constexpr double kTolerance = 3e-6, kWorstTolerance = 5e-5;
// The reference rounds a state of bfloat16 where the device does. What is that far apart before may
// fall to two sides of a tie, 2^-8 to 2^-7 of a number apart: few do, so the mean stays far below
// the 1.7e-3 of a rounding too many or too few. Of n numbers two make up to 2^-6 / sqrt(n).
constexpr double kHalfTolerance = 5e-4, kHalfWorstTolerance = 4e-2;

struct Sequence {
  explicit Sequence(const DeltaCase& c) : reference(c) {}
  int32_t slot = 0;
  int pending = 0;
  DeltaReference reference;
  std::vector<double> expected;
  std::vector<float> got;
};

struct Errors {
  double relative = 0, worst = 0;
};

Errors Compare(const std::vector<double>& expected, const std::vector<float>& got) {
  EXPECT_EQ(expected.size(), got.size());
  double square = 0, error = 0, worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(got[i] - expected[i]);
    square += expected[i] * expected[i];
    error += difference * difference;
    // A NaN is never less.
    if (!(difference <= worst)) worst = difference;
  }
  const double rms = std::sqrt(square / std::max<double>(1, static_cast<double>(got.size())));
  return {.relative = std::sqrt(error / std::max(square, 1e-30)), .worst = worst / (rms + 1e-30)};
}

Errors ExpectClose(const std::vector<double>& expected, const std::vector<float>& got,
                   const DeltaCase& c, const std::string& what) {
  const Errors errors = Compare(expected, got);
  const bool half = c.states == DType::kBF16;
  const auto numbers =
      static_cast<double>(c.shape.value_heads * c.shape.key_dim * c.shape.value_dim);
  EXPECT_LE(errors.relative, half ? kHalfTolerance + 0x1p-6 / std::sqrt(numbers) : kTolerance)
      << what;
  EXPECT_LE(errors.worst, half ? kHalfWorstTolerance : kWorstTolerance) << what;
  return errors;
}

uint64_t FreshSeed() {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

int Pick(std::mt19937_64& rng, std::initializer_list<int> of) {
  return of.begin()[rng() % of.size()];
}

DeltaCase RandomCase(std::mt19937_64& rng, int index, DType states) {
  DeltaCase c;
  const int heads = Pick(rng, {1, 2, 3});
  c.shape = {.heads = heads, .value_heads = heads * Pick(rng, {1, 1, 2, 3})};
  switch (index % 4) {
    case 0:  // any size
      c.shape.key_dim = 1 + static_cast<int64_t>(rng() % 256);
      c.shape.value_dim = 1 + static_cast<int64_t>(rng() % 512);
      break;
    case 1:  // multiples of four
      c.shape.key_dim = 4 + 4 * static_cast<int64_t>(rng() % 64);
      c.shape.value_dim = 4 + 4 * static_cast<int64_t>(rng() % 128);
      break;
    case 2:
      c.shape.key_dim = Pick(rng, {16, 32, 64, 96, 128, 192, 256});
      c.shape.value_dim = Pick(rng, {16, 32, 64, 96, 128, 192, 256, 512});
      break;
    default:  // the fast paths
      c.shape.key_dim = Pick(rng, {64, 128, 256});
      c.shape.value_dim = Pick(rng, {32, 64, 128, 256, 512});
  }
  c.decay = static_cast<DeltaDecay>(Pick(rng, {0, 1, 2}));
  c.own_w = rng() % 2 == 0;
  c.pending_updates = Pick(rng, {1, 2, 8, 16, 16});
  c.gap = 256 * static_cast<int64_t>(rng() % 3);
  c.extreme = rng() % 3 == 0;
  c.states = states;
  return c;
}

std::string Describe(const DeltaCase& c) {
  return "H " + std::to_string(c.shape.heads) + " HV " + std::to_string(c.shape.value_heads) +
         " K " + std::to_string(c.shape.key_dim) + " V " + std::to_string(c.shape.value_dim) +
         " decay " + std::to_string(static_cast<int>(c.decay)) + " own_w " +
         std::to_string(c.own_w) + " C " + std::to_string(c.pending_updates) + " extreme " +
         std::to_string(c.extreme);
}

// Sequences in a pool that are driven at random.
class Life {
 public:
  Life(const DeltaCase& c, uint64_t seed) : c_(c), rng_(seed), pool_(c) {
    for (int32_t slot = 1; slot + 1 < c.slots; ++slot) {  // the last one stays unused
      sequences_.emplace_back(c);
      sequences_.back().slot = slot;
      pool_.Fill(slot, sequences_.back().reference.RandomState(rng_));
    }
  }

  // A step of some sequences with one row each in any order, some padding between; or, one time in
  // eight, of rows for the exact form; or a flush.
  void Advance() {
    const int kind = static_cast<int>(rng_() % 8);
    std::vector<Sequence*> chosen;
    for (Sequence& sequence : sequences_) {
      if (rng_() % 4 != 0) chosen.push_back(&sequence);
    }
    if (rng_() % 2 == 0) chosen.push_back(nullptr);
    std::shuffle(chosen.begin(), chosen.end(), rng_);
    if (kind == 0) {
      Flush(chosen);
    } else {
      Feed(chosen, kind == 1);
    }
  }

  void Finish() {
    std::vector<Sequence*> all;
    for (Sequence& sequence : sequences_) all.push_back(&sequence);
    Flush(all);
    for (Sequence& sequence : sequences_) {
      const std::string what = "sequence in slot " + std::to_string(sequence.slot);
      const Errors out = ExpectClose(sequence.expected, sequence.got, c_, what + ", outputs");
      const Errors state =
          ExpectClose(sequence.reference.state(), pool_.State(sequence.slot), c_, what + ", state");
      worst_error_ = std::max({worst_error_, out.relative, state.relative});
      EXPECT_TRUE(pool_.Untouched(sequence.slot, /*unused=*/false)) << what;
      if (c_.pending_updates == 1) continue;
      for (int32_t count : pool_.Counts(sequence.slot)) EXPECT_EQ(count, 0) << what;
    }
    EXPECT_TRUE(pool_.Untouched(0, /*unused=*/true));
    EXPECT_TRUE(pool_.Untouched(static_cast<int32_t>(c_.slots) - 1, /*unused=*/true));
    // Means of |e| / |v| and the like are of order 1.
    EXPECT_LE(worst_readout_, c_.states == DType::kBF16 ? kHalfWorstTolerance : 1e-5);
  }
  double worst_error() const { return worst_error_; }

 private:
  static std::vector<int32_t> Slots(const std::vector<Sequence*>& chosen) {
    std::vector<int32_t> slots;
    for (const Sequence* sequence : chosen) {
      slots.push_back(sequence != nullptr ? sequence->slot : kNoSlot);
    }
    return slots;
  }

  void Flush(const std::vector<Sequence*>& chosen) {
    const DeltaStepRun run(c_, std::vector<std::vector<DeltaRow>>(chosen.size()), Slots(chosen));
    DeltaRuleFlushCuda(run.step(), run.With(pool_.Args(), false));
    Cuda(cudaDeviceSynchronize());
    for (Sequence* sequence : chosen) {
      if (sequence == nullptr) continue;
      pool_.PoisonRing(sequence->slot);
      if (sequence->pending > 0) sequence->reference.RoundState();
      sequence->pending = 0;
    }
  }

  void Feed(const std::vector<Sequence*>& chosen, bool many) {
    std::vector<std::vector<DeltaRow>> rows(chosen.size());
    for (std::vector<DeltaRow>& sequence : rows) {
      const int count = many ? 1 + static_cast<int>(rng_() % 5) : 1;
      for (int i = 0; i < count; ++i) sequence.push_back(RandomRow(c_, rng_));
    }
    const DeltaStepRun run(c_, rows, Slots(chosen));
    const bool readouts = rng_() % 2 == 0;
    const DeltaRuleCudaArgs args = run.With(pool_.Args(), readouts);
    if (many) {
      DeltaRuleRowsCuda(run.step(), args, 0);
    } else {
      DeltaRuleStepCuda(run.step(), args);
    }
    Cuda(cudaDeviceSynchronize());
    Take(chosen, rows, run.Out(), readouts ? run.Readouts() : std::vector<float>());
    for (Sequence* sequence : chosen) {
      if (sequence == nullptr) continue;
      const bool writes = many || ++sequence->pending == c_.pending_updates;
      if (!writes) continue;
      sequence->reference.RoundState();
      sequence->pending = 0;
    }
  }

  void Take(const std::vector<Sequence*>& chosen, const std::vector<std::vector<DeltaRow>>& rows,
            const std::vector<float>& out, const std::vector<float>& readouts) {
    const auto width = static_cast<size_t>(c_.shape.value_heads * c_.shape.value_dim);
    const size_t all = out.size() / width;
    size_t row = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      for (size_t j = 0; j < rows[i].size(); ++j, ++row) {
        const auto begin = out.begin() + static_cast<int64_t>(row * width);
        double expected_readouts[3] = {};
        if (chosen[i] == nullptr) {
          EXPECT_TRUE(std::all_of(begin, begin + static_cast<int64_t>(width),
                                  [](float x) { return x == 0; }));
        } else {
          DeltaReference& reference = chosen[i]->reference;
          for (double x : reference.Advance(rows[i][j])) chosen[i]->expected.push_back(x);
          chosen[i]->got.insert(chosen[i]->got.end(), begin, begin + static_cast<int64_t>(width));
          expected_readouts[0] = reference.residual;
          expected_readouts[1] = reference.contraction;
          expected_readouts[2] = reference.kept;
        }
        for (size_t what = 0; what < 3 && !readouts.empty(); ++what) {
          const double error = std::abs(readouts[what * all + row] - expected_readouts[what]) /
                               (1 + expected_readouts[what]);
          if (!(error <= worst_readout_)) worst_readout_ = error;
        }
      }
    }
  }

  const DeltaCase c_;
  std::mt19937_64 rng_;
  DeltaPool pool_;
  std::vector<Sequence> sequences_;
  double worst_readout_ = 0, worst_error_ = 0;
};

// With states of either type.
class CudaDeltaRule : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { EDDY_SKIP_WITHOUT_GPU(); }
};

TEST_P(CudaDeltaRule, EqualsTheRecurrenceForRandomShapesAndHistories) {
  const uint64_t seed = FreshSeed();
  double worst = 0;
  for (int i : testing::Trials(48)) {
    std::mt19937_64 rng(seed + static_cast<uint64_t>(i));
    const DeltaCase c = RandomCase(rng, i, GetParam());
    SCOPED_TRACE(Describe(c) + " seed " + std::to_string(seed) + " + " + std::to_string(i));
    Life life(c, rng());
    for (int step = 0; step < 50; ++step) life.Advance();
    life.Finish();
    worst = std::max(worst, life.worst_error());
    if (HasFailure()) return;
  }
  std::printf("worst relative error %.2e\n", worst);
}

// What one sequence gets from `steps` steps, in company or alone.
struct Trail {
  std::vector<float> out, state;
};

Trail Follow(const DeltaCase& c, uint64_t seed, int32_t slot, int company, int place) {
  std::mt19937_64 rng(seed), others(seed + 1 + static_cast<uint64_t>(company));
  DeltaPool pool(c);
  DeltaReference state(c);
  pool.Fill(slot, state.RandomState(rng));
  std::vector<int32_t> slots;
  for (int32_t i = 1; static_cast<int>(slots.size()) < company; ++i) {
    if (i == slot) continue;
    slots.push_back(i % 3 == 0 ? kNoSlot : i);
    // Every other neighbour has gone mad.
    std::vector<float> theirs = state.RandomState(others);
    if (i % 2 == 0) std::fill(theirs.begin(), theirs.end(), std::nanf(""));
    if (slots.back() != kNoSlot) pool.Fill(slots.back(), theirs);
  }
  slots.insert(slots.begin() + place, slot);
  const auto width = static_cast<size_t>(c.shape.value_heads * c.shape.value_dim);
  Trail trail;
  for (int step = 0; step < 37; ++step) {
    std::vector<std::vector<DeltaRow>> rows;
    for (size_t i = 0; i < slots.size(); ++i) {
      rows.push_back({RandomRow(c, i == static_cast<size_t>(place) ? rng : others)});
    }
    const DeltaStepRun run(c, rows, slots);
    DeltaRuleStepCuda(run.step(), run.With(pool.Args(), company % 2 == 0));
    Cuda(cudaDeviceSynchronize());
    const std::vector<float> out = run.Out();
    const auto begin = out.begin() + static_cast<int64_t>(width) * place;
    trail.out.insert(trail.out.end(), begin, begin + static_cast<int64_t>(width));
  }
  const DeltaStepRun flush(c, {{}}, {slot});
  DeltaRuleFlushCuda(flush.step(), flush.With(pool.Args(), false));
  Cuda(cudaDeviceSynchronize());
  trail.state = pool.State(slot);
  return trail;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(CudaDeltaRule, GivesASequenceTheSameBitsInAnyCompany) {
  const uint64_t seed = FreshSeed();
  // The first is cut finer when few heads decode than when 39 sequences of 16 heads do, and the
  // last ones, with states of bfloat16, than when 39 of 56 do.
  constexpr int64_t kShapes[][4] = {{8, 16, 128, 128}, {1, 2, 64, 64},   {1, 1, 256, 512},
                                    {2, 2, 37, 51},    {1, 2, 100, 44},  {2, 2, 64, 128},
                                    {1, 16, 256, 64},  {1, 56, 64, 128}, {1, 56, 128, 128}};
  for (const auto& [heads, value_heads, key_dim, value_dim] : kShapes) {
    for (DeltaDecay decay : {DeltaDecay::kNone, DeltaDecay::kHead, DeltaDecay::kChannel}) {
      if (value_heads > 16 && (decay != DeltaDecay::kHead || GetParam() == DType::kF32)) continue;
      DeltaCase c = {.shape = {heads, value_heads, key_dim, value_dim},
                     .decay = decay,
                     .own_w = decay == DeltaDecay::kHead,
                     .slots = 40,
                     .states = GetParam()};
      SCOPED_TRACE(Describe(c));
      const Trail alone = Follow(c, seed, 3, 0, 0);
      for (float x : alone.out) ASSERT_TRUE(std::isfinite(x));
      c.gap = 1024;
      const Trail few = Follow(c, seed, 17, 5, 2);
      const Trail many = Follow(c, seed, 1, 38, 38);
      EXPECT_TRUE(SameBits(alone.out, few.out) && SameBits(alone.state, few.state));
      EXPECT_TRUE(SameBits(alone.out, many.out) && SameBits(alone.state, many.state));
    }
  }
}

TEST_P(CudaDeltaRule, ReachesSlotsBeyondFourThousandAndBeyondFourGigabytes) {
  size_t free = 0, total = 0;
  Cuda(cudaMemGetInfo(&free, &total));
  if (free < size_t{7} << 30) GTEST_SKIP() << "less than 7 GiB of memory are free";
  const uint64_t seed = FreshSeed();
  DeltaCase c = {
      .shape = {2, 2, 64, 64}, .decay = DeltaDecay::kHead, .slots = 8, .states = GetParam()};
  const Trail near = Follow(c, seed, 3, 0, 0);
  c.slots = 5200;
  c.gap = 1 << 20;
  const Trail far = Follow(c, seed, 5199, 4, 1);
  EXPECT_TRUE(SameBits(near.out, far.out));
  EXPECT_TRUE(SameBits(near.state, far.state));
}

TEST_P(CudaDeltaRule, FlushesNothingWhereNothingIsPending) {
  std::mt19937_64 rng(FreshSeed());
  const DeltaCase c = {
      .shape = {2, 2, 48, 80}, .decay = DeltaDecay::kChannel, .slots = 4, .states = GetParam()};
  DeltaPool pool(c);
  DeltaReference reference(c);
  const std::vector<float> state = reference.RandomState(rng);
  pool.Fill(2, state);
  const DeltaStepRun flush(c, {{}, {}}, {kNoSlot, 2});
  DeltaRuleFlushCuda(flush.step(), flush.With(pool.Args(), false));
  Cuda(cudaDeviceSynchronize());
  EXPECT_TRUE(SameBits(state, pool.State(2)));
  EXPECT_TRUE(pool.Untouched(0, /*unused=*/true));
}

TEST_P(CudaDeltaRule, AddsNothingToTheResultsByTellingReadouts) {
  const uint64_t seed = FreshSeed();
  const DeltaCase c = {.shape = {2, 4, 128, 128}, .decay = DeltaDecay::kHead, .states = GetParam()};
  std::vector<Trail> trails;
  for (bool readouts : {false, true}) {
    std::mt19937_64 rng(seed);
    DeltaPool pool(c);
    DeltaReference reference(c);
    pool.Fill(1, reference.RandomState(rng));
    Trail trail;
    for (int step = 0; step < 20; ++step) {
      const DeltaStepRun run(c, {{RandomRow(c, rng)}}, {1});
      DeltaRuleStepCuda(run.step(), run.With(pool.Args(), readouts));
      Cuda(cudaDeviceSynchronize());
      const std::vector<float> out = run.Out();
      trail.out.insert(trail.out.end(), out.begin(), out.end());
    }
    trail.state = pool.State(1);
    trails.push_back(trail);
  }
  EXPECT_TRUE(SameBits(trails[0].out, trails[1].out));
  EXPECT_TRUE(SameBits(trails[0].state, trails[1].state));
}

INSTANTIATE_TEST_SUITE_P(States, CudaDeltaRule, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& type) {
                           return type.param == DType::kBF16 ? "bfloat16" : "float32";
                         });

}  // namespace
}  // namespace eddy::testing
