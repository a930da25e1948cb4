#include "kernels/ends/sampler/filters.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd.h"

namespace eddy {
namespace {

float MaxLogit(std::span<const Choice> choices) {
  return std::max_element(choices.begin(), choices.end(),
                          [](const Choice& a, const Choice& b) { return a.logit < b.logit; })
      ->logit;
}

double Weight(float logit, float max) { return std::exp(static_cast<double>(logit - max)); }

}  // namespace

double Mass(std::span<const Choice> choices) {
  const float max = MaxLogit(choices);
  double mass = 0;
  for (const Choice& choice : choices) mass += Weight(choice.logit, max);
  return mass;
}

void KeepTopK(int32_t top_k, std::vector<Choice>& choices) {
  if (top_k <= 0 || static_cast<size_t>(top_k) >= choices.size()) return;
  std::nth_element(choices.begin(), choices.begin() + top_k, choices.end(), Likelier);
  choices.resize(static_cast<size_t>(top_k));
}

void KeepTopP(float top_p, double mass, std::vector<Choice>& choices) {
  const float max = MaxLogit(choices);
  const double wanted = static_cast<double>(top_p) * mass;
  // Quickselect by mass: the end of the prefix lies in [begin, end), and what lies before `begin`
  // is likelier and weighs `before`.
  auto begin = choices.begin(), end = choices.end();
  double before = 0;
  constexpr ptrdiff_t kFew = 32;
  while (end - begin > kFew) {
    std::swap(*begin, begin[(end - begin) / 2]);
    const Choice pivot = *begin;
    const auto middle = std::partition(
        begin + 1, end, [&](const Choice& choice) { return Likelier(choice, pivot); });
    double part = 0;
    for (auto i = begin + 1; i != middle; ++i) part += Weight(i->logit, max);
    if (before + part >= wanted) {
      std::swap(*begin, *(middle - 1));
      end = middle - 1;  // the pivot itself is not needed
    } else {
      before += part + Weight(pivot.logit, max);
      begin = middle;
      if (before >= wanted) end = begin;  // the pivot is the last one
    }
  }
  std::sort(begin, end, Likelier);
  for (; begin != end && before < wanted; ++begin) before += Weight(begin->logit, max);
  choices.erase(begin, choices.end());
}

void KeepMinP(float min_p, std::vector<Choice>& choices) {
  if (!(min_p > 0)) return;
  const float max = MaxLogit(choices);
  std::erase_if(choices, [&](const Choice& choice) {
    return Weight(choice.logit, max) < static_cast<double>(min_p);
  });
}

void KeepTypical(float typical_p, std::vector<Choice>& choices) {
  if (!(typical_p < 1)) return;
  const float max = MaxLogit(choices);
  const double mass = Mass(choices);
  double mean = 0;  // of logit - max; the entropy is ln(mass) - mean
  for (const Choice& choice : choices) {
    mean += Weight(choice.logit, max) / mass * static_cast<double>(choice.logit - max);
  }
  // |-ln p - entropy| = |mean - (logit - max)|
  const auto distance = [&](const Choice& choice) {
    return std::abs(mean - static_cast<double>(choice.logit - max));
  };
  std::sort(choices.begin(), choices.end(), [&](const Choice& a, const Choice& b) {
    const double to_a = distance(a), to_b = distance(b);
    return to_a < to_b || (to_a == to_b && a.token < b.token);
  });
  double sum = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    sum += Weight(choices[i].logit, max);
    if (sum < static_cast<double>(typical_p) * mass) continue;
    choices.resize(i + 1);
    return;
  }
}

int32_t Draw(double uniform, std::vector<Choice>& choices) {
  std::sort(choices.begin(), choices.end(),
            [](const Choice& a, const Choice& b) { return a.token < b.token; });
  const float max = MaxLogit(choices);
  const double target = uniform * Mass(choices);
  double sum = 0;
  for (const Choice& choice : choices) {
    sum += Weight(choice.logit, max);
    if (sum > target) return choice.token;
  }
  // Rounding of the last sum; uniform is below one.
  return choices.back().token;
}

int32_t DrawDense(double uniform, double total, std::span<const float> weights) {
  const double target = uniform * total;
  constexpr size_t kRun = 1024;
  double sum = 0;
  int32_t last = -1;
  for (size_t begin = 0; begin < weights.size(); begin += kRun) {
    const std::span<const float> run =
        weights.subspan(begin, std::min(kRun, weights.size() - begin));
    const double after = sum + simd::Sum(run.data(), static_cast<int64_t>(run.size()));
    if (after <= target && begin + kRun < weights.size()) {
      sum = after;
      continue;
    }
    for (size_t i = 0; i < run.size(); ++i) {
      if (run[i] == 0) continue;
      last = static_cast<int32_t>(begin + i);
      sum += static_cast<double>(run[i]);
      if (sum > target) return last;
    }
  }
  return last;
}

}  // namespace eddy
