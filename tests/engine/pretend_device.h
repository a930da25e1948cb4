// A pretend model and a pretend device that runs plans on it: a hash is the recurrent state, and
// "attention" reads back the token half-way, or as far back as its window goes. Cheap, yet any
// token that is fed twice, left out, fed to the wrong slot or read from the wrong page changes
// everything that comes after.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "engine/executor.h"

namespace eddy {

inline uint64_t Mix(uint64_t state, int32_t token, int32_t attended) {
  state ^= static_cast<uint64_t>(token * 64 + attended) + 0x9e3779b97f4a7c15ull + (state << 6) +
           (state >> 2);
  return state * 0xbf58476d1ce4e5b9ull;
}
// How far the pretended attention reads back, the row itself included.
inline constexpr int64_t kNoAttention = 0, kReadsAll = int64_t{1} << 40;
// What the row at `position` reads.
inline int64_t PretendRead(int64_t position, int64_t window) {
  return std::max((position + 1) / 2, position - window + 1);
}
inline int32_t PretendPick(uint64_t state) { return static_cast<int32_t>((state >> 33) % 50); }
inline float PretendScore(uint64_t state, int32_t token) {
  return static_cast<float>(Mix(state, token, 1) % 10007);
}

// One sequence with the world to itself.
struct Alone {
  uint64_t state = 0;
  std::vector<int32_t> past = {};   // what is in the state
  std::vector<int32_t> unfed = {};  // known, not fed

  struct Answer {
    std::vector<int32_t> tokens = {};
    EndReason reason = EndReason::kLength;
    std::vector<std::pair<int32_t, float>> scored = {};
    std::vector<float> next = {};
  };

  void Feed(int32_t token, int64_t window) {
    past.push_back(token);
    const auto position = static_cast<int64_t>(past.size()) - 1;
    const int32_t attended =
        window == kNoAttention ? 0 : past[static_cast<size_t>(PretendRead(position, window))];
    state = Mix(state, token, attended);
  }
  // What becomes of `request` if it is left in peace.
  Answer Run(const Request& request, int64_t window) {
    Answer answer;
    const size_t prompt_begin = unfed.size();
    unfed.insert(unfed.end(), request.prompt.begin(), request.prompt.end());
    const std::vector<int32_t> tokens = std::exchange(unfed, {});
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int first = request.report.first_scored;
      if (first >= 0 && i >= prompt_begin + static_cast<size_t>(first) && i > 0) {
        answer.scored.emplace_back(tokens[i], PretendScore(state, tokens[i]));
      }
      const bool last = i + 1 == tokens.size();
      if (last && request.max_new_tokens == 0 && request.keep_state) {
        unfed = {tokens[i]};
      } else {
        Feed(tokens[i], window);
      }
    }
    for (int32_t token : request.report.next_tokens) {
      answer.next.push_back(PretendScore(state, token));
    }
    while (static_cast<int>(answer.tokens.size()) < request.max_new_tokens) {
      const int32_t token = PretendPick(state);
      answer.tokens.push_back(token);
      unfed = {token};
      const bool may_end = static_cast<int>(answer.tokens.size()) > request.sampling.min_new_tokens;
      const auto among = [&](const std::vector<int32_t>& t) {
        return may_end && std::count(t.begin(), t.end(), token) > 0;
      };
      if (among(request.eos_tokens)) {
        answer.reason = EndReason::kEos;
        break;
      }
      if (among(request.stop_tokens)) {
        answer.reason = EndReason::kStopToken;
        break;
      }
      if (static_cast<int>(answer.tokens.size()) == request.max_new_tokens) break;
      Feed(std::exchange(unfed, {})[0], window);
    }
    return answer;
  }
  // The same, but it was stopped when it had `generated` and `position` tokens were in its state.
  void RunUntil(const Request& request, const std::vector<int32_t>& generated, int64_t position,
                int64_t window) {
    std::vector<int32_t> tokens = std::exchange(unfed, {});
    tokens.insert(tokens.end(), request.prompt.begin(), request.prompt.end());
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    for (int32_t token : tokens) {
      if (static_cast<int64_t>(past.size()) < position) {
        Feed(token, window);
      } else {
        unfed.push_back(token);
      }
    }
  }
};

// Its memory is poisoned except where a plan said to fill it.
class PretendDevice {
 public:
  // One entry in `lose_one_in` loses its numbers; 0: none.
  PretendDevice(int slots, int pages, int rows_per_page, int64_t window, unsigned seed,
                unsigned lose_one_in)
      : rows_per_page_(rows_per_page),
        window_(window),
        lose_one_in_(lose_one_in),
        rng_(seed),
        states_(static_cast<size_t>(slots) + 1),
        kv_(static_cast<size_t>((pages + 1) * std::max(1, rows_per_page)), -1),
        page_owner_(static_cast<size_t>(pages) + 1, kNobody) {}

  StepResult Run(const BatchPlan& plan) {
    StepResult result;
    for (Sequence* sequence : plan.fills) Fill(*sequence);
    for (Sequence* sequence : plan.saves) {
      result.saved.push_back({.state = sequence->request.keep_state ? Save(*sequence) : nullptr});
    }
    std::set<int32_t> seen;
    int singles = 0, rows = 0;
    for (const BatchPlan::Entry& entry : plan.entries) {
      const Sequence& sequence = *entry.sequence;
      EXPECT_NE(sequence.slot->index(), kNoSlot);
      EXPECT_TRUE(seen.insert(sequence.slot->index()).second) << "slot twice in a step";
      EXPECT_EQ(StateOf(sequence).owner, sequence.request.id);
      EXPECT_TRUE(entry.rows >= 1 && entry.rows <= sequence.pending());
      const bool fed = entry.rows == sequence.pending();
      EXPECT_EQ(entry.samples, fed && sequence.request.max_new_tokens > 0);
      if (sequence.pending() == 1) {
        EXPECT_EQ(singles, rows) << "single rows come first";
        ++singles;
      }
      rows += entry.rows;
      result.entries.push_back(RunEntry(entry));
    }
    EXPECT_EQ(plan.single_row_sequences, singles);
    EXPECT_EQ(plan.rows, rows);
    return result;
  }
  const std::set<RequestId>& lost() const { return lost_; }

 private:
  static constexpr RequestId kNobody = ~0ull;
  struct State {
    uint64_t hash = ~0ull;
    RequestId owner = kNobody;
  };

  State& StateOf(const Sequence& sequence) {
    return states_[static_cast<size_t>(sequence.slot->index())];
  }
  int32_t& Kv(const Sequence& sequence, int64_t position) {
    const std::vector<int32_t>& lease = sequence.pages->pages();
    const int32_t page = lease[static_cast<size_t>(position / rows_per_page_) % lease.size()];
    EXPECT_NE(page, kNoPage);
    EXPECT_EQ(page_owner_[static_cast<size_t>(page)], sequence.request.id);
    return kv_[static_cast<size_t>(page * rows_per_page_ + position % rows_per_page_)];
  }

  int64_t FirstKept(int64_t position) const { return std::max<int64_t>(0, position - window_ + 1); }

  EntryResult RunEntry(const BatchPlan::Entry& entry) {
    const Sequence& sequence = *entry.sequence;
    State& state = StateOf(sequence);
    // As layers do it: what all rows bring is written before any of them reads.
    for (int i = 0; i < entry.rows && rows_per_page_ > 0; ++i) {
      Kv(sequence, sequence.position() + i) =
          sequence.tokens[static_cast<size_t>(sequence.consumed + i)];
    }
    if (lose_one_in_ > 0 && rng_() % lose_one_in_ == 0) {
      lost_.insert(sequence.request.id);
      state.hash = rng_();
      return {.not_finite = NotFinite{.layer = 3, .field = "s", .position = sequence.position()}};
    }
    EntryResult result;
    const Sequence::Range scored = sequence.scored_by(entry.rows);
    for (int i = sequence.consumed; i < sequence.consumed + entry.rows; ++i) {
      const int64_t position = sequence.position() + i - sequence.consumed;
      const int32_t token = sequence.tokens[static_cast<size_t>(i)];
      const int32_t attended =
          rows_per_page_ > 0 ? Kv(sequence, PretendRead(position, window_)) : 0;
      state.hash = Mix(state.hash, token, attended);
      if (i + 1 < scored.begin || i + 1 >= scored.end) continue;
      const int32_t predicted = sequence.tokens[static_cast<size_t>(i + 1)];
      result.scored.push_back({.token = predicted, .logprob = PretendScore(state.hash, predicted)});
    }
    if (entry.samples) result.sampled = TokenReport{.token = PretendPick(state.hash)};
    if (entry.last) {
      for (int32_t token : sequence.request.report.next_tokens) {
        result.next.push_back(PretendScore(state.hash, token));
      }
    }
    return result;
  }

  void Fill(const Sequence& sequence) {
    State& state = StateOf(sequence);
    state = {.hash = 0, .owner = sequence.request.id};
    for (int32_t page : sequence.pages->pages()) {
      page_owner_[static_cast<size_t>(page)] = sequence.request.id;
      std::fill_n(kv_.begin() + page * rows_per_page_, rows_per_page_, -1);
    }
    const Checkpoint* const start = sequence.request.start.get();
    if (start == nullptr) return;
    std::memcpy(&state.hash, start->record.data(), sizeof(state.hash));
    if (rows_per_page_ == 0) return;
    for (int64_t i = FirstKept(start->position); i < start->position; ++i) {
      std::memcpy(&Kv(sequence, i), &start->kv[static_cast<size_t>(i * 4)], 4);
    }
  }

  std::shared_ptr<const Checkpoint> Save(const Sequence& sequence) {
    EXPECT_EQ(StateOf(sequence).owner, sequence.request.id);
    auto checkpoint = std::make_shared<Checkpoint>();
    checkpoint->position = sequence.position();
    checkpoint->unfed.assign(sequence.tokens.begin() + sequence.consumed, sequence.tokens.end());
    checkpoint->record.resize(sizeof(uint64_t));
    std::memcpy(checkpoint->record.data(), &StateOf(sequence).hash, sizeof(uint64_t));
    if (rows_per_page_ == 0) return checkpoint;
    checkpoint->kv.resize(static_cast<size_t>(sequence.position() * 4));
    for (int64_t i = FirstKept(sequence.position()); i < sequence.position(); ++i) {
      std::memcpy(&checkpoint->kv[static_cast<size_t>(i * 4)], &Kv(sequence, i), 4);
    }
    return checkpoint;
  }

  const int rows_per_page_;
  const int64_t window_;
  const unsigned lose_one_in_;
  std::mt19937 rng_;
  std::vector<State> states_;  // [slots + 1]
  std::vector<int32_t> kv_;    // [pages + 1, rows_per_page]
  std::vector<RequestId> page_owner_;
  std::set<RequestId> lost_;
};

}  // namespace eddy
