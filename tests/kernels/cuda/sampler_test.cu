// Proves the GPU's sampler against the CPU's on random rows and random parameters: greatest logits,
// ranks and lists of the likeliest exactly; drawn tokens exactly but where the uniform number, or
// the end of a filter's prefix, lies within 1e-5 of a boundary; log-probabilities and entropies to
// float accuracy. A row's result is the same to the bit in any company and with padding behind it.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/ends/sampler/filters.h"
#include "kernels/ends/sampler/host_lists_cuda.h"
#include "kernels/ends/sampler/philox.h"
#include "kernels/ends/sampler/sampler_cpu.h"
#include "kernels/ends/sampler/sampler_cuda.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

constexpr int kRows = 64;
constexpr double kNear = 1e-5;

using Generator = std::mt19937_64;

int Uniform(Generator& random, int from, int to) {
  return std::uniform_int_distribution<int>(from, to)(random);
}
template <typename T>
T OneOf(Generator& random, std::initializer_list<T> choices) {
  return choices.begin()[Uniform(random, 0, static_cast<int>(choices.size()) - 1)];
}

// Rows such as models give and such as they should not: flat, peaked, wide, with few values.
std::vector<float> RandomLogits(Generator& random, int vocab) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  const float deviation = OneOf(random, {0.0f, 0.5f, 2.0f, 4.0f, 30.0f});
  const float mean = OneOf(random, {0.0f, -7.0f, 20.0f});
  const float grain = OneOf(random, {0.0f, 0.0f, 0.5f});
  std::normal_distribution<float> normal(mean, std::max(deviation, 1e-9f));
  for (float& logit : logits) {
    logit = deviation > 0 ? normal(random) : mean;
    if (grain > 0) logit = grain * std::round(logit / grain);
  }
  for (int peaks = OneOf(random, {0, 1, 5, 40}); peaks > 0; --peaks) {
    logits[static_cast<size_t>(Uniform(random, 0, vocab - 1))] +=
        8 + 0.3f * static_cast<float>(peaks);
  }
  return logits;
}

std::vector<int32_t> RandomTokens(Generator& random, int vocab, int most) {
  std::vector<int32_t> tokens(static_cast<size_t>(Uniform(random, 0, most)));
  for (int32_t& token : tokens) token = Uniform(random, 0, vocab - 1);
  return tokens;
}

// A row of logits and all that its SampleRow points to.
struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> past, also;
  SampleRow row;
};

void Change(Generator& random, int vocab, Case* one) {
  SamplingParams& params = one->params;
  one->past = RandomTokens(random, vocab, 300);
  one->row.generated = Uniform(random, 0, static_cast<int>(one->past.size()));
  for (int32_t token : RandomTokens(random, vocab, 20)) {
    const auto same = [&](const auto& bias) { return bias.first == token; };
    if (std::none_of(params.logit_bias.begin(), params.logit_bias.end(), same)) {
      params.logit_bias.emplace_back(token, std::normal_distribution<float>(0, 3)(random));
    }
  }
  if (Uniform(random, 0, 2) == 0)
    params.allowed = RandomTokens(random, vocab, OneOf(random, {1, 2, 100, 4 * vocab}));
  if (Uniform(random, 0, 2) == 0)
    params.banned = RandomTokens(random, vocab, OneOf(random, {5, vocab}));
  params.ending_tokens = RandomTokens(random, vocab, 3);
  params.min_new_tokens = OneOf(random, {0, 1000});
  params.repetition_penalty = OneOf(random, {1.0f, 1.3f, 0.8f});
  params.frequency_penalty = OneOf(random, {0.0f, 0.25f, -0.3f});
  params.presence_penalty = OneOf(random, {0.0f, 0.4f});
}

void MakeCase(Generator& random, int vocab, Case* one) {
  one->logits = RandomLogits(random, vocab);
  one->row = {.position = Uniform(random, 0, 1 << 30), .top = OneOf(random, {0, 0, 1, 20})};
  one->also = RandomTokens(random, vocab, 5);
  one->row.measured = Uniform(random, 0, 3) > 0;
  if (Uniform(random, 0, 7) == 0) {
    one->row.target = Uniform(random, 0, vocab - 1);
  } else {
    SamplingParams& params = one->params;
    params.seed = random();
    params.temperature = OneOf(random, {0.0f, 0.1f, 0.7f, 1.0f, 1.0f, 1.9f});
    params.top_k = OneOf(random, {0, 0, 1, 5, 50, 1000, vocab});
    params.top_p = OneOf(random, {1.0f, 1.0f, 0.9f, 0.5f, 0.99f, 0.05f, 0.999999f});
    params.min_p = OneOf(random, {0.0f, 0.0f, 0.05f, 0.3f});
    params.typical_p = OneOf(random, {1.0f, 1.0f, 0.9f, 0.3f});
    one->row.params = &params;
    if (Uniform(random, 0, 1) == 0) Change(random, vocab, one);
  }
  one->row.past = one->past;
  one->row.also = one->also;
}

// The sampler with the memory that the ends of a model would give it.
class Tile {
 public:
  explicit Tile(int vocab) : vocab_(vocab), lists_(vocab, kRows), stage_(vocab, lists_.lists()) {
    cudaDeviceGetAttribute(&context_.multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    context_.keep = [this](int64_t bytes) { return Keep(bytes); };
    rows_ = static_cast<StagedRow*>(Keep(kRows * sizeof(StagedRow)));
    logits_ = static_cast<float*>(Keep(int64_t{kRows} * vocab * 4));
    sampler_ = SamplerCuda::Make(vocab, context_);
    EXPECT_TRUE(lists_ && sampler_ != nullptr);
  }
  ~Tile() {
    for (void* memory : kept_) cudaFree(memory);
  }

  // Results of all, in as many tiles as it takes, with `padding` rows behind each.
  std::vector<SampleResult> Run(const std::vector<const Case*>& cases, int padding = 0) {
    std::vector<SampleResult> results(cases.size());
    std::vector<SampleRow> rows;
    for (const Case* one : cases) rows.push_back(one->row);
    for (size_t done = 0; done < cases.size();) {
      const size_t left = std::min(cases.size() - done, static_cast<size_t>(kRows - padding));
      const std::vector<int32_t> places(left);
      const int taken = stage_.Stage(places, std::span(rows).subspan(done, left));
      EXPECT_GT(taken, 0);
      for (int i = 0; i < taken; ++i) {
        cudaMemcpy(logits_ + int64_t{i} * vocab_,
                   cases[done + static_cast<size_t>(i)]->logits.data(),
                   static_cast<size_t>(vocab_) * 4, cudaMemcpyHostToDevice);
      }
      // What the device does not write is not to look like a result.
      std::memset(static_cast<void*>(lists_.lists().outcomes.data()), 0x7f,
                  lists_.lists().outcomes.size_bytes());
      std::memset(static_cast<void*>(lists_.lists().top.data()), 0x7f,
                  lists_.lists().top.size_bytes());
      cudaMemcpy(rows_, lists_.lists().rows.data(), lists_.lists().rows.size_bytes(),
                 cudaMemcpyHostToDevice);
      sampler_->Run(taken + padding, logits_, rows_, lists_.lists());
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
      stage_.Collect(std::span(results).subspan(done, static_cast<size_t>(taken)));
      done += static_cast<size_t>(taken);
    }
    return results;
  }

 private:
  void* Keep(int64_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, static_cast<size_t>(bytes)), cudaSuccess);
    cudaMemset(memory, 0, static_cast<size_t>(bytes));
    kept_.push_back(memory);
    return memory;
  }

  const int vocab_;
  std::vector<void*> kept_;
  CudaContext context_;
  HostLists lists_;
  SampleStage stage_;
  StagedRow* rows_ = nullptr;
  float* logits_ = nullptr;
  std::unique_ptr<SamplerCuda> sampler_;
};

// Whether `token` could be drawn if the uniform number and the shares of top_p and typical_p were
// off by kNear. `adjusted` are the logits after step 4.
bool NearlyDrawn(const Case& one, const std::vector<float>& adjusted, int32_t token) {
  const SamplingParams& params = one.params;
  const double uniform = UniformAt(params.seed, one.row.position);
  for (double off : {0.0, -kNear, kNear}) {
    std::vector<Choice> choices;
    for (size_t i = 0; i < adjusted.size(); ++i) {
      if (std::isinf(adjusted[i])) continue;
      choices.push_back(
          {.logit = adjusted[i] * (1 / params.temperature), .token = static_cast<int32_t>(i)});
    }
    const auto moved = [&](float share) {
      return static_cast<float>(static_cast<double>(share) * (1 + off));
    };
    KeepTopK(params.top_k, choices);
    if (params.top_p < 1) KeepTopP(std::min(moved(params.top_p), 1.0f), Mass(choices), choices);
    KeepMinP(params.min_p, choices);
    if (params.typical_p < 1) KeepTypical(std::min(moved(params.typical_p), 0.9999999f), choices);
    std::sort(choices.begin(), choices.end(),
              [](const Choice& a, const Choice& b) { return a.token < b.token; });
    float max = -std::numeric_limits<float>::infinity();
    for (const Choice& choice : choices) max = std::max(max, choice.logit);
    const double mass = Mass(choices);
    double sum = 0;
    for (const Choice& choice : choices) {
      const double before = sum;
      sum += std::exp(static_cast<double>(choice.logit - max));
      if (choice.token == token && before / mass - kNear <= uniform &&
          uniform <= sum / mass + kNear)
        return true;
    }
  }
  return false;
}

// Step 3 and 4 once more, one token at a time.
std::vector<float> Adjusted(const Case& one) {
  const SamplingParams& p = one.params;
  std::vector<float> x = one.logits;
  std::vector<int> allowed(x.size(), p.allowed.empty() ? 1 : 0), seen(x.size()), count(x.size());
  for (int32_t token : p.allowed) allowed[static_cast<size_t>(token)] = 1;
  for (int32_t token : p.banned) allowed[static_cast<size_t>(token)] = 0;
  if (one.row.generated < p.min_new_tokens) {
    for (int32_t token : p.ending_tokens) allowed[static_cast<size_t>(token)] = 0;
  }
  for (int32_t token : one.past) seen[static_cast<size_t>(token)] = 1;
  for (size_t i = one.past.size() - static_cast<size_t>(one.row.generated); i < one.past.size();
       ++i) {
    ++count[static_cast<size_t>(one.past[i])];
  }
  for (const auto& [token, bias] : p.logit_bias) x[static_cast<size_t>(token)] += bias;
  for (size_t i = 0; i < x.size(); ++i) {
    if (allowed[i] == 0) x[i] = -std::numeric_limits<float>::infinity();
    if (seen[i] != 0 && p.repetition_penalty != 1) {
      x[i] = x[i] > 0 ? x[i] / p.repetition_penalty : x[i] * p.repetition_penalty;
    }
    if (count[i] > 0)
      x[i] -= p.frequency_penalty * static_cast<float>(count[i]) + p.presence_penalty;
  }
  return x;
}

std::string Describe(const Case& one) {
  const SamplingParams& p = one.params;
  return "vocab " + std::to_string(one.logits.size()) + " target " +
         std::to_string(one.row.target) + " temperature " + std::to_string(p.temperature) +
         " top_k " + std::to_string(p.top_k) + " top_p " + std::to_string(p.top_p) + " min_p " +
         std::to_string(p.min_p) + " typical_p " + std::to_string(p.typical_p) + " biases " +
         std::to_string(p.logit_bias.size()) + " allowed " + std::to_string(p.allowed.size()) +
         " banned " + std::to_string(p.banned.size()) + " past " + std::to_string(one.past.size()) +
         " top " + std::to_string(one.row.top);
}

double Tolerance(double value) { return kNear + 2e-6 * std::abs(value); }

// Counts what differs within the limits.
struct Tally {
  int drawn = 0, near = 0;
};

void Compare(const Case& one, const SampleResult& cpu, const SampleResult& gpu, Tally* tally) {
  SCOPED_TRACE(Describe(one));
  ASSERT_EQ(gpu.finite, cpu.finite);
  if (one.row.measured) {
    EXPECT_NEAR(gpu.entropy, cpu.entropy, Tolerance(static_cast<double>(cpu.entropy)));
  }
  ASSERT_EQ(gpu.top.size(), cpu.top.size());
  for (size_t i = 0; i < cpu.top.size(); ++i) {
    EXPECT_EQ(gpu.top[i].token, cpu.top[i].token) << "place " << i;
    EXPECT_NEAR(gpu.top[i].logprob, cpu.top[i].logprob,
                Tolerance(static_cast<double>(cpu.top[i].logprob)));
  }
  ASSERT_EQ(gpu.also.size(), cpu.also.size());
  for (size_t i = 0; i < cpu.also.size(); ++i) {
    EXPECT_NEAR(gpu.also[i], cpu.also[i], Tolerance(static_cast<double>(cpu.also[i])));
  }
  const bool drawn = one.row.target < 0 && one.params.temperature > 0 && cpu.token >= 0;
  tally->drawn += drawn ? 1 : 0;
  if (gpu.token != cpu.token) {
    ASSERT_TRUE(drawn) << gpu.token << " instead of " << cpu.token;
    ++tally->near;
    EXPECT_TRUE(NearlyDrawn(one, Adjusted(one), gpu.token))
        << gpu.token << " instead of " << cpu.token;
    return;
  }
  if (cpu.token < 0 || !one.row.measured) return;
  EXPECT_EQ(gpu.rank, cpu.rank);
  EXPECT_NEAR(gpu.logprob, cpu.logprob, Tolerance(static_cast<double>(cpu.logprob)));
}

std::vector<SampleResult> OnCpu(const std::vector<Case>& cases) {
  std::vector<SampleResult> results(cases.size());
  std::vector<std::thread> threads;
  const size_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (size_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      SamplerCpu sampler(static_cast<int64_t>(cases[0].logits.size()));
      for (size_t i = w; i < cases.size(); i += workers) {
        sampler.Sample(cases[i].logits, cases[i].row, results[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<const Case*> Pointers(const std::vector<Case>& cases) {
  std::vector<const Case*> pointers;
  for (const Case& one : cases) pointers.push_back(&one);
  return pointers;
}

struct Amount {
  int vocab, cases, few = 20;  // in a hurry
};

class SamplerCudaTest : public ::testing::TestWithParam<Amount> {
 protected:
  void SetUp() override {
    EDDY_SKIP_WITHOUT_GPU();
    RecordProperty("seed", std::to_string(seed_));
    random_.seed(seed_);
  }
  // Cases are not to move: their rows point into them.
  std::vector<Case> Cases(int vocab, int n) {
    std::vector<Case> cases(static_cast<size_t>(n));
    for (Case& one : cases) MakeCase(random_, vocab, &one);
    return cases;
  }

  const uint64_t seed_ = std::random_device()();
  Generator random_;
};

TEST_P(SamplerCudaTest, DoesWhatTheCpuDoes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto [vocab, most, few] = GetParam();
  const std::vector<Case> cases = Cases(vocab, testing::InTime(most, few));
  const std::vector<SampleResult> cpu = OnCpu(cases), gpu = Tile(vocab).Run(Pointers(cases));
  Tally tally;
  for (size_t i = 0; i < cases.size() && !HasFailure(); ++i)
    Compare(cases[i], cpu[i], gpu[i], &tally);
  std::printf("vocab %6d: %4zu cases, %4d drawn, %3d on a boundary\n", vocab, cases.size(),
              tally.drawn, tally.near);
  // Where a token of a flat row has a few times 1e-6, rounding may move the draw to the one beside.
  EXPECT_LE(tally.near, 1 + tally.drawn / 50);
}

TEST_P(SamplerCudaTest, GivesARowTheSameBitsInAnyCompany) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  Tile tile(GetParam().vocab);
  const std::vector<Case> cases = Cases(GetParam().vocab, 40);
  std::vector<const Case*> order = Pointers(cases);
  const std::vector<SampleResult> first = tile.Run(order);
  std::reverse(order.begin(), order.end());
  const std::vector<SampleResult> second = tile.Run(order, /*padding=*/33);
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  for (size_t i = 0; i < cases.size(); ++i) {
    const SampleResult &a = first[i], &b = second[cases.size() - 1 - i];
    SCOPED_TRACE(Describe(cases[i]));
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.rank, b.rank);
    EXPECT_EQ(bits(a.logprob), bits(b.logprob));
    EXPECT_EQ(bits(a.entropy), bits(b.entropy));
    for (size_t j = 0; j < a.top.size(); ++j)
      EXPECT_EQ(bits(a.top[j].logprob), bits(b.top[j].logprob));
  }
}

TEST_P(SamplerCudaTest, KeepsALostRowToItself) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  Tile tile(GetParam().vocab);
  std::vector<Case> cases = Cases(GetParam().vocab, 7);
  const std::vector<SampleResult> before = tile.Run(Pointers(cases));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> lost = {NAN, kInfinity, -kInfinity};
  for (size_t i = 0; i < lost.size(); ++i) {
    std::vector<float>& logits = cases[2 * i + 1].logits;
    logits[static_cast<size_t>(Uniform(random_, 0, GetParam().vocab - 1))] = lost[i];
  }
  const std::vector<SampleResult> after = tile.Run(Pointers(cases));
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(after[i].finite, i % 2 == 0);
    if (i % 2 == 0) EXPECT_EQ(after[i].token, before[i].token);
  }
}

// The last does not fit in the shared memory of eight blocks.
INSTANTIATE_TEST_SUITE_P(Vocabularies, SamplerCudaTest,
                         ::testing::Values(Amount{1, 64}, Amount{2, 200}, Amount{37, 1000},
                                           Amount{256, 1000}, Amount{4097, 1000},
                                           Amount{32000, 600}, Amount{50257, 300},
                                           Amount{152064, 192, 4}, Amount{262147, 96, 4},
                                           Amount{500009, 48, 4}),
                         [](const auto& of) { return std::to_string(of.param.vocab); });

}  // namespace
}  // namespace eddy
