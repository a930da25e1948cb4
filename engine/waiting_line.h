// The requests that were accepted and have no slot yet.
#pragma once

#include <set>

#include "engine/sequence.h"
#include "engine/stats.h"

namespace eddy {

// Sorted by priority, then by order of arrival at the scheduler. Every operation is at most
// logarithmic in the length, so that ten thousand cancels at once, or a long line in which nothing
// happens, cost a step nothing to speak of. Engine thread only. Borrows the sequences: each
// outlives its stay, and what it is sorted by does not change meanwhile.
class WaitingLine {
 public:
  void Add(Sequence* sequence) {
    by_place_.insert(sequence);
    by_arrival_.insert(sequence);
    if (Expiry(*sequence) < absl::InfiniteFuture()) by_expiry_.insert(sequence);
    prompt_tokens_ += static_cast<int64_t>(sequence->request.prompt.size());
  }
  void Remove(Sequence* sequence) {
    by_place_.erase(sequence);
    by_arrival_.erase(sequence);
    by_expiry_.erase(sequence);
    prompt_tokens_ -= static_cast<int64_t>(sequence->request.prompt.size());
  }
  // Whose turn is next; null if nobody waits.
  Sequence* First() const { return by_place_.empty() ? nullptr : *by_place_.begin(); }
  // One whose deadline or time limit has passed, null if there is none.
  Sequence* FirstExpired(absl::Time now) const {
    if (by_expiry_.empty() || Expiry(**by_expiry_.begin()) > now) return nullptr;
    return *by_expiry_.begin();
  }
  WaitingLoad load() const {
    WaitingLoad load{.requests = static_cast<int>(by_place_.size()),
                     .prompt_tokens = prompt_tokens_};
    if (!by_arrival_.empty()) load.oldest = (*by_arrival_.begin())->request.arrival;
    return load;
  }

 private:
  static absl::Time Expiry(const Sequence& sequence) {
    return std::min(sequence.request.deadline, sequence.request.time_limit);
  }
  struct ByPlace {
    bool operator()(const Sequence* a, const Sequence* b) const {
      if (a->request.priority != b->request.priority) {
        return a->request.priority > b->request.priority;
      }
      return a->number < b->number;
    }
  };
  struct ByArrival {
    bool operator()(const Sequence* a, const Sequence* b) const {
      if (a->request.arrival != b->request.arrival) return a->request.arrival < b->request.arrival;
      return a->number < b->number;
    }
  };
  struct ByExpiry {
    bool operator()(const Sequence* a, const Sequence* b) const {
      if (Expiry(*a) != Expiry(*b)) return Expiry(*a) < Expiry(*b);
      return a->number < b->number;
    }
  };

  std::set<Sequence*, ByPlace> by_place_;
  std::set<Sequence*, ByArrival> by_arrival_;
  std::set<Sequence*, ByExpiry> by_expiry_;  // only those that can expire
  int64_t prompt_tokens_ = 0;
};

}  // namespace eddy
