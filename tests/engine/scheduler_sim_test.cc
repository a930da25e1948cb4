// Proves that the scheduler changes no answer: random traffic (cancels at any moment, deadlines,
// time limits, stop tokens, scored prompts, lost numbers, sequences that stop and go on) against a
// pretend model must end as if each request had been alone in the world, keep the promises of
// scheduler.h in every step, and give back every slot and page. Each seed is a different story; a
// failing seed is a bug report.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "engine/scheduler.h"
#include "kernels/rules/attention/attention.h"
#include "tests/engine/pretend_device.h"

namespace eddy {
namespace {

struct Totals {
  long requests = 0, resumed = 0, scored = 0, steps = 0;
  std::map<EndReason, long> by_reason = {};
  long cancelled = 0, expired = 0, lost = 0, stopped_in_line = 0, stopped_in_prompt = 0;
};

// One story: what was asked, what came back, and what should have come back.
class Story {
 public:
  explicit Story(unsigned seed)
      : rng_(seed),
        rows_per_page_(Up(3) == 1 ? 0 : Up(8)),
        n_slots_(Up(8)),
        n_pages_(rows_per_page_ == 0 ? 0 : 45 + Up(200)),
        max_rows_(n_slots_ + Up(20)),
        window_(rows_per_page_ == 0 ? kNoAttention
                : Up(2) == 1        ? kReadsAll
                                    : Up(16)),
        slots_(n_slots_),
        pages_({.pages = n_pages_, .rows_per_page = rows_per_page_, .pages_per_sequence = Ring()}),
        scheduler_({.max_rows_per_step = max_rows_}, &slots_, &pages_),
        device_(n_slots_, n_pages_, rows_per_page_, window_, seed, /*lose_one_in=*/300) {}

  void Run(Totals* totals) {
    const size_t total = static_cast<size_t>(Up(40));
    for (int guard = 0; asked_.size() < total || !scheduler_.idle(); ++guard) {
      ASSERT_LT(guard, 20000) << "it never ends";
      while (asked_.size() < total && Up(3) == 1) Ask();
      // The last ones must end by themselves.
      const bool may_cancel = !asked_.empty() && asked_.size() < total;
      if (may_cancel && Up(14) == 1) CancelSomebody();
      now_ += absl::Milliseconds(1);
      Step(/*cancel_meanwhile=*/may_cancel && Up(20) == 1);
      ++totals->steps;
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(slots_.free_slots(), n_slots_);
    EXPECT_EQ(pages_.free_pages(), n_pages_);
    EXPECT_EQ(ended_.size(), asked_.size());
    for (const auto& [id, request] : asked_) Judge(request, totals);
  }

 private:
  struct Heard {
    std::vector<int32_t> tokens = {};
    std::vector<std::pair<int32_t, float>> scored = {};
    std::vector<float> next = {};
  };

  int Up(size_t n) { return static_cast<int>(1 + rng_() % n); }  // 1 .. n
  // 0: none.
  int Ring() const {
    if (window_ == kNoAttention || window_ == kReadsAll) return 0;
    return static_cast<int>(RingPages(
        {.window = window_, .max_rows_per_step = max_rows_, .rows_per_page = rows_per_page_}));
  }

  void Ask() {
    Request request{.id = asked_.size(), .priority = Up(3), .max_new_tokens = Up(13) - 1};
    for (int i = Up(30); i > 0; --i) request.prompt.push_back(Up(50) - 1);
    request.arrival = now_;
    request.keep_state = Up(3) == 1;
    if (Up(2) == 1) request.eos_tokens = {7, Up(50) - 1};
    if (Up(2) == 1) request.stop_tokens = {Up(50) - 1, 7};
    if (Up(3) == 1) request.sampling.min_new_tokens = Up(6);
    if (Up(8) == 1) request.deadline = now_ + absl::Milliseconds(Up(30));
    if (Up(6) == 1) request.time_limit = now_ + absl::Milliseconds(Up(20));
    if (Up(3) == 1) request.time_limit = std::min(request.time_limit, request.deadline);
    if (Up(4) == 1) request.report.first_scored = Up(10) - 1;
    if (request.max_new_tokens == 0 && !request.keep_state) request.report.next_tokens = {1, 2};
    Alone before;
    if (!kept_.empty() && Up(3) == 1) {
      const RequestId parent = kept_[rng_() % kept_.size()];
      Request resumed = request;
      resumed.start = ended_[parent].state;
      if (Up(3) == 1) resumed.prompt.clear();  // just go on
      if (pages_.CanEverHold(RowsAtMost(resumed))) {
        request = resumed;
        before = after_[parent];
      }
    }
    before_[request.id] = before;
    want_[request.id] = before.Run(request, window_);
    asked_[request.id] = request;
    waiting_.insert(request.id);
    scheduler_.Add(request);
  }

  void CancelSomebody() {
    const RequestId id = rng_() % asked_.size();
    scheduler_.Cancel(id, absl::CancelledError("client"));
    if (!ended_.contains(id)) cancelled_.emplace(id, heard_[id].tokens.size());
  }

  void Step(bool cancel_meanwhile) {
    const BatchPlan plan = scheduler_.Plan(now_);
    EXPECT_LE(plan.rows, max_rows_);
    const std::map<RequestId, size_t> must_end = cancelled_;
    for (const Sequence* sequence : plan.fills) CheckOrder(*sequence);
    std::set<RequestId> moved;
    for (const Sequence* sequence : plan.saves) moved.insert(sequence->request.id);
    for (const BatchPlan::Entry& entry : plan.entries) {
      moved.insert(entry.sequence->request.id);
      if (plan.rows < max_rows_) {
        EXPECT_EQ(entry.rows, entry.sequence->pending());
      }
    }
    std::set<RequestId> decoding;
    for (RequestId id : admitted_) {
      if (!ended_.contains(id) && !heard_[id].tokens.empty()) decoding.insert(id);
    }
    const int free_slots = slots_.free_slots(), free_pages = pages_.free_pages();

    StepResult result = device_.Run(plan);
    if (cancel_meanwhile) CancelSomebody();
    Hear(scheduler_.Commit(plan, std::move(result), now_ + absl::Microseconds(500)));

    for (const auto& [id, n] : must_end) EXPECT_TRUE(ended_.contains(id));
    int holding = 0;
    for (RequestId id : admitted_) {
      if (ended_.contains(id)) continue;
      ++holding;
      const bool everybody = plan.rows < max_rows_;
      EXPECT_TRUE(moved.contains(id) || !(everybody || decoding.contains(id))) << "id " << id;
    }
    EXPECT_EQ(n_slots_ - slots_.free_slots(), holding);
    EXPECT_EQ(scheduler_.running(), holding);
    EXPECT_EQ(scheduler_.waiting().requests, static_cast<int>(waiting_.size()));
    CheckFirstInLine(free_slots, free_pages);
    for (const auto& [id, request] : asked_) {
      if (ended_.contains(id)) continue;
      EXPECT_TRUE(std::min(request.deadline, request.time_limit) > now_ || request.keep_state);
    }
  }

  static std::pair<int, RequestId> Place(const Request& r) { return {-r.priority, r.id}; }

  // Nobody is admitted before one who has the higher priority, or the same and came earlier.
  void CheckOrder(const Sequence& admitted) {
    const RequestId admitted_id = admitted.request.id;
    EXPECT_TRUE(admitted_.insert(admitted_id).second);
    EXPECT_EQ(waiting_.erase(admitted_id), 1u);
    for (RequestId id : waiting_) {
      const Request& other = asked_[id];
      if (cancelled_.contains(id)) continue;
      if (std::min(other.deadline, other.time_limit) <= now_) continue;
      EXPECT_LT(Place(admitted.request), Place(other));
    }
  }

  // Whoever is next was left waiting for want of room only.
  void CheckFirstInLine(int free_slots, int free_pages) {
    const Request* first = nullptr;
    for (RequestId id : waiting_) {
      if (first == nullptr || Place(asked_[id]) < Place(*first)) first = &asked_[id];
    }
    if (first == nullptr) return;
    EXPECT_TRUE(free_slots == 0 || pages_.PagesFor(RowsAtMost(*first)) > free_pages);
  }

  void Hear(const std::vector<Event>& events) {
    for (const Event& event : events) {
      EXPECT_FALSE(ended_.contains(event.id)) << "after the end";
      Heard& heard = heard_[event.id];
      for (const TokenReport& scored : event.scored) {
        EXPECT_TRUE(heard.tokens.empty()) << "scores after the answer";
        heard.scored.emplace_back(scored.token, scored.logprob);
      }
      heard.next.insert(heard.next.end(), event.next.begin(), event.next.end());
      if (event.token) {
        heard.tokens.push_back(event.token->token);
        const Request& request = asked_[event.id];
        EXPECT_GT(std::min(request.deadline, request.time_limit), now_);
      }
      if (!event.end) continue;
      ended_[event.id] = *event.end;
      end_time_[event.id] = now_ + absl::Microseconds(500);
      waiting_.erase(event.id);
      if (event.end->state == nullptr) continue;
      kept_.push_back(event.id);
      after_[event.id] = before_[event.id];
      after_[event.id].RunUntil(asked_[event.id], heard.tokens, event.end->state->position,
                                window_);
    }
  }

  void Judge(const Request& request, Totals* totals) {
    SCOPED_TRACE(testing::Message() << "request " << request.id);
    const Alone::Answer& want = want_[request.id];
    const Heard& got = heard_[request.id];
    const End& end = ended_[request.id];
    ++totals->requests;
    totals->resumed += request.start != nullptr;
    totals->scored += !got.scored.empty();
    ++totals->by_reason[end.reason];

    const auto begins = [](const auto& whole, const auto& part) {
      return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
    };
    EXPECT_TRUE(begins(want.tokens, got.tokens));
    EXPECT_TRUE(begins(want.scored, got.scored));
    EXPECT_EQ(end.not_finite.has_value(), absl::IsDataLoss(end.why));
    JudgeTimings(request, end, got);
    if (end.reason == EndReason::kCut) {
      JudgeCut(request, end, totals);
    } else if (end.reason == EndReason::kTimeLimit) {
      const absl::Time planned = end_time_[request.id] - absl::Microseconds(500);
      EXPECT_TRUE(request.time_limit <= planned && planned < request.deadline);
      EXPECT_TRUE(got.tokens.size() < want.tokens.size() || want.tokens.empty());
      EXPECT_EQ(end.state != nullptr, request.keep_state && end.phase != Phase::kQueue);
      totals->stopped_in_line += end.phase == Phase::kQueue;
      totals->stopped_in_prompt += end.phase == Phase::kPrefill;
    } else {
      EXPECT_EQ(end.reason, want.reason);
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.scored, want.scored);
      EXPECT_EQ(got.next, want.next);
      EXPECT_EQ(end.state != nullptr, request.keep_state);
    }
    if (end.state != nullptr) JudgeState(request, end);
  }

  void JudgeCut(const Request& request, const End& end, Totals* totals) {
    const size_t tokens = heard_[request.id].tokens.size();
    const bool complete = tokens > 0 && tokens == want_[request.id].tokens.size();
    EXPECT_EQ(end.state, nullptr);
    if (absl::IsDataLoss(end.why)) {
      EXPECT_TRUE(device_.lost().contains(request.id));
      ++totals->lost;
    } else if (absl::IsCancelled(end.why)) {
      ASSERT_TRUE(cancelled_.contains(request.id));
      EXPECT_EQ(cancelled_[request.id], tokens) << "tokens after the cancel";
      ++totals->cancelled;
    } else {
      EXPECT_TRUE(absl::IsDeadlineExceeded(end.why)) << end.why;
      EXPECT_FALSE(complete) << "a deadline takes back no full answer";
      ++totals->expired;
    }
  }

  void JudgeTimings(const Request& request, const End& end, const Heard& got) {
    const Timings& t = end.timings;
    EXPECT_TRUE(t.queue >= absl::ZeroDuration() && t.prefill >= absl::ZeroDuration() &&
                t.decode >= absl::ZeroDuration());
    EXPECT_LE(t.queue + t.prefill + t.decode, end_time_[request.id] - request.arrival);
    EXPECT_EQ(t.decode_steps, static_cast<int>(got.tokens.size()));
    EXPECT_EQ(end.phase == Phase::kQueue, !admitted_.contains(request.id));
    EXPECT_EQ(end.phase == Phase::kDecode, !got.tokens.empty());
    if (end.phase == Phase::kQueue) {
      EXPECT_EQ(t.prefill_steps, 0);
    }
    if (!got.tokens.empty() && !request.prompt.empty()) {
      EXPECT_GE(t.prefill_steps, 1);
    }
  }

  void JudgeState(const Request& request, const End& end) {
    const Alone& after = after_[request.id];
    EXPECT_EQ(end.state->position, static_cast<int64_t>(after.past.size()));
    EXPECT_EQ(end.state->unfed, after.unfed);
    EXPECT_GE(after.unfed.size(), 1u);
    if (end.reason != EndReason::kTimeLimit) {
      EXPECT_EQ(after.unfed.size(), 1u);
    }
    EXPECT_EQ(std::memcmp(end.state->record.data(), &after.state, sizeof(after.state)), 0);
  }

  std::mt19937 rng_;
  const int rows_per_page_, n_slots_, n_pages_, max_rows_;
  const int64_t window_;
  StatePool slots_;
  PagePool pages_;
  Scheduler scheduler_;
  PretendDevice device_;
  absl::Time now_ = absl::UnixEpoch();
  std::map<RequestId, Request> asked_;
  std::map<RequestId, Alone> before_, after_;
  std::map<RequestId, Alone::Answer> want_;
  std::map<RequestId, Heard> heard_;
  std::map<RequestId, End> ended_;
  std::map<RequestId, absl::Time> end_time_;
  std::map<RequestId, size_t> cancelled_;  // and how many tokens had been heard
  std::set<RequestId> waiting_, admitted_;
  std::vector<RequestId> kept_;  // ended with a checkpoint
};

TEST(SchedulerSimulation, GivesEverybodyTheAnswerOfOneWhoIsAlone) {
  Totals totals;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Story(seed).Run(&totals);
    ASSERT_FALSE(HasFailure());
  }
  // Or the stories would prove little.
  const long enough = totals.requests / 100;
  EXPECT_LT(totals.by_reason[EndReason::kCut], totals.requests / 3);
  EXPECT_GT(totals.resumed, totals.requests / 10);
  EXPECT_GT(totals.scored, totals.requests / 10);
  for (EndReason reason :
       {EndReason::kEos, EndReason::kStopToken, EndReason::kLength, EndReason::kTimeLimit}) {
    EXPECT_GT(totals.by_reason[reason], enough) << static_cast<int>(reason);
  }
  for (long count : {totals.cancelled, totals.expired, totals.lost, totals.stopped_in_line,
                     totals.stopped_in_prompt}) {
    EXPECT_GT(count, enough / 2);
  }
  std::printf(
      "%ld requests, %ld steps; cut: %ld cancelled, %ld expired, %ld lost; time limit: %ld "
      "in line, %ld in the prompt, %ld in all; %ld resumed, %ld scored\n",
      totals.requests, totals.steps, totals.cancelled, totals.expired, totals.lost,
      totals.stopped_in_line, totals.stopped_in_prompt, totals.by_reason[EndReason::kTimeLimit],
      totals.resumed, totals.scored);
}

TEST(SchedulerSimulation, HoldsForStoriesNobodyHasSeen) {
  const unsigned first = std::random_device()();
  std::printf("seeds from %u on\n", first);
  Totals totals;
  for (unsigned seed = first; seed != first + 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Story(seed).Run(&totals);
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace eddy
