// What is done with a row as a whole: loading, sums, changes of single logits, the rank.
#pragma once

#include <climits>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/ends/sampler/choices.cuh"

namespace eddy::sampler {

// What one look at each logit tells.
struct Facts {
  float max = -kInfinity, min = kInfinity;  // but for those that are -infinity
  int best = INT_MAX;                       // the lowest token that has `max`
  __device__ __forceinline__ void See(float value, int token) {
    best = value > max ? token : best;
    max = fmaxf(max, value);
    min = fminf(min, value > -kInfinity ? value : kInfinity);
  }
  __device__ __forceinline__ void Add(const Facts& other) {
    const bool other_first = other.max > max || (other.max == max && other.best < best);
    best = other_first ? other.best : best;
    max = fmaxf(max, other.max);
    min = fminf(min, other.min);
  }
};

struct RawFacts {
  Facts facts;
  int lost = 0;  // not 0: a logit is NaN or infinite
  __device__ __forceinline__ void Add(const RawFacts& other) {
    facts.Add(other.facts);
    lost |= other.lost;
  }
};

struct Count {
  int n = 0;
  __device__ __forceinline__ void Add(const Count& other) { n += other.n; }
};

// Begins to copy the block's part of `logits` into the working copy. Each thread copies what it
// will read, so no barrier is needed.
template <bool kResident>
__device__ __forceinline__ void BeginCopy(const Share<kResident>& share, const float* logits) {
  const float* const from = logits + share.first;
  float* const to = share.values();
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  for (int place = share.begin(); place < share.end(); place += kGroup) {
    if (kResident && aligned && place + 4 <= share.count) {
      CopyAsync<16>(to + place, from + place);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (place + j >= share.count) {
        to[place + j] = -kInfinity;
      } else if constexpr (kResident) {
        CopyAsync<4>(to + place + j, from + place + j);
      } else {
        to[place + j] = from[place + j];
      }
    }
  }
}

template <bool kResident>
__device__ __forceinline__ RawFacts SeeRow(Team* team, const Share<kResident>& share) {
  RawFacts raw;
  const int end = share.first + share.count;
  EachValue(share, [&](float value, int token) {
    raw.facts.See(value, token);
    raw.lost |= isfinite(value) || token >= end ? 0 : 1;
  });
  return team->Total(raw);
}

// What one thread adds up. Without clusters one block has the whole row, and its threads a thousand
// logits each of the largest vocabularies; where those are alike, float alone would be off by as
// many roundings in the same direction. So there what each one loses is carried along (W. Kahan,
// "Further remarks on reducing truncation errors", 1965).
class Adder {
 public:
  __device__ __forceinline__ void Add(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    sum_ += value;
#else
    const float wanted = value - lost_;
    const float sum = __fadd_rn(sum_, wanted);
    lost_ = __fadd_rn(__fadd_rn(sum, -sum_), -wanted);
    sum_ = sum;
#endif
  }
  __device__ __forceinline__ double sum() const { return static_cast<double>(sum_); }

 private:
  float sum_ = 0, lost_ = 0;
};

// Sums of e^(x - max) and of e^(x - max) (x - max).
template <bool kResident>
__device__ __forceinline__ Sums<2> SumRow(Team* team, const Share<kResident>& share, float max) {
  Adder exp, exp_x;
  EachValue(share, [&](float value, int) {
    // Below, e^x is 0.
    const float x = fmaxf(value - max, -128.0f), e = __expf(x);
    exp.Add(e);
    exp_x.Add(e * x);
  });
  return team->Total(Sums<2>{{exp.sum(), exp_x.sum()}});
}

// What one look at the tokens that may be drawn tells a thread.
struct Sight {
  Adder mass;                 // of Weight
  float nearest = kInfinity;  // least gap to the greatest logit
};
template <bool kResident>
__device__ __forceinline__ Sight LookAt(const Share<kResident>& share, const Choices& choices) {
  Sight sight;
  EachValue(share, [&](float value, int) {
    const float gap = choices.max - choices.Scaled(value);
    sight.mass.Add(__expf(-gap));
    sight.nearest = fminf(sight.nearest, gap);
  });
  return sight;
}

// Sums of Weight and of Weight times gap over what stays.
template <bool kResident>
__device__ __forceinline__ Sums<2> SumChoices(Team* team, const Share<kResident>& share,
                                              const Choices& choices) {
  Adder mass, mass_gap;
  EachValue(share, [&](float value, int token) {
    const float logit = choices.Scaled(value);
    const float weight = choices.Stays(logit, token) ? choices.Weight(logit) : 0;
    mass.Add(weight);
    mass_gap.Add(weight * fmaxf(logit - choices.max, -128.0f));
  });
  return team->Total(Sums<2>{{mass.sum(), mass_gap.sum()}});
}

// Step 3 and 4 of kernels/sampling.h for one logit.
__device__ inline float Changed(float logit, const LogitEdit& edit, const StagedRow& row) {
  logit = __fadd_rn(logit, edit.bias);
  const bool barred = (edit.marks & LogitEdit::kBarred) != 0 ||
                      (row.only_allowed != 0 && (edit.marks & LogitEdit::kAllowed) == 0);
  if (barred) return -kInfinity;
  if ((edit.marks & LogitEdit::kSeen) != 0) {
    logit = logit > 0 ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);
  }
  if (edit.generated > 0) {
    const float times = static_cast<float>(edit.generated);
    logit = __fsub_rn(logit, __fadd_rn(__fmul_rn(row.frequency, times), row.presence));
  }
  return logit;
}

// Changes the working copy; `logits` is the row as it was. Each block reads a part of the edits,
// which lie in the host's memory, and writes to whom they concern.
template <bool kResident>
__device__ __forceinline__ Facts Edit(Team* team, const Share<kResident>& share,
                                      const float* logits, const StagedRow& row,
                                      const LogitEdit* edits) {
  if (row.only_allowed != 0) {
    constexpr float4 kNone = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
    for (int place = share.begin(); place < share.end(); place += kGroup) {
      *reinterpret_cast<float4*>(share.values() + place) = kNone;
    }
  }
  team->Sync();
  const int segment = share.chunk * kWarps;
  for (int i = static_cast<int>(threadIdx.x) * team->blocks() + team->rank(); i < row.edits;
       i += kThreads * team->blocks()) {
    const LogitEdit edit = edits[i];
    const int owner = edit.token / segment, at = edit.token - owner * segment;
    float* const values = kResident ? team->At(share.values(), owner)
                                    : share.values() + (owner - team->rank()) * segment;
    values[at] = Changed(logits[edit.token], edit, row);
  }
  team->Sync();
  Facts facts;
  EachValue(share, [&](float value, int token) { facts.See(value, token); });
  return team->Total(facts);
}

// Place of the token, whose logit is `chosen`, in the row as it is; 1 is the likeliest. `changed`:
// the working copy is not that row any more.
template <bool kResident>
__device__ __forceinline__ int Rank(Team* team, const Share<kResident>& share, const float* logits,
                                    bool changed, float chosen, int token) {
  Count ahead;
  const auto see = [&](float value, int other) {
    ahead.n += value > chosen || (value == chosen && other < token) ? 1 : 0;
  };
  if (changed) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < share.count; i += kThreads) {
      see(logits[share.first + i], share.first + i);
    }
  } else {
    EachValue(share, see);
  }
  return 1 + team->Total(ahead).n;
}

}  // namespace eddy::sampler
