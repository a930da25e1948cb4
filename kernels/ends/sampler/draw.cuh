// The likeliest tokens of a row, and the draw of one from what the filters leave.
#pragma once

#include "kernels/ends/sampler/selection.cuh"

namespace eddy::sampler {

template <bool kResident>
__device__ __forceinline__ TypicalChoices KeepTypical(Team* team, const Share<kResident>& share,
                                                      const Choices& choices, double typical_p) {
  Room* const room = RoomOfBlock();
  const Sums<2> sums = SumChoices(team, share, choices);
  TypicalChoices typical = {.choices = choices, .mean_gap = sums.of[1] / sums.of[0]};
  const double wanted = typical_p * sums.of[0];
  const auto order = [&](float value, int token) -> uint64_t {
    const float logit = choices.Scaled(value);
    return choices.Stays(logit, token) ? typical.OrderOf(logit, token) : 0;
  };
  const auto amount = [&](float value) { return choices.Weight(choices.Scaled(value)); };
  Interval interval;
  const double before = Halve(team, share, 0, wanted, &interval, order, amount);
  ClearList(room);
  EachValue(share, [&](float value, int token) {
    const uint64_t place = order(value, token);
    if (place > interval.first && place <= interval.last) List(room, place, amount(value));
  });
  team->Sync();
  typical.last = SortAndFind(*team, room, before, wanted).order;
  return typical;
}

// The first of the warp's tokens at which the running weight, from `base` on, is above `target`.
template <bool kResident, typename Kept>
__device__ __forceinline__ int WalkWarp(const Share<kResident>& share, const Kept& kept,
                                        double base, double target) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto weigh = [&](int place, float(&parts)[4]) {
    const float4 values = share.At(place);
    const float four[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float logit = kept.Scaled(four[j]);
      const bool stays = kept.Stays(logit, share.first + place + j);
      parts[j] = stays ? kept.Weight(logit) : 0;
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  };
  float parts[4];
  // Groups first, 32 at a time, one kept by each lane.
  int group = -1;
  double running = base;
  const int groups = share.chunk / kGroup;
  for (int first = 0; first < groups; first += 32) {
    double mine[1] = {};
#pragma unroll 4
    for (int i = 0; i < min(32, groups - first); ++i) {
      float sum = weigh(share.begin() + (first + i) * kGroup, parts);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane == i) mine[0] = static_cast<double>(sum);
    }
    const Reached reached = Reach(mine, running, target, /*above=*/true);
    if (reached.index >= 0) {
      group = first + reached.index;
      base = reached.before;
    }
    running = __shfl_sync(~0u, running + Through(mine[0]), 31);
    if (running > target) break;
  }
  if (group < 0) return -1;
  weigh(share.begin() + group * kGroup, parts);
  const double four[4] = {parts[0], parts[1], parts[2], parts[3]};
  const Reached reached = Reach(four, base, target, /*above=*/true);
  return share.first + share.begin() - lane * 4 + group * kGroup + reached.index;
}

// The first token, in order of token id, at which the running weight of what is kept is above
// `uniform` of the whole.
template <bool kResident, typename Kept>
__device__ __forceinline__ int Draw(Team* team, const Share<kResident>& share, const Kept& kept,
                                    double uniform) {
  Room* const room = RoomOfBlock();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float own = 0;
  EachValue(share, [&](float value, int token) {
    const float logit = kept.Scaled(value);
    own += kept.Stays(logit, token) ? kept.Weight(logit) : 0;
  });
  double sum = static_cast<double>(own);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) room->warp_sums[warp] = sum;
  team->Sync();
  // The warp in which it happens. Every warp finds the same.
  constexpr int kPerLane = kWarps * kMostBlocks / 32;
  double parts[kPerLane];
  double total = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int i = lane * kPerLane + j;
    const bool some = i < kWarps * team->blocks();
    parts[j] = some ? *team->At(&room->warp_sums[i % kWarps], i / kWarps) : 0;
    total += parts[j];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  const double target = uniform * total;
  const Reached owner = Reach(parts, 0, target, /*above=*/true);
  if (owner.index == team->rank() * kWarps + warp) {
    const int token = WalkWarp(share, kept, owner.before, target);
    if (lane < team->blocks()) *team->At(&room->chosen, lane) = token;
  }
  team->Sync();
  return room->chosen;
}

// One of the tokens that are sorted, from 0 to `last`, drawn in order of token id.
__device__ __forceinline__ int DrawSorted(int last, const Choices& choices, double uniform) {
  Room* const room = RoomOfBlock();
  const int at = static_cast<int>(threadIdx.x);
  const auto weight = [&](const Entry& entry) {
    const bool stays = LogitOf(entry.order) - choices.max >= choices.min_gap;
    return stays ? static_cast<double>(entry.amount) : 0;
  };
  const Entry mine = room->sorted[min(at, last)];
  if (at == 0) {
    room->chosen = INT_MAX;
    room->highest = 0;
  }
  __syncthreads();
  if (at / 32 * 32 <= last) {
    double before = 0, total = 0;
#pragma unroll 2
    for (int i = 0; i <= last; ++i) {
      const Entry other = room->sorted[i];
      const double part = weight(other);
      total += part;
      before += TokenOf(other.order) < TokenOf(mine.order) ? part : 0;
    }
    if (at <= last && weight(mine) > 0) {
      atomicMax(&room->highest, TokenOf(mine.order));
      if (before + weight(mine) > uniform * total) atomicMin(&room->chosen, TokenOf(mine.order));
    }
  }
  __syncthreads();
  // If it is nobody's, by rounding, it is the last one's.
  return min(room->chosen, room->highest);
}

// Steps 5 to 7 of kernels/sampling.h for any row.
template <bool kResident>
__device__ __noinline__ int DrawFromAll(Team team, Share<kResident> share, Choices choices,
                                        float range, int vocab) {
  const StagedRow& row = RoomOfBlock()->row;
  if (row.top_k > 0) KeepPrefix<false>(&team, share, &choices, row.top_k, range);
  if (row.top_p < 1) {
    const double mass = SumChoices(&team, share, choices).of[0];
    // All that lies further off weighs no more than `vocab` times e^-reach, which is no more than
    // what may be left out.
    const double left_out = (1 - static_cast<double>(row.top_p)) * mass;
    const auto reach = static_cast<float>(log(vocab / left_out) + 0.01);
    KeepPrefix<true>(&team, share, &choices, static_cast<double>(row.top_p) * mass,
                     fminf(range, reach));
  }
  choices.min_gap = row.min_gap;
  int token = 0;
  if (row.typical_p < 1) {
    const TypicalChoices typical =
        KeepTypical(&team, share, choices, static_cast<double>(row.typical_p));
    token = Draw(&team, share, typical, row.uniform);
  } else {
    token = Draw(&team, share, choices, row.uniform);
  }
  team.Sync();  // the caller's team does not know in which turn this one is
  return token;
}

// The same where top_k or top_p leave few tokens, which is what nearly everybody asks: they are
// sorted, and no more looks at the row are needed. -1 if they are not few.
template <bool kResident>
__device__ __forceinline__ int DrawFromFew(Team* team, const Share<kResident>& share,
                                           const Choices& choices, float range) {
  Room* const room = RoomOfBlock();
  const StagedRow& row = room->row;
  constexpr int kWished = 128;
  if (row.typical_p < 1 || row.top_k > kFew / 2) return -1;
  const Sight sight = LookAt(share, choices);
  team->Post(Sums<1>{{sight.mass.sum()}});
  const float reach = ReachOfThreads(*team, sight.nearest, max(row.top_k, kWished), range);
  double mass = team->Posted<Sums<1>>().of[0];
  int count = SortWithin(*team, share, choices, reach);
  if (count > kFew) return -1;
  if (row.top_k > 0) count = min(count, row.top_k);
  int last = count - 1;
  if (row.top_p < 1) {
    const double through = SortedThrough(room, count);
    if (row.top_k > 0) {
      if (static_cast<int>(threadIdx.x) == last) room->prefix_sum = through;
      __syncthreads();
      mass = room->prefix_sum;
    }
    const int found = FindSorted(room, count, through, static_cast<double>(row.top_p) * mass);
    if (found == count && row.top_k == 0 && reach < range) return -1;
    last = min(found, last);
  }
  Choices few = choices;
  few.min_gap = row.min_gap;
  return DrawSorted(last, few, row.uniform);
}

// Steps 5 to 7 of kernels/sampling.h. REQUIRES: a logit that is not barred.
template <bool kResident>
__device__ __forceinline__ int DrawToken(Team* team, const Share<kResident>& share,
                                         const Facts& facts, int vocab) {
  const StagedRow& row = RoomOfBlock()->row;
  Choices choices = {.scale = row.scale};
  choices.max = choices.Scaled(facts.max);
  if (!isfinite(choices.max)) return facts.best;
  const float range = choices.max - choices.Scaled(facts.min);
  int token = -1;
  if (row.top_k > 0 || row.top_p < 1) {
    token = DrawFromFew(team, share, choices, range);
    // What is found out here is the same in every block.
    if (token >= 0) return token;
    team->Sync();
  } else if (row.typical_p == 1) {
    return Draw(team, share, GapChoices{choices.scale, choices.max, row.min_gap}, row.uniform);
  }
  return DrawFromAll(*team, share, choices, range, vocab);
}

// The likeliest tokens of the row as it is, in order.
template <bool kResident>
__device__ __noinline__ void ReportTop(Team team, Share<kResident> share, Facts facts,
                                       double log_mass, Candidate* top) {
  Room* const room = RoomOfBlock();
  const int wanted = room->row.top;
  Choices choices = {.max = facts.max};
  const float range = facts.max - facts.min;
  const Sight sight = LookAt(share, choices);
  float reach = ReachOfThreads(team, sight.nearest, wanted, range);
  if (SortWithin(team, share, choices, reach) > kFew) {
    team.Sync();  // the lists are used again
    KeepPrefix<false>(&team, share, &choices, wanted, reach);
    team.Sync();
    ClearList(room);
    EachValue(share, [&](float value, int token) {
      const float logit = choices.Scaled(value);
      if (choices.Stays(logit, token)) List(room, OrderOf(logit, token), 0);
    });
    team.Sync();
    Sort(team, room, Listed(team, room));
  }
  const int at = static_cast<int>(threadIdx.x);
  if (team.rank() == 0 && at < wanted) {
    const uint64_t order = room->sorted[at].order;
    top[at] = {.token = TokenOf(order),
               .logprob = static_cast<float>(static_cast<double>(LogitOf(order)) - log_mass)};
  }
  team.Sync();
}

}  // namespace eddy::sampler
