#include "kernels/ends/sampler/sampler_cpu.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/cpu/simd.h"
#include "kernels/ends/sampler/philox.h"

namespace eddy {
namespace {

constexpr float kBarred = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 64;

// A weight that no more than the rest of `total` lies below: the tokens that weigh at least as much
// hold `share` of it. Found from a histogram over quarters of octaves, which are the upper bits of
// a float; `weights` are in [0, 1].
float WeightBound(std::span<const float> weights, double total, double share) {
  constexpr int kShift = 21;
  std::array<double, (0x3f800000 >> kShift) + 1> histogram = {};
  for (float weight : weights) histogram[std::bit_cast<uint32_t>(weight) >> kShift] += weight;
  // A hair more, so that rounding cannot leave the last token of the prefix out.
  const double wanted = share * total * (1 + 1e-6);
  double sum = 0;
  for (size_t i = histogram.size() - 1; i > 0; --i) {
    sum += histogram[i];
    if (sum >= wanted) return std::bit_cast<float>(static_cast<uint32_t>(i) << kShift);
  }
  return 0;
}

// The `count` likeliest, in order.
void Top(std::span<const float> logits, double log_mass, int32_t count,
         std::vector<Candidate>& top) {
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
  };
  top.clear();
  const size_t wanted = std::min(static_cast<size_t>(std::max(count, 0)), logits.size());
  if (wanted == 0) return;
  // A heap whose front is the least likely of those kept: most tokens fail the first comparison.
  // Candidates hold logits until the end, so that ties are ties of logits.
  for (size_t i = 0; i < logits.size(); ++i) {
    if (top.size() == wanted && !(logits[i] > top.front().logprob)) continue;
    if (top.size() == wanted) {
      std::pop_heap(top.begin(), top.end(), likelier);
      top.pop_back();
    }
    top.push_back({.token = static_cast<int32_t>(i), .logprob = logits[i]});
    std::push_heap(top.begin(), top.end(), likelier);
  }
  std::sort_heap(top.begin(), top.end(), likelier);
  for (Candidate& candidate : top) {
    candidate.logprob = static_cast<float>(static_cast<double>(candidate.logprob) - log_mass);
  }
}

}  // namespace

SamplerCpu::SamplerCpu(int64_t vocab)
    : adjusted_(static_cast<size_t>(vocab)),
      weights_(static_cast<size_t>(vocab)),
      maxima_(static_cast<size_t>((vocab + kBlock - 1) / kBlock)),
      counts_(static_cast<size_t>(vocab)) {
  choices_.reserve(static_cast<size_t>(vocab));
}

void SamplerCpu::Sample(std::span<const float> logits, const SampleRow& row, SampleResult& result) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const simd::RowSummary summary = simd::Summarise(logits.data(), vocab);
  result = SampleResult{
      .finite = summary.finite, .top = std::move(result.top), .also = std::move(result.also)};
  result.top.clear();
  result.also.clear();
  if (!summary.finite) return;

  // ln sum e^x, and the entropy ln Z - E[x - max].
  const simd::ExpSums sums = simd::SumExp(logits.data(), summary.max, vocab);
  const double log_mass = std::log(sums.exp) + static_cast<double>(summary.max);
  result.entropy = static_cast<float>(std::log(sums.exp) - sums.exp_x / sums.exp);
  const auto logprob = [&](int32_t token) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - log_mass);
  };
  Top(logits, log_mass, row.top, result.top);
  for (int32_t token : row.also) result.also.push_back(logprob(token));

  result.token = row.target;
  if (row.target < 0) {
    const std::span<const float> adjusted = Adjust(logits, row);
    const float max = adjusted.data() == logits.data()
                          ? summary.max
                          : *std::max_element(adjusted.begin(), adjusted.end());
    if (max == kBarred) return;
    // So near to 0 that what is divided by it is infinite, a temperature leaves all others without
    // weight too.
    const float scale = 1 / row.params->temperature;
    result.token = std::isfinite(scale) && std::isfinite(max * scale)
                       ? DrawToken(adjusted, max, row)
                       : static_cast<int32_t>(simd::ArgMax(adjusted.data(), vocab));
  }
  const float value = logits[static_cast<size_t>(result.token)];
  result.logprob = logprob(result.token);
  result.rank = static_cast<int32_t>(1 + simd::CountAbove(logits.data(), value, vocab) +
                                     simd::CountEqual(logits.data(), value, result.token));
}

std::span<const float> SamplerCpu::Adjust(std::span<const float> logits, const SampleRow& row) {
  const SamplingParams& params = *row.params;
  const bool barred_end = row.generated < params.min_new_tokens && !params.ending_tokens.empty();
  const bool penalised = params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                         params.presence_penalty != 0.0f;
  if (params.logit_bias.empty() && params.allowed.empty() && params.banned.empty() && !barred_end &&
      !penalised) {
    return logits;
  }
  const auto at = [](int32_t token) { return static_cast<size_t>(token); };
  std::copy(logits.begin(), logits.end(), adjusted_.begin());
  for (const auto& [token, bias] : params.logit_bias) adjusted_[at(token)] += bias;
  if (!params.allowed.empty()) {
    std::fill(weights_.begin(), weights_.end(), kBarred);
    for (int32_t token : params.allowed) weights_[at(token)] = adjusted_[at(token)];
    adjusted_.swap(weights_);
  }
  for (int32_t token : params.banned) adjusted_[at(token)] = kBarred;
  if (barred_end) {
    for (int32_t token : params.ending_tokens) adjusted_[at(token)] = kBarred;
  }
  if (penalised) Penalise(row);
  return adjusted_;
}

void SamplerCpu::Penalise(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  const auto at = [](int32_t token) { return static_cast<size_t>(token); };
  if (params.repetition_penalty != 1.0f) {
    for (int32_t token : row.past) {
      if (counts_[at(token)]++ > 0) continue;
      float& logit = adjusted_[at(token)];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    for (int32_t token : row.past) counts_[at(token)] = 0;
  }
  const auto generated = row.past.last(static_cast<size_t>(row.generated));
  for (int32_t token : generated) ++counts_[at(token)];
  for (int32_t token : generated) {
    if (counts_[at(token)] == 0) continue;
    adjusted_[at(token)] -=
        params.frequency_penalty * static_cast<float>(counts_[at(token)]) + params.presence_penalty;
    counts_[at(token)] = 0;
  }
}

int32_t SamplerCpu::DrawToken(std::span<const float> logits, float max, const SampleRow& row) {
  const SamplingParams& params = *row.params;
  const auto vocab = static_cast<int64_t>(logits.size());
  const double uniform = UniformAt(params.seed, row.position);
  const bool filtered =
      params.top_k > 0 || params.top_p < 1 || params.min_p > 0 || params.typical_p < 1;
  if (!filtered) {
    const double total =
        simd::ExpInto(logits.data(), 1 / params.temperature, max, weights_.data(), vocab);
    return DrawDense(uniform, total, weights_);
  }
  double mass = 0;
  Gather(logits, max, params, &mass);
  KeepTopK(params.top_k, choices_);
  if (params.top_p < 1) KeepTopP(params.top_p, params.top_k > 0 ? Mass(choices_) : mass, choices_);
  KeepMinP(params.min_p, choices_);
  KeepTypical(params.typical_p, choices_);
  return Draw(uniform, choices_);
}

void SamplerCpu::Gather(std::span<const float> logits, float max, const SamplingParams& params,
                        double* mass) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const float scale = 1 / params.temperature;
  constexpr float kAll = std::numeric_limits<float>::lowest();
  if (params.top_k > 0) {
    GatherAtLeast(logits, logits, NthBlockMaximum(logits, static_cast<size_t>(params.top_k)),
                  scale);
  } else if (params.top_p < 1) {
    *mass = simd::ExpInto(logits.data(), scale, max, weights_.data(), vocab);
    GatherAtLeast(logits, weights_, WeightBound(weights_, *mass, params.top_p), scale);
  } else {
    GatherAtLeast(logits, logits, kAll, scale);
  }
}

// At least `n` logits are as great as the result (or all that are not barred).
float SamplerCpu::NthBlockMaximum(std::span<const float> logits, size_t n) {
  constexpr float kAll = std::numeric_limits<float>::lowest();
  if (n >= maxima_.size()) return kAll;
  simd::BlockMaxima(logits.data(), static_cast<int64_t>(logits.size()), kBlock, maxima_.data());
  const auto nth = maxima_.begin() + static_cast<ptrdiff_t>(n) - 1;
  std::nth_element(maxima_.begin(), nth, maxima_.end(), std::greater<>());
  return std::max(*nth, kAll);
}

void SamplerCpu::GatherAtLeast(std::span<const float> logits, std::span<const float> keys,
                               float bound, float scale) {
  // Every token is written and the pointer moves only behind those that stay: no branch to miss.
  choices_.resize(logits.size());
  Choice* to = choices_.data();
  for (size_t i = 0; i < logits.size(); ++i) {
    *to = {.logit = logits[i] * scale, .token = static_cast<int32_t>(i)};
    to += keys[i] >= bound && logits[i] > kBarred ? 1 : 0;
  }
  choices_.resize(static_cast<size_t>(to - choices_.data()));
}

}  // namespace eddy
