// Steps 6 and 7 of kernels/sampling.h on the CPU: which tokens stay, and which of them is drawn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eddy {

// A token that may be drawn; `logit` is already divided by the temperature.
struct Choice {
  float logit = 0;
  int32_t token = 0;
};

// Likelier first, the lowest id first on a tie: the order in which top_k and top_p count.
inline bool Likelier(const Choice& a, const Choice& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// Each leaves a subset of `choices`, in any order; at least one stays. No logit is -infinity.
void KeepTopK(int32_t top_k, std::vector<Choice>& choices);
// The shortest likeliest-first prefix whose share of `mass` reaches `top_p`. `mass` is the sum of
// e^(logit - max) over everything that top_p sees, of which `choices` may be a likeliest part.
void KeepTopP(float top_p, double mass, std::vector<Choice>& choices);
// Those at least `min_p` times as likely as the likeliest.
void KeepMinP(float min_p, std::vector<Choice>& choices);
// Those whose surprise is closest to the entropy, until their share reaches `typical_p` (Meister et
// al., arXiv 2202.00666); on a tie the lowest id.
void KeepTypical(float typical_p, std::vector<Choice>& choices);

// Sum of e^(logit - max).
double Mass(std::span<const Choice> choices);

// The token at which the cumulative distribution, in order of token id, passes `uniform`. Sorts
// `choices` by token.
int32_t Draw(double uniform, std::vector<Choice>& choices);
// The same over all of `weights` (unnormalised, `total` their sum); -1 if all are zero.
int32_t DrawDense(double uniform, double total, std::span<const float> weights);

}  // namespace eddy
