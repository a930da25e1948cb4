// Proves the sentences of scheduler.h one by one, on tiny examples: who gets rows, who is admitted,
// why and when sequences end, what is reported. No device: the test answers every plan itself.
#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/desk.h"

namespace eddy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(Scheduler, GivesEveryDecodingSequenceARowAndTheRestToPrompts) {
  Desk desk({.slots = 3, .max_rows = 8});
  desk.scheduler.Add(Desk::Ask(1, 2, 5));
  desk.scheduler.Add(Desk::Ask(2, 1, 5));
  EXPECT_THAT(desk.Step(0), ElementsAre(Pair(2, 1), Pair(1, 2)));
  desk.scheduler.Add(Desk::Ask(3, 20, 1));
  EXPECT_THAT(desk.Step(1), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 6)));
  EXPECT_THAT(desk.Step(2), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 6)));
  EXPECT_THAT(desk.tokens, ElementsAre(Pair(1, 3), Pair(2, 3)));
}

TEST(Scheduler, CountsTheSingleRowsThatStandFirst) {
  Desk desk({.slots = 4, .max_rows = 5});
  desk.scheduler.Add(Desk::Ask(1, 1, 1));
  desk.scheduler.Add(Desk::Ask(2, 3, 1));
  desk.scheduler.Add(Desk::Ask(3, 9, 1));  // gets one row for want of room
  const BatchPlan plan = desk.scheduler.Plan(At(0));
  EXPECT_THAT(Desk::Rows(plan), ElementsAre(Pair(1, 1), Pair(2, 3), Pair(3, 1)));
  EXPECT_EQ(plan.single_row_sequences, 1);
  EXPECT_FALSE(plan.entries[2].samples);
}

TEST(Scheduler, AdmitsByPriorityThenInOrderOfArrival) {
  Desk desk({.slots = 1});
  const std::vector<int> priorities = {0, 5, 0, 5, -3};
  for (size_t i = 0; i < priorities.size(); ++i) {
    Request request = Desk::Ask(i, 1, 1);
    request.priority = priorities[i];
    desk.scheduler.Add(request);
  }
  for (RequestId id : {1, 3, 0, 2, 4}) EXPECT_THAT(desk.Step(0), ElementsAre(Pair(id, 1)));
  EXPECT_TRUE(desk.scheduler.idle());
}

TEST(Scheduler, LetsNobodyOvertakeTheFirstInLine) {
  Desk desk({.slots = 3, .pages = 4, .rows_per_page = 4});
  desk.scheduler.Add(Desk::Ask(1, 1, 7));   // two pages
  desk.scheduler.Add(Desk::Ask(2, 1, 11));  // three: has to wait
  desk.scheduler.Add(Desk::Ask(3, 1, 1));   // one would be free
  EXPECT_THAT(desk.Step(0), ElementsAre(Pair(1, 1)));
  EXPECT_EQ(desk.scheduler.waiting().requests, 2);
  desk.scheduler.Cancel(1, absl::CancelledError("client"));
  EXPECT_THAT(desk.Step(1), ElementsAre(Pair(2, 1), Pair(3, 1)));
}

TEST(Scheduler, LetsSixtyFourShareThePagesOfTwenty) {
  // Each needs five pages; the thirtieth needs as many as there are, and must not starve.
  Desk desk({.slots = 64, .max_rows = 70, .pages = 100, .rows_per_page = 8});
  for (RequestId id = 1; id <= 64; ++id) {
    desk.scheduler.Add(Desk::Ask(id, 20, id == 30 ? 780 : 13 + static_cast<int>(id % 8)));
  }
  RequestId last_admitted = 0;
  int most_running = 0, ms = 0;
  for (; !desk.scheduler.idle() && ms < 10000; ++ms) {
    const BatchPlan plan = desk.scheduler.Plan(At(ms));
    for (const Sequence* sequence : plan.fills) {
      EXPECT_EQ(sequence->request.id, ++last_admitted) << "somebody was overtaken";
    }
    most_running = std::max(most_running, desk.scheduler.running());
    desk.Hear(desk.scheduler.Commit(plan, Desk::Result(plan, 1), At(ms)));
  }
  EXPECT_TRUE(desk.scheduler.idle());
  EXPECT_EQ(most_running, 20);
  for (RequestId id = 1; id <= 64; ++id) EXPECT_EQ(desk.ends[id].reason, EndReason::kLength);
  EXPECT_EQ(desk.tokens[30], 780);
  EXPECT_EQ(desk.pages.free_pages(), 100);
}

TEST(Scheduler, SaysWhatWaits) {
  Desk desk({.slots = 1});
  desk.scheduler.Add(Desk::Ask(1, 3, 1));
  for (RequestId id : {2, 3, 4}) {
    Request request = Desk::Ask(id, 10, 1);
    request.arrival = At(id == 3 ? 5 : 7);
    desk.scheduler.Add(request);
  }
  desk.scheduler.Cancel(4, absl::CancelledError("client"));
  desk.scheduler.Plan(At(8));
  EXPECT_EQ(desk.scheduler.waiting().requests, 2);
  EXPECT_EQ(desk.scheduler.waiting().prompt_tokens, 20);
  EXPECT_EQ(desk.scheduler.waiting().oldest, At(5));
}

TEST(Scheduler, EndsByWhatTheTokenSaysEosFirst) {
  Desk desk({.slots = 4});
  Request both = Desk::Ask(1, 1, 1);  // length, too
  both.eos_tokens = {8, 7};
  both.stop_tokens = {7};
  Request stop = Desk::Ask(2, 1, 1);
  stop.stop_tokens = {7};
  desk.scheduler.Add(both);
  desk.scheduler.Add(stop);
  desk.scheduler.Add(Desk::Ask(3, 1, 1));
  desk.scheduler.Add(Desk::Ask(4, 1, 2));
  desk.Step(0, /*token=*/7);
  EXPECT_EQ(desk.ends[1].reason, EndReason::kEos);
  EXPECT_EQ(desk.ends[2].reason, EndReason::kStopToken);
  EXPECT_EQ(desk.ends[3].reason, EndReason::kLength);
  EXPECT_FALSE(desk.ends.contains(4));
}

TEST(Scheduler, HeedsNoEndingBelowMinNewTokens) {
  Desk desk({});
  Request request = Desk::Ask(1, 1, 9);
  request.eos_tokens = {7};
  request.sampling.min_new_tokens = 2;
  desk.scheduler.Add(request);
  desk.Step(0, 7);
  desk.Step(1, 7);
  EXPECT_THAT(desk.ends, IsEmpty());
  desk.Step(2, 7);
  EXPECT_EQ(desk.ends[1].reason, EndReason::kEos);
  EXPECT_EQ(desk.tokens[1], 3);
}

TEST(Scheduler, BringsTheLastTokenAndTheEndInOneEvent) {
  Desk desk({});
  desk.scheduler.Add(Desk::Ask(1, 3, 1));
  const BatchPlan plan = desk.scheduler.Plan(At(0));
  const std::vector<Event> events = desk.scheduler.Commit(plan, Desk::Result(plan, 5), At(0));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].token->token, 5);
  EXPECT_EQ(events[0].end->reason, EndReason::kLength);
}

TEST(Scheduler, CutsAtTheDeadlineInEveryPhase) {
  Desk desk({.slots = 2, .max_rows = 4});
  const std::vector<Phase> phases = {Phase::kDecode, Phase::kPrefill, Phase::kQueue};
  for (RequestId id : {0, 1, 2}) {
    Request request = Desk::Ask(id, id == 0 ? 1 : 50, 50);
    request.deadline = At(3);
    desk.scheduler.Add(request);
  }
  for (int ms : {0, 1, 2}) desk.Step(ms);
  EXPECT_THAT(desk.ends, IsEmpty());
  EXPECT_THAT(desk.Step(3), IsEmpty());
  for (RequestId id : {0, 1, 2}) {
    EXPECT_EQ(desk.ends[id].reason, EndReason::kCut);
    EXPECT_TRUE(absl::IsDeadlineExceeded(desk.ends[id].why));
    EXPECT_EQ(desk.ends[id].phase, phases[id]);
  }
  EXPECT_EQ(desk.slots.free_slots(), 2);
}

TEST(Scheduler, EndsWellAtTheTimeLimitWithWhatThereIs) {
  Desk desk({.slots = 2, .max_rows = 4});
  for (RequestId id : {0, 1, 2}) {
    Request request = Desk::Ask(id, id == 0 ? 1 : 50, 50);
    request.time_limit = At(2);
    request.keep_state = true;
    desk.scheduler.Add(request);
  }
  for (int ms : {0, 1, 2}) desk.Step(ms);
  for (RequestId id : {0, 1, 2}) {
    EXPECT_EQ(desk.ends[id].reason, EndReason::kTimeLimit);
    EXPECT_TRUE(desk.ends[id].why.ok());
  }
  EXPECT_EQ(desk.tokens[0], 2);
  EXPECT_EQ(desk.ends[0].state->unfed.size(), 1u);
  // Half of a prompt was read: the kept state knows the rest as pending.
  EXPECT_EQ(desk.ends[1].state->position, 6);
  EXPECT_EQ(desk.ends[1].state->unfed.size(), 44u);
  EXPECT_EQ(desk.ends[2].phase, Phase::kQueue);
  EXPECT_EQ(desk.ends[2].state, nullptr);
}

TEST(Scheduler, LetsTheDeadlineWinOverTheTimeLimit) {
  Desk desk({});
  Request request = Desk::Ask(1, 1, 9);
  request.deadline = request.time_limit = At(1);
  desk.scheduler.Add(request);
  desk.Step(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(desk.ends[1].why));
}

TEST(Scheduler, LooksAtAStateBeforeItsSlotIsGivenBack) {
  Desk desk({.slots = 1});
  Request request = Desk::Ask(1, 1, 1);
  request.report.state_stats = true;
  desk.scheduler.Add(request);
  desk.scheduler.Add(Desk::Ask(2, 1, 1));
  desk.Step(0);
  EXPECT_THAT(desk.ends, IsEmpty());
  EXPECT_THAT(desk.Step(1), IsEmpty());  // the only slot is still its own
  ASSERT_EQ(desk.ends[1].state_stats.size(), 1u);
  EXPECT_EQ(desk.ends[1].state_stats[0].elements, 7);
  EXPECT_EQ(desk.ends[1].state, nullptr);
  EXPECT_THAT(desk.Step(2), ElementsAre(Pair(2, 1)));
}

TEST(Scheduler, LetsACancelButNoDeadlineCutAnAnswerThatIsYetToBeSaved) {
  Desk desk({});
  for (RequestId id : {1, 2}) {
    Request request = Desk::Ask(id, 1, 1);
    request.keep_state = true;
    request.deadline = At(1);
    desk.scheduler.Add(request);
  }
  desk.Step(0);
  EXPECT_THAT(desk.ends, IsEmpty());
  desk.scheduler.Cancel(2, absl::CancelledError("client"));
  desk.Step(2);
  EXPECT_EQ(desk.ends[1].reason, EndReason::kLength);
  EXPECT_NE(desk.ends[1].state, nullptr);
  EXPECT_TRUE(absl::IsCancelled(desk.ends[2].why));
}

TEST(Scheduler, EndsACancelledSequenceInTheNextPlanWhereverItIs) {
  for (int steps = 0; steps < 6; ++steps) {  // in line, between chunks, in decode
    SCOPED_TRACE(steps);
    Desk desk({.slots = 1, .max_rows = 4});
    desk.scheduler.Add(Desk::Ask(1, 10, 9));
    for (int ms = 0; ms < steps; ++ms) desk.Step(ms);
    const int heard = desk.tokens[1];
    desk.scheduler.Cancel(1, absl::CancelledError("first"));
    desk.scheduler.Cancel(1, absl::AbortedError("second"));
    EXPECT_TRUE(desk.scheduler.Plan(At(9)).empty());
    EXPECT_EQ(desk.slots.free_slots(), 1);
    desk.Hear(desk.scheduler.Commit({}, {}, At(9)));
    EXPECT_EQ(desk.ends[1].why, absl::CancelledError("first"));
    EXPECT_EQ(desk.ends[1].phase, steps == 0   ? Phase::kQueue
                                  : steps <= 2 ? Phase::kPrefill
                                               : Phase::kDecode);
    EXPECT_EQ(desk.tokens[1], heard);
    EXPECT_TRUE(desk.scheduler.idle());
  }
}

TEST(Scheduler, DropsWhatComesBackForASequenceThatWasCancelledMeanwhile) {
  Desk desk({});
  desk.scheduler.Add(Desk::Ask(1, 3, 1));
  const BatchPlan plan = desk.scheduler.Plan(At(0));
  desk.scheduler.Cancel(1, absl::CancelledError("client"));
  EXPECT_THAT(desk.scheduler.Commit(plan, Desk::Result(plan, 5), At(0)), IsEmpty());
  desk.Step(1);
  EXPECT_TRUE(absl::IsCancelled(desk.ends[1].why));
}

TEST(Scheduler, ShrugsAtACancelForNobody) {
  Desk desk({});
  desk.scheduler.Cancel(7, absl::CancelledError("client"));
  EXPECT_TRUE(desk.scheduler.idle());
  EXPECT_TRUE(desk.scheduler.Plan(At(0)).empty());
}

TEST(Scheduler, EndsOnlyTheSequenceWhoseNumbersAreLost) {
  Desk desk({});
  for (RequestId id : {1, 2}) desk.scheduler.Add(Desk::Ask(id, 1, 2));
  const BatchPlan plan = desk.scheduler.Plan(At(0));
  StepResult result = Desk::Result(plan, 5);
  result.entries[0] = {.not_finite = NotFinite{.layer = 2, .field = "s", .position = 17}};
  desk.Hear(desk.scheduler.Commit(plan, std::move(result), At(0)));
  EXPECT_EQ(desk.ends[1].reason, EndReason::kCut);
  EXPECT_EQ(desk.ends[1].why,
            absl::DataLossError("NaN or infinity in field s of layer 2 at position 17"));
  EXPECT_EQ(desk.ends[1].not_finite->position, 17);
  EXPECT_EQ(desk.slots.free_slots(), 1);
  desk.Step(1);
  EXPECT_EQ(desk.ends[2].reason, EndReason::kLength);
}

TEST(Scheduler, EndsARequestWhoseOwnParametersBarEveryToken) {
  Desk desk({});
  for (RequestId id : {1, 2}) desk.scheduler.Add(Desk::Ask(id, 1, 2));
  const BatchPlan plan = desk.scheduler.Plan(At(0));
  StepResult result = Desk::Result(plan, 5);
  result.entries[1] = {.barred = true};
  desk.Hear(desk.scheduler.Commit(plan, std::move(result), At(0)));
  EXPECT_TRUE(absl::IsInvalidArgument(desk.ends[2].why));
  EXPECT_EQ(desk.tokens[1], 1);
  EXPECT_FALSE(desk.ends.contains(1));
}

TEST(Scheduler, TellsOnceWhichSlotsWereGivenBack) {
  Desk desk({.slots = 2});
  for (RequestId id : {1, 2, 3}) desk.scheduler.Add(Desk::Ask(id, 1, id == 1 ? 3 : 1));
  const BatchPlan first = desk.scheduler.Plan(At(0));
  EXPECT_TRUE(first.freed.empty());
  const int32_t slot = first.entries[1].sequence->slot->index();
  desk.Hear(desk.scheduler.Commit(first, Desk::Result(first, 1), At(0)));
  EXPECT_TRUE(desk.ends.contains(2));
  const BatchPlan second = desk.scheduler.Plan(At(1));  // which fills the slot anew
  EXPECT_THAT(second.freed, ElementsAre(slot));
  ASSERT_EQ(second.fills.size(), 1u);
  EXPECT_EQ(second.fills[0]->slot->index(), slot);
  desk.Hear(desk.scheduler.Commit(second, Desk::Result(second, 1), At(1)));
  EXPECT_THAT(desk.scheduler.Plan(At(2)).freed, ElementsAre(slot));
}

TEST(Scheduler, AsksForTheScoresOfEveryWantedPromptTokenOnce) {
  for (const auto& [left_over, first_scored, want] :
       {std::tuple(0, 0, 9), std::tuple(0, 4, 6), std::tuple(0, 10, 0), std::tuple(2, 0, 10),
        std::tuple(2, -1, 0)}) {
    SCOPED_TRACE(testing::Message() << left_over << " " << first_scored);
    Desk desk({.slots = 1, .max_rows = 4});
    Request request = Desk::Ask(1, 10, 0);
    request.report.first_scored = first_scored;
    request.report.next_tokens = {3, 4};
    if (left_over > 0) {
      request.start = std::make_shared<Checkpoint>(
          Checkpoint{.position = 5, .unfed = std::vector<int32_t>(2, 1)});
    }
    desk.scheduler.Add(request);
    int scored = 0, next = 0;
    while (!desk.scheduler.idle()) {
      const BatchPlan plan = desk.scheduler.Plan(At(0));
      for (const Event& e : desk.scheduler.Commit(plan, Desk::Result(plan, 1), At(0))) {
        scored += static_cast<int>(e.scored.size());
        next += static_cast<int>(e.next.size());
      }
    }
    EXPECT_EQ(scored, want);
    EXPECT_EQ(next, 2);
  }
}

TEST(Scheduler, KeepsTheLastTokenOfAPrimedPromptPending) {
  Desk desk({});
  for (int prompt : {1, 5}) {
    Request request = Desk::Ask(static_cast<RequestId>(prompt), prompt, 0);
    request.keep_state = true;
    desk.scheduler.Add(request);
  }
  EXPECT_THAT(desk.Step(0), ElementsAre(Pair(5, 4)));  // of one token nothing is fed
  desk.Step(1);
  EXPECT_EQ(desk.ends[1].state->position, 0);
  EXPECT_EQ(desk.ends[5].state->position, 4);
  EXPECT_EQ(desk.ends[5].state->unfed.size(), 1u);
}

TEST(Scheduler, TellsHowLongEachPhaseTook) {
  Desk desk({.slots = 1, .max_rows = 4});
  desk.scheduler.Add(Desk::Ask(1, 10, 3));
  desk.scheduler.Add(Desk::Ask(2, 1, 1));
  for (int ms : {10, 20, 30, 40, 50}) desk.Step(ms);
  const Timings& t = desk.ends[1].timings;
  EXPECT_EQ(t.queue, absl::Milliseconds(10));
  EXPECT_EQ(t.prefill, absl::Milliseconds(20));
  EXPECT_EQ(t.decode, absl::Milliseconds(20));
  EXPECT_EQ(t.prefill_steps, 3);
  EXPECT_EQ(t.decode_steps, 3);
  desk.scheduler.Cancel(2, absl::CancelledError("client"));
  desk.Step(60);
  EXPECT_EQ(desk.ends[2].timings.queue, absl::Milliseconds(60));
}

TEST(Scheduler, EndsAllAtOnce) {
  Desk desk({.slots = 1});
  for (RequestId id : {1, 2, 3}) desk.scheduler.Add(Desk::Ask(id, 1, 5));
  desk.Step(0);
  desk.scheduler.Cancel(2, absl::CancelledError("client"));
  desk.Hear(desk.scheduler.EndAll(absl::UnavailableError("lost"), At(1)));
  EXPECT_TRUE(absl::IsUnavailable(desk.ends[1].why));
  EXPECT_TRUE(absl::IsCancelled(desk.ends[2].why));
  EXPECT_TRUE(absl::IsUnavailable(desk.ends[3].why));
  EXPECT_TRUE(desk.scheduler.idle());
  EXPECT_EQ(desk.slots.free_slots(), 1);
}

// With a line that is searched, this takes minutes.
TEST(Scheduler, CancelsAHundredThousandWaitingRequestsInNoTime) {
  constexpr RequestId kRequests = 100'000;
  Desk desk({.slots = 1});
  for (RequestId id = 0; id <= kRequests; ++id) desk.scheduler.Add(Desk::Ask(id, 1, 100'000));
  const absl::Time begin = absl::Now();
  for (RequestId id = kRequests; id > 0; --id) {
    desk.scheduler.Cancel(id, absl::CancelledError("client"));
    if (id % 10 == 0) desk.Step(0);
  }
  EXPECT_EQ(desk.ends.size(), kRequests - 9);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

TEST(SchedulerDeath, RefusesWhatTheBorderShouldHaveRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Desk desk({.pages = 2, .rows_per_page = 4});
  EXPECT_DEATH(desk.scheduler.Add(Desk::Ask(1, 5, 4)), "CanEverHold");
  EXPECT_DEATH(desk.scheduler.Add(Desk::Ask(1, 0, 4)), "empty");
  EXPECT_DEATH(Desk({.slots = 8, .max_rows = 8}), "max_rows_per_step");
}

}  // namespace
}  // namespace eddy
