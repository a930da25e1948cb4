// Proves that the chunk form on the GPU computes the delta rule: random packs of sequences of all
// kinds against the token recurrence in float64, from the same bf16 inputs; that a lost row reaches
// neither rows before it nor other sequences.
//
// Tolerance. Every product takes operands rounded to bf16, whose relative errors are at most 2^-8
// and 1.7e-3 in the mean square. A result passes through four such products (the inverse with the
// values, the keys with the state, the scores or writes with the result of both, the queries with
// the state), two rounded operands each, and the output is rounded once more: in the relative L2
// norm about sqrt(9) * 1.7e-3 = 5e-3. The bound is twice that; a wrong index or a missing row gives
// errors above 0.1.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.h"
#include "tests/kernels/cuda/delta_rule_chunk_case.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

constexpr double kTolerance = 1e-2;

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(size, 1) * sizeof(T)), cudaSuccess);
    cudaMemcpy(data_, values.data(), size * sizeof(T), cudaMemcpyHostToDevice);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  T* data() const { return data_; }
  const size_t size;

 private:
  T* data_ = nullptr;
};

template <typename T>
std::vector<T> Read(const OnDevice<T>& from) {
  std::vector<T> values(from.size);
  cudaMemcpy(values.data(), from.data(), values.size() * sizeof(T), cudaMemcpyDeviceToHost);
  return values;
}

struct Results {
  std::vector<float> out;
  std::vector<float> records;
};

Results RunOnGpu(const Case& c, const Pack& pack, const Inputs& in) {
  constexpr float kPoison = 12288.0f;  // exact in bf16
  constexpr int kGuard = 4096;
  const int64_t rows = pack.rows(), outs = rows * c.shape.value_heads * c.shape.value_dim;
  const OnDevice row_start(pack.row_start), slots(pack.slots);
  const OnDevice q(in.q), k(in.k), w(in.w), v(in.v);
  const OnDevice beta(in.beta), g(in.g), records(in.records);
  const bool half = c.states == DType::kBF16;
  std::vector<uint16_t> halves(in.records.size());
  ToBF16(in.records.data(), std::ssize(halves), halves.data());
  const OnDevice half_records(halves);
  const int64_t bytes = rows * DeltaChunkScratchBytesPerRow(c.shape, c.decay);
  const OnDevice scratch(std::vector<uint8_t>(bytes + kGuard, 0xff));
  const OnDevice out_bf16(Bf16s(outs, __float2bfloat16(kPoison)));
  const OnDevice out_f32(std::vector<float>(outs, kPoison));
  const Step step{.rows = pack.rows(),
                  .sequences = pack.sequences(),
                  .single_row_sequences = pack.singles,
                  .max_rows_per_sequence = pack.longest,
                  .row_start = row_start.data(),
                  .slots = slots.data()};
  const bool f32 = c.out_type == DType::kF32;
  DeltaRuleChunkCuda(step,
                     {.shape = c.shape,
                      .q = q.data(),
                      .k = k.data(),
                      .w = c.has_w ? w.data() : nullptr,
                      .v = v.data(),
                      .beta = beta.data(),
                      .decay = c.decay,
                      .log_decay = g.data(),
                      .state = {.base = half ? reinterpret_cast<std::byte*>(half_records.data())
                                             : reinterpret_cast<std::byte*>(records.data()),
                                .stride = in.record_floats * SizeOf(c.states),
                                .dtype = c.states},
                      .out = f32 ? static_cast<void*>(out_f32.data()) : out_bf16.data(),
                      .out_type = c.out_type,
                      .scratch = scratch.data()});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint8_t> used = Read(scratch);
  EXPECT_TRUE(std::all_of(used.end() - kGuard, used.end(), [](uint8_t x) { return x == 0xff; }));
  Results results{.out = Read(out_f32), .records = Read(records)};
  if (half) {
    halves = Read(half_records);
    FromBF16(halves.data(), std::ssize(halves), results.records.data());
  }
  const Bf16s rounded = Read(out_bf16);
  for (int64_t i = 0; i < outs; ++i) {
    if (!f32) results.out[i] = __bfloat162float(rounded[i]);
    if (results.out[i] == kPoison) results.out[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return results;
}

double RelativeError(const float* got, const double* want, int64_t count) {
  double difference = 0, size = 1e-30;
  for (int64_t i = 0; i < count; ++i) {
    difference += std::pow(got[i] - want[i], 2);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

// Compares every sequence; returns the largest errors of outputs and states.
std::pair<double, double> CheckAgainstRecurrence(const Case& c, const Pack& pack, const Inputs& in,
                                                 const Results& got) {
  const auto& [heads, value_heads, key_dim, value_dim] = c.shape;
  const int64_t state_size = key_dim * value_dim, row_size = value_heads * value_dim;
  std::vector<double> out(pack.rows() * row_size), states(in.records.begin(), in.records.end());
  std::vector<std::thread> threads;
  for (int64_t head = 0; head < value_heads; ++head) {
    threads.emplace_back([&, head] {
      for (int i = 0; i < pack.sequences(); ++i) {
        const int rows = pack.row_start[i + 1] - pack.row_start[i];
        if (i < pack.singles || pack.slots[i] == kNoSlot) continue;
        Recur(c, in, pack.row_start[i], rows, head,
              &states[pack.slots[i] * in.record_floats + head * state_size], out.data());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double worst_out = 0, worst_state = 0;
  std::vector<bool> touched(in.records.size() / in.record_floats);
  for (int i = 0; i < pack.sequences(); ++i) {
    const int64_t first = pack.row_start[i], rows = pack.row_start[i + 1] - first;
    const float* got_out = got.out.data() + first * row_size;
    if (i < pack.singles) {
      EXPECT_TRUE(std::isnan(got_out[0])) << "wrote outputs of a decoding row";
    } else if (pack.slots[i] == kNoSlot) {
      EXPECT_TRUE(std::all_of(got_out, got_out + rows * row_size, [](float x) { return x == 0; }));
    } else {
      const int64_t record = pack.slots[i] * in.record_floats;
      touched[pack.slots[i]] = true;
      const double out_error =
          RelativeError(got_out, out.data() + first * row_size, rows * row_size);
      const double state_error =
          RelativeError(&got.records[record], &states[record], in.record_floats);
      EXPECT_LE(out_error, kTolerance) << "outputs of " << rows << " rows";
      EXPECT_LE(state_error, kTolerance) << "state after " << rows << " rows";
      worst_out = std::max(worst_out, std::isnan(out_error) ? INFINITY : out_error);
      worst_state = std::max(worst_state, std::isnan(state_error) ? INFINITY : state_error);
    }
  }
  for (size_t slot = 0; slot < touched.size(); ++slot) {
    if (touched[slot]) continue;
    EXPECT_EQ(0, std::memcmp(&got.records[slot * in.record_floats],
                             &in.records[slot * in.record_floats], in.record_floats * 4))
        << "slot " << slot << " belongs to nobody here";
  }
  return {worst_out, worst_state};
}

Pack RandomPack(std::mt19937& random) {
  Pack pack;
  std::vector<int> lengths = {1, 1, 2, 63, 64, 65, 127, 128, 129, 1, 300};
  for (int i = 0; i < 4; ++i) lengths.push_back(std::uniform_int_distribution<int>(1, 300)(random));
  std::shuffle(lengths.begin() + 2, lengths.end(), random);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const bool padding = i == 1 || i == 5 || i == 9;
    pack.Add(lengths[i], padding ? kNoSlot : static_cast<int32_t>(i) + 1);
  }
  return pack;
}

std::vector<Case> Cases() {
  const DeltaRuleShape gdn{2, 2, 128, 128}, grouped{1, 3, 128, 48}, small{3, 3, 64, 64},
      large{1, 1, 256, 512}, narrow{1, 2, 64, 16}, wide_keys{2, 2, 256, 80};
  constexpr auto kNone = DeltaDecay::kNone, kScalar = DeltaDecay::kHead,
                 kVector = DeltaDecay::kChannel;
  return {
      {"DeltaNet", gdn, kNone},
      {"DeltaNet of like keys", gdn, kNone, false, Keys::kAlike},
      {"GDN", gdn, kScalar},
      {"GDN of like keys", gdn, kScalar, false, Keys::kAlike},
      {"GDN, fp32 outputs", gdn, kScalar, false, Keys::kUnit, Gate::kMild, DType::kF32},
      {"GDN, steep", gdn, kScalar, false, Keys::kUnit, Gate::kSteep},
      {"GDN, forgetting", gdn, kScalar, false, Keys::kUnit, Gate::kForgetting},
      {"GDN, grouped", grouped, kScalar},
      {"GDN, 64", small, kScalar},
      {"GDN, 256 x 512", large, kScalar},
      {.name = "GDN, bf16 states", .shape = gdn, .decay = kScalar, .states = DType::kBF16},
      {.name = "OSDN-GDN, bf16 states",
       .shape = wide_keys,
       .decay = kScalar,
       .has_w = true,
       .states = DType::kBF16},
      {.name = "KDA, bf16 states", .shape = small, .decay = kVector, .states = DType::kBF16},
      {"GDN, 64 x 16", narrow, kScalar, false, Keys::kUnit, Gate::kForgetting},
      {"Kaczmarz", gdn, kScalar, false, Keys::kRaw},
      {"Kaczmarz, grouped", grouped, kScalar, false, Keys::kRaw, Gate::kSteep},
      {"OSDN-DeltaNet", gdn, kNone, true},
      {"OSDN-GDN", grouped, kScalar, true},
      {"OSDN-GDN, 256 x 80", wide_keys, kScalar, true},
      {"KDA", gdn, kVector},
      {"KDA of like keys", gdn, kVector, false, Keys::kAlike},
      {"KDA, steep", gdn, kVector, false, Keys::kUnit, Gate::kSteep},
      {"KDA, forgetting", gdn, kVector, false, Keys::kUnit, Gate::kForgetting},
      {"KDA, 64, fp32 outputs", small, kVector, false, Keys::kUnit, Gate::kMild, DType::kF32},
      {"KDA, 256 x 80", wide_keys, kVector},
      {"OSDN-KDA", grouped, kVector, true},
      {"OSDN-KDA, 256 x 80, steep", wide_keys, kVector, true, Keys::kUnit, Gate::kSteep},
  };
}

// In random order, all of them or those for which there is time.
std::vector<Case> CasesToTry(std::mt19937& random) {
  std::vector<Case> cases = Cases();
  std::shuffle(cases.begin(), cases.end(), random);
  cases.resize(static_cast<size_t>(testing::InTime(static_cast<int>(cases.size()), 5)));
  return cases;
}

class DeltaRuleChunk : public ::testing::Test {
 protected:
  void SetUp() override {
    EDDY_SKIP_WITHOUT_GPU();
    std::printf("seed %u\n", seed_);
  }
  const unsigned seed_ = std::random_device()();
  std::mt19937 random_{seed_};
};

TEST_F(DeltaRuleChunk, IsTheRecurrenceForPacksOfAllKinds) {
  for (const Case& c : CasesToTry(random_)) {
    SCOPED_TRACE(c.name);
    const Pack pack = RandomPack(random_);
    const Inputs in = Draw(random_, c, pack.rows(), pack.sequences() + 1);
    const auto [out, state] = CheckAgainstRecurrence(c, pack, in, RunOnGpu(c, pack, in));
    std::printf("%-28s relative error of outputs %.2e, of states %.2e\n", c.name.c_str(), out,
                state);
  }
}

TEST_F(DeltaRuleChunk, IsTheRecurrenceWhereASequenceIsCutIntoSegments) {
  for (const Case& c : std::vector<Case>{
           {"GDN", {1, 2, 128, 64}, DeltaDecay::kHead},
           {.name = "GDN, bf16 states",
           .shape = {1, 2, 128, 64},
           .decay = DeltaDecay::kHead,
           .states = DType::kBF16},
           {"DeltaNet of like keys", {2, 2, 64, 80}, DeltaDecay::kNone, false, Keys::kAlike},
           {"KDA, forgetting",
            {1, 1, 128, 48},
            DeltaDecay::kChannel,
            false,
            Keys::kUnit,
            Gate::kForgetting},
           {"OSDN-GDN, 256", {1, 1, 256, 32}, DeltaDecay::kHead, true}}) {
    SCOPED_TRACE(c.name);
    Pack pack;
    pack.Add(1, 1);
    for (int i = 0; i < 3; ++i) {
      pack.Add(std::uniform_int_distribution<int>(3000, 9000)(random_), i == 1 ? kNoSlot : i + 2);
    }
    pack.Add(4096, 5);
    pack.Add(70, 6);
    const Inputs in = Draw(random_, c, pack.rows(), 7);
    const auto [out, state] = CheckAgainstRecurrence(c, pack, in, RunOnGpu(c, pack, in));
    std::printf("%-28s relative error of outputs %.2e, of states %.2e\n", c.name.c_str(), out,
                state);
  }
}

TEST_F(DeltaRuleChunk, GivesASequenceTheSameBitsAloneAsAmongOthers) {
  for (const Case& c : CasesToTry(random_)) {
    SCOPED_TRACE(c.name);
    Pack pack;
    pack.Add(1, 1);
    pack.Add(200, 2);
    const bool long_too = c.shape.key_dim == 128;
    const int rows = long_too ? 4500 : 130;
    pack.Add(rows, 3);
    for (int i = 4; i < 80; ++i) pack.Add(65 + i % 3, i);
    Inputs in = Draw(random_, c, pack.rows(), 80);
    const auto& shape = c.shape;
    const int first = pack.row_start[2];
    // A neighbour's NaN is its own.
    in.v[0 + shape.value_heads * shape.value_dim] = __float2bfloat16(NAN);
    const Results together = RunOnGpu(c, pack, in);

    Pack alone;
    alone.Add(rows, 3);
    Inputs own = in;
    const auto cut = [&](auto& values, int64_t width) {
      if (values.empty()) return;
      values = {values.begin() + first * width, values.begin() + (first + rows) * width};
    };
    cut(own.q, shape.heads * shape.key_dim);
    cut(own.k, shape.heads * shape.key_dim);
    cut(own.w, shape.value_heads * shape.key_dim);
    cut(own.v, shape.value_heads * shape.value_dim);
    cut(own.beta, shape.value_heads);
    cut(own.g, shape.value_heads * (c.decay == DeltaDecay::kChannel ? shape.key_dim : 1));
    const Results by_itself = RunOnGpu(c, alone, own);
    const int64_t row_size = shape.value_heads * shape.value_dim;
    EXPECT_EQ(
        0, std::memcmp(by_itself.out.data(), &together.out[first * row_size], rows * row_size * 4));
    EXPECT_EQ(0, std::memcmp(&by_itself.records[3 * in.record_floats],
                             &together.records[3 * in.record_floats], in.record_floats * 4));
    EXPECT_FALSE(std::isnan(by_itself.out[0]));
  }
}

// Through any of its inputs, at any place of a chunk. The rule on the CPU is held to the same.
TEST_F(DeltaRuleChunk, LosesNothingButARowThatIsLostAndWhatFollowsIt) {
  constexpr int kInputs = 6, kLostOne = 2;
  for (const Case& c : CasesToTry(random_)) {
    SCOPED_TRACE(c.name);
    Pack pack;
    const int more = c.out_type == DType::kF32 ? 4100 : 0;  // in segments
    const int rows = std::uniform_int_distribution<int>(100, 200)(random_) + more;
    for (const int length : {1, 70, rows, 130}) pack.Add(length, pack.sequences() + 1);
    const Inputs good = Draw(random_, c, pack.rows(), 5);
    const int64_t row_size = c.shape.value_heads * c.shape.value_dim;
    const int first = pack.row_start[kLostOne], end = pack.row_start[kLostOne + 1];
    const Results whole = RunOnGpu(c, pack, good);
    std::vector<double> exact(pack.rows() * row_size);
    for (int64_t head = 0; head < c.shape.value_heads; ++head) {
      const int64_t size = c.shape.key_dim * c.shape.value_dim;
      const auto* record = &good.records[3 * good.record_floats + head * size];
      std::vector<double> state(record, record + size);
      Recur(c, good, first, end - first, head, state.data(), exact.data());
    }
    double size = 0;  // the mean square of an output
    for (double x : exact) size += x * x / static_cast<double>((end - first) * row_size);
    for (int trial : testing::Trials(4 * kInputs)) {
      Inputs in = good;
      const float value = trial / kInputs % 2 == 0 ? NAN : INFINITY;
      const int input = trial % kInputs;
      const int lost = std::uniform_int_distribution<int>(first, end - 1)(random_);
      const auto lose = [&](auto& values, auto to) {
        const int64_t width = std::ssize(values) / pack.rows();
        if (width == 0) return false;
        values[lost * width + std::uniform_int_distribution<int64_t>(0, width - 1)(random_)] = to;
        return true;
      };
      Bf16s* const inputs[] = {&in.q, &in.k, &in.w, &in.v};
      const bool has = input < 4 ? lose(*inputs[input], __float2bfloat16(value))
                                 : lose(input == 4 ? in.beta : in.g, value);
      if (!has) continue;
      SCOPED_TRACE("input " + std::to_string(input) + ", row " + std::to_string(lost - first));
      const Results got = RunOnGpu(c, pack, in);
      // A few rows may be next to nothing, or far greater than the others.
      double off = 0, own = 0, mean = size * static_cast<double>((lost - first) * row_size);
      for (int64_t i = first * row_size; i < lost * row_size; ++i) {
        off += std::pow(got.out[i] - exact[i], 2);
        own += exact[i] * exact[i];
      }
      EXPECT_LE(std::sqrt(off), kTolerance * std::sqrt(std::max(own, mean)))
          << "a row before the lost one";
      const auto finite = [](float x) { return std::isfinite(x); };
      EXPECT_FALSE(std::all_of(&got.out[lost * row_size], &got.out[(lost + 1) * row_size], finite))
          << "the lost row does not show it";
      const float* record = &got.records[3 * in.record_floats];
      EXPECT_EQ(input == 0, std::all_of(record, record + in.record_floats, finite)) << "its state";
      for (int i : {1, 3}) {
        const int64_t at = pack.row_start[i] * row_size, record_at = (i + 1) * in.record_floats;
        const int64_t bytes = (pack.row_start[i + 1] - pack.row_start[i]) * row_size * 4;
        EXPECT_EQ(0, std::memcmp(&got.out[at], &whole.out[at], bytes)) << "another sequence";
        EXPECT_EQ(0, std::memcmp(&got.records[record_at], &whole.records[record_at],
                                 in.record_floats * 4));
      }
    }
  }
}

TEST(DeltaChunkFits, TakesKeysOfThreeWidthsAndValuesOfSixteens) {
  EXPECT_TRUE(DeltaChunkFits({1, 1, 64, 16}));
  EXPECT_TRUE(DeltaChunkFits({1, 1, 128, 128}));
  EXPECT_TRUE(DeltaChunkFits({1, 1, 256, 512}));
  EXPECT_FALSE(DeltaChunkFits({1, 1, 96, 128}));
  EXPECT_FALSE(DeltaChunkFits({1, 1, 128, 24}));
}

}  // namespace
}  // namespace eddy
