// The inner loop of byte-pair encoding: joins neighbours, the best first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace eddy {

// What a pair of neighbours becomes. Lower ranks go first, of equal ones the leftmost.
struct Merge {
  uint32_t rank = 0;
  int32_t id = 0;
};

// A stretch [begin, end) of a word, in bytes, in a doubly linked list; empty once it was joined to
// its left neighbour.
struct Symbol {
  int32_t id = -1;
  size_t begin = 0, end = 0;
  int64_t previous = -1, next = -1;
};

// Joins symbols until no two neighbours merge. O(n log n) calls for n symbols, whatever they are.
// `rules` has
//   std::optional<Merge> Find(const Symbol& left, const Symbol& right);
//   void Offered(const Symbol& left, const Symbol& right, const Merge& merge);
// and Offered is told each pair once it has become neighbours and merges.
template <typename Rules>
void MergeSymbols(std::vector<Symbol>* symbols, Rules* rules) {
  struct Candidate {
    Merge merge;
    int64_t left = 0;
    bool operator<(const Candidate& other) const {  // the queue has the greatest on top
      return std::tie(merge.rank, left) > std::tie(other.merge.rank, other.left);
    }
  };
  std::vector<Candidate> found;
  found.reserve(symbols->size());
  std::priority_queue<Candidate> queue;
  const auto offer = [&](int64_t left, int64_t right) -> std::optional<Candidate> {
    if (left < 0 || right < 0) return std::nullopt;
    const std::optional<Merge> merge = rules->Find((*symbols)[left], (*symbols)[right]);
    if (!merge.has_value()) return std::nullopt;
    rules->Offered((*symbols)[left], (*symbols)[right], *merge);
    return Candidate{.merge = *merge, .left = left};
  };

  const auto count = static_cast<int64_t>(symbols->size());
  for (int64_t i = 0; i < count; ++i) {
    (*symbols)[i].previous = i - 1;
    (*symbols)[i].next = i + 1 < count ? i + 1 : -1;
  }
  for (int64_t i = 0; i + 1 < count; ++i) {
    if (const std::optional<Candidate> candidate = offer(i, i + 1)) found.push_back(*candidate);
  }
  queue = std::priority_queue<Candidate>({}, std::move(found));

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = (*symbols)[best.left];
    if (left.begin == left.end || left.next < 0) continue;
    Symbol& right = (*symbols)[left.next];
    // Either may have changed since the pair was found.
    const std::optional<Merge> now = rules->Find(left, right);
    if (!now.has_value() || now->id != best.merge.id) continue;
    left.id = best.merge.id;
    left.end = right.end;
    left.next = right.next;
    right.end = right.begin;
    if (left.next >= 0) (*symbols)[left.next].previous = best.left;
    if (const auto candidate = offer(left.previous, best.left)) queue.push(*candidate);
    if (const auto candidate = offer(best.left, left.next)) queue.push(*candidate);
  }
  std::erase_if(*symbols, [](const Symbol& symbol) { return symbol.begin == symbol.end; });
}

}  // namespace eddy
