// The shortest prefix of the tokens that stay, in the order of likelihood or another, whose amount
// (how many they are, or what they weigh) reaches what is wanted. Exact, without sorting the row:
//  1 a histogram over the gap to the greatest logit finds the bin in which the prefix ends, and a
//    second one its part, if it holds more than a few tokens;
//  2 if it still does (equal logits), halving the interval of the order itself goes on;
//  3 the few tokens left are gathered, sorted, and summed one by one.
// All of it is counted in integers or summed in a fixed order.
#pragma once

#include "kernels/ends/sampler/row.cuh"

namespace eddy::sampler {

// Gaps between the greatest logit and others: bin i begins at start + i / per_gap.
struct Cell {
  float start = 0, per_gap = 0;
  int bin = 0;  // the one in question
  __device__ __forceinline__ int BinOf(float gap) const {
    return min(max(static_cast<int>((gap - start) * per_gap), 0), kBins - 1);
  }
  __device__ __forceinline__ float BeginOf(int i) const {
    return start + static_cast<float>(i) / per_gap;
  }
};
__device__ __forceinline__ Cell CellTo(float reach) {
  return {.start = 0, .per_gap = static_cast<float>(kBins) / fmaxf(reach, 1e-30f)};
}

// Where the prefix ends.
struct Place {
  int bin = 0;
  int count = 0;      // tokens in the bin, at most
  double before = 0;  // amount of what comes before it
};

// An interval of an order: first < x <= last.
struct Interval {
  uint64_t first = 0, last = ~uint64_t{0};
};

struct Extremes {
  uint64_t least = ~uint64_t{0}, greatest = 0;
  double count = 0;
  __device__ __forceinline__ void Add(const Extremes& other) {
    least = min(least, other.least);
    greatest = max(greatest, other.greatest);
    count += other.count;
  }
};

__device__ __forceinline__ void ClearBins(Room* room, int level) {
  if (threadIdx.x < kBins) room->bins[level][threadIdx.x] = 0;
  __syncthreads();
}

// The team's histogram: how many there are of each bin, or, if `kMass`, what they weigh, and how
// many they can be at most. A block has weights as multiples of 2^-bits of what a token at the
// begin of the bin weighs, and one at its end weighs e^(1 / per_gap) times less.
template <bool kMass>
__device__ __forceinline__ void MergeBins(const Team& team, Room* room, int level, const Cell& cell,
                                          int bits) {
  team.Sync();
  const int bin = static_cast<int>(threadIdx.x);
  if (bin < kBins) {
    uint64_t sum = 0;
    for (int rank = 0; rank < team.blocks(); ++rank) {
      sum += *team.At(&room->bins[level][bin], rank);
    }
    double amount = static_cast<double>(sum), count = amount;
    if (kMass) {
      const double firsts = amount / (1u << bits);
      amount = firsts * exp(-static_cast<double>(cell.BeginOf(bin)));
      // A hundredth more, for rounding.
      count = ceil(1.01 * firsts * exp(1 / static_cast<double>(cell.per_gap)));
    }
    room->bin_amounts[bin] = amount;
    room->bin_counts[bin] = static_cast<int>(fmin(count, 1e9));
  }
  __syncthreads();
}

// The bin in which the running amount reaches `wanted`. Every warp finds the same.
__device__ __forceinline__ Place FindBin(const Room& room, double before, double wanted) {
  constexpr int kPerLane = kBins / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double parts[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) parts[j] = room.bin_amounts[lane * kPerLane + j];
  const Reached reached = Reach(parts, before, wanted, /*above=*/false);
  const int bin = max(reached.index, 0);
  return {.bin = bin, .count = room.bin_counts[bin], .before = reached.before};
}

__device__ __forceinline__ void ClearList(Room* room) {
  if (threadIdx.x == 0) room->listed = 0;
  __syncthreads();
}
// What finds no room is counted all the same.
__device__ __forceinline__ void List(Room* room, uint64_t order, float amount) {
  const int at = atomicAdd(&room->listed, 1);
  if (at < kFew) room->list[at] = {.order = order, .amount = amount};
}

// After a Sync behind the last List: how many entries the team has listed.
__device__ __forceinline__ int Listed(const Team& team, Room* room) {
  int count = 0;
  for (int rank = 0; rank < team.blocks(); ++rank) count += *team.At(&room->listed, rank);
  return count;
}

// Puts what the team has listed into `sorted`. REQUIRES: count = Listed, no more than kFew.
__device__ __forceinline__ void Sort(const Team& team, Room* room, int count) {
  const int at = static_cast<int>(threadIdx.x);
  Entry mine;
  int first = 0;
  for (int rank = 0; rank < team.blocks(); ++rank) {
    const int listed = *team.At(&room->listed, rank);
    if (at >= first && at < first + listed) mine = *team.At(&room->list[at - first], rank);
    first += listed;
  }
  if (at < count) room->sorted[at] = mine;
  __syncthreads();
  int place = 0;
  if (at / 32 * 32 < count) {
#pragma unroll 4
    for (int i = 0; i < count; ++i) place += room->sorted[i].order < mine.order ? 1 : 0;
  }
  __syncthreads();
  if (at < count) room->sorted[place] = mine;
  __syncthreads();
}

// Sum of the sorted amounts up to that of this thread.
__device__ __forceinline__ double SortedThrough(Room* room, int count) {
  const int at = static_cast<int>(threadIdx.x), warp = at / 32;
  double through = Through(at < count ? static_cast<double>(room->sorted[at].amount) : 0);
  if (at % 32 == 31) room->warp_sums[warp] = through;
  __syncthreads();
  for (int i = 0; i < warp; ++i) through += room->warp_sums[i];
  return through;
}

// Place of the first of the sorted at which the running amount reaches `wanted`, or `count`.
// `through` as SortedThrough says.
__device__ __forceinline__ int FindSorted(Room* room, int count, double through, double wanted) {
  const int at = static_cast<int>(threadIdx.x);
  if (at == 0) room->winner = count;
  __syncthreads();
  if (at < count && through >= wanted) atomicMin(&room->winner, at);
  __syncthreads();
  return room->winner;
}

// Sorts what is listed, and returns the first entry at which the running amount reaches `wanted`;
// if none does, the last one. At least one entry is listed, kFew at most.
__device__ __forceinline__ Entry SortAndFind(const Team& team, Room* room, double before,
                                             double wanted) {
  const int count = Listed(team, room);
  Sort(team, room, count);
  const double through = before + SortedThrough(room, count);
  return room->sorted[min(FindSorted(room, count, through, wanted), count - 1)];
}

// Narrows `interval` of an order until no more than a few tokens are in it, and returns the amount
// of those in question that come before. `order(value, token)` gives those in question a place and
// others 0; `amount(value)` is what one counts.
template <bool kResident, typename Order, typename Amount>
__device__ __forceinline__ double Halve(Team* team, const Share<kResident>& share, double before,
                                        double wanted, Interval* interval, Order order,
                                        Amount amount) {
  Extremes ends;
  EachValue(share, [&](float value, int token) {
    const uint64_t place = order(value, token);
    if (place != 0) ends.Add({.least = place, .greatest = place, .count = 1});
  });
  ends = team->Total(ends);
  *interval = {.first = ends.least - 1, .last = ends.greatest};
  double left = ends.count;
  while (left > kFew) {
    const uint64_t middle = interval->first + (interval->last - interval->first) / 2;
    Sums<2> lower;
    EachValue(share, [&](float value, int token) {
      const uint64_t place = order(value, token);
      if (place <= interval->first || place > middle) return;
      lower.of[0] += 1;
      lower.of[1] += static_cast<double>(amount(value));
    });
    lower = team->Total(lower);
    if (before + lower.of[1] >= wanted) {
      interval->last = middle;
      left = lower.of[0];
    } else {
      interval->first = middle;
      left -= lower.of[0];
      before += lower.of[1];
    }
  }
  return before;
}

// A gap within which the `wanted` likeliest lie, or all if they are fewer: so many threads have
// their nearest within it. No more than `reach`, which all are within.
__device__ __forceinline__ float ReachOfThreads(const Team& team, float nearest, double wanted,
                                                float reach) {
  Room* const room = RoomOfBlock();
  const Cell cell = CellTo(reach);
  ClearBins(room, 1);
  if (nearest <= reach) atomicAdd(&room->bins[1][cell.BinOf(nearest)], 1u);
  MergeBins<false>(team, room, 1, cell, 0);
  const Place place = FindBin(*room, 0, wanted);
  if (place.before + place.count < wanted) return reach;
  return fminf(reach, 1.0001f * cell.BeginOf(place.bin + 1));
}

// Lists and sorts the tokens within `reach`, with their weights. Returns how many they are; if more
// than kFew, they are not sorted.
template <bool kResident>
__device__ __forceinline__ int SortWithin(const Team& team, const Share<kResident>& share,
                                          const Choices& choices, float reach) {
  Room* const room = RoomOfBlock();
  ClearList(room);
  EachValue(share, [&](float value, int token) {
    const float logit = choices.Scaled(value);
    if (logit == -kInfinity || choices.max - logit > reach) return;
    List(room, OrderOf(logit, token), choices.Weight(logit));
  });
  team.Sync();
  const int count = Listed(team, room);
  if (count <= kFew) Sort(team, room, count);
  return count;
}

// Cuts `choices` to the shortest likeliest-first prefix whose mass (if `kMass`: the sum of Weight)
// or number reaches `wanted`. It is known to end within `reach` of the greatest logit.
template <bool kMass, bool kResident>
__device__ __forceinline__ void KeepPrefix(Team* team, const Share<kResident>& share,
                                           Choices* choices, double wanted, float reach) {
  Room* const room = RoomOfBlock();
  const Choices c = *choices;
  // So many bits of a weight that a block's sum fits in 32.
  const int bits = __clz(share.chunk * kWarps) - 1;
  const float one = static_cast<float>(1u << bits);
  Cell cells[2];
  int levels = 0;
  // Before (negative), in, or behind the cell in question.
  const auto side = [&](float gap) {
    if (gap > reach) return 1;
    int off = 0;
    if (levels > 0) off = cells[0].BinOf(gap) - cells[0].bin;
    if (levels > 1 && off == 0) off = cells[1].BinOf(gap) - cells[1].bin;
    return off;
  };
  Place place;
  cells[0] = CellTo(reach);
#pragma unroll
  for (int level = 0; level < 2; ++level) {
    if (level > 0) {
      if (place.count <= kFew) break;
      cells[1] = {.start = cells[0].BeginOf(place.bin), .per_gap = cells[0].per_gap * kBins};
    }
    ClearBins(room, level);
    EachValue(share, [&](float value, int token) {
      const float logit = c.Scaled(value), gap = c.max - logit;
      if (gap > reach || !c.Stays(logit, token) || side(gap) != 0) return;
      const int bin = cells[level].BinOf(gap);
      const float weight = kMass ? one * __expf(cells[level].BeginOf(bin) - gap) : 1;
      atomicAdd(&room->bins[level][bin], __float2uint_rn(weight));
    });
    MergeBins<kMass>(*team, room, level, cells[level], bits);
    place = FindBin(*room, place.before, wanted);
    cells[level].bin = place.bin;
    levels = level + 1;
  }
  Interval interval;
  const auto amount = [&](float value) { return kMass ? c.Weight(c.Scaled(value)) : 1.0f; };
  if (place.count > kFew) {
    const auto order = [&](float value, int token) -> uint64_t {
      const float logit = c.Scaled(value);
      return c.Stays(logit, token) && side(c.max - logit) == 0 ? OrderOf(logit, token) : 0;
    };
    Halve(team, share, place.before, wanted, &interval, order, amount);
  }
  ClearList(room);
  float sum = 0;
  EachValue(share, [&](float value, int token) {
    const float logit = c.Scaled(value), gap = c.max - logit;
    if (gap > reach || !c.Stays(logit, token)) return;
    const int at = side(gap);
    const uint64_t turn = OrderOf(logit, token);
    if (at < 0 || (at == 0 && turn <= interval.first)) {
      sum += amount(value);
    } else if (at == 0 && turn <= interval.last) {
      List(room, turn, amount(value));
    }
  });
  const double before = team->Total(Sums<1>{{static_cast<double>(sum)}}).of[0];
  const Entry last = SortAndFind(*team, room, before, wanted);
  choices->last_logit = LogitOf(last.order);
  choices->last_token = TokenOf(last.order);
}

}  // namespace eddy::sampler
