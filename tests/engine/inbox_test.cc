// Proves that the inbox bounds all that waits, in itself and behind it, by both bounds; that a
// refusal says which and how much; that order is kept and closing refuses only requests.
#include "engine/inbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace eddy {
namespace {

Request Ask(RequestId id, size_t prompt = 1, absl::Time arrival = absl::UnixEpoch()) {
  return {.id = id, .prompt = std::vector<int32_t>(prompt, 1), .arrival = arrival};
}

TEST(Inbox, LetsNoMoreWaitThanTheBoundSays) {
  Inbox inbox({.requests = 5, .prompt_tokens = 1000});
  for (RequestId id : {0, 1, 2}) EXPECT_TRUE(inbox.Push(Ask(id)).ok());
  // They are taken out, but cannot be admitted and wait on.
  EXPECT_EQ(inbox.Take(/*wait=*/false).commands.size(), 3u);
  for (RequestId id : {3, 4}) EXPECT_TRUE(inbox.Push(Ask(id)).ok());
  const absl::Status refused = inbox.Push(Ask(5));
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "the waiting line is full: 5 requests wait, the limit is 5");
  // Two of the three were admitted in the meantime: three wait.
  EXPECT_EQ(inbox.SetInLine({.requests = 1, .prompt_tokens = 1}).requests, 3);
  for (RequestId id : {5, 6}) EXPECT_TRUE(inbox.Push(Ask(id)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(inbox.Push(Ask(7))));
}

TEST(Inbox, BoundsThePromptTokensThatWait) {
  Inbox inbox({.requests = 100, .prompt_tokens = 50});
  EXPECT_TRUE(inbox.Push(Ask(0, 30)).ok());
  EXPECT_EQ(inbox.Take(/*wait=*/false).commands.size(), 1u);
  EXPECT_TRUE(inbox.Push(Ask(1, 15)).ok());
  const absl::Status refused = inbox.Push(Ask(2, 6));
  EXPECT_EQ(refused.message(), "the waiting line is full: 45 prompt tokens wait, the limit is 50");
  const std::optional<LineFull> full = LineFullOf(refused);
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->bound, LineFull::Bound::kPromptTokens);
  EXPECT_EQ(full->waiting, 45);
  EXPECT_EQ(full->limit, 50);
  EXPECT_TRUE(inbox.Push(Ask(3, 5)).ok());  // a smaller one still fits
  inbox.SetInLine({});
  EXPECT_TRUE(inbox.Push(Ask(4, 30)).ok());
}

TEST(LineFull, SurvivesTheWayThroughAStatus) {
  const std::optional<LineFull> full =
      LineFullOf(ToStatus({LineFull::Bound::kRequests, 1024, int64_t{1} << 40}));
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->bound, LineFull::Bound::kRequests);
  EXPECT_EQ(full->waiting, 1024);
  EXPECT_EQ(full->limit, int64_t{1} << 40);
  EXPECT_FALSE(LineFullOf(absl::ResourceExhaustedError("memory")).has_value());
  EXPECT_FALSE(LineFullOf(absl::OkStatus()).has_value());
}

TEST(Inbox, KnowsTheOldestOfAllThatWait) {
  const absl::Time t = absl::UnixEpoch();
  Inbox inbox({.requests = 9, .prompt_tokens = 99});
  EXPECT_EQ(inbox.SetInLine({}).oldest, absl::InfiniteFuture());
  EXPECT_TRUE(inbox.Push(Ask(0, 1, t + absl::Seconds(2))).ok());
  EXPECT_EQ(inbox.SetInLine({.requests = 1, .oldest = t + absl::Seconds(3)}).oldest,
            t + absl::Seconds(2));
  inbox.Take(/*wait=*/false);
  EXPECT_EQ(inbox.SetInLine({}).oldest, absl::InfiniteFuture());
}

TEST(Inbox, KeepsTheOrderAndTakesCancelsWhenFullOrClosed) {
  Inbox inbox({.requests = 1, .prompt_tokens = 9});
  EXPECT_TRUE(inbox.Push(Ask(1)).ok());
  inbox.Push(CancelRequest{.id = 1, .why = absl::CancelledError("client")});
  EXPECT_TRUE(absl::IsResourceExhausted(inbox.Push(Ask(2))));
  inbox.Close(absl::UnavailableError("first"));
  inbox.Close(absl::UnavailableError("second"));
  inbox.Push(CancelAllRequests{.why = absl::UnavailableError("drain")});
  EXPECT_EQ(inbox.Push(Ask(3)), absl::UnavailableError("first"));
  const Inbox::Taken taken = inbox.Take(/*wait=*/true);
  EXPECT_TRUE(taken.closed);
  ASSERT_EQ(taken.commands.size(), 3u);
  EXPECT_EQ(std::get<Request>(taken.commands[0]).id, 1u);
  EXPECT_EQ(std::get<CancelRequest>(taken.commands[1]).id, 1u);
  EXPECT_TRUE(std::holds_alternative<CancelAllRequests>(taken.commands[2]));
}

TEST(Inbox, WakesWhoeverWaitsForARequestACancelOrTheEnd) {
  Inbox inbox({.requests = 9, .prompt_tokens = 99});
  const auto wake = [&](auto push) {
    std::jthread other(push);
    return inbox.Take(/*wait=*/true);
  };
  EXPECT_EQ(wake([&] { EXPECT_TRUE(inbox.Push(Ask(1)).ok()); }).commands.size(), 1u);
  EXPECT_EQ(wake([&] { inbox.Push(CancelRequest{.id = 1}); }).commands.size(), 1u);
  EXPECT_TRUE(wake([&] { inbox.Close(absl::UnavailableError("bye")); }).closed);
}

TEST(Inbox, AcceptsNoMoreThanItsBoundFromManyThreads) {
  Inbox inbox({.requests = 100, .prompt_tokens = 1'000'000});
  std::atomic<int> accepted{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (RequestId id = 0; id < 100; ++id) accepted += inbox.Push(Ask(id)).ok();
      });
    }
  }
  EXPECT_EQ(accepted, 100);
  EXPECT_EQ(inbox.Take(/*wait=*/false).commands.size(), 100u);
}

}  // namespace
}  // namespace eddy
