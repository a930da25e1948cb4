// Proves that every call that is opened is ended exactly once, whoever cuts it and when, and that
// delivery makes of the engine's events what the client is told, in order, with one thread and with
// several. No engine: the test publishes the events. The last tests do everything at once on
// several threads; run them under ThreadSanitizer.
#include "server/delivery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>

#include "server/text/byte_tokenizer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_reply.h"
#include "tests/testing/wire_reply.h"

namespace eddy {
namespace {

// The parameter is the number of threads.
class DeliveryTest : public ::testing::TestWithParam<int> {
 protected:
  DeliveryTest() {
    delivery_ = std::make_unique<Delivery>(
        Delivery::Options{
            .threads = GetParam(), .max_request_time = absl::Minutes(10), .outbox_bytes_max = 77},
        &clock_, &observer_, [this](RequestId id, const absl::Status&) {
          MutexLock lock(&mu_);
          cancelled_.push_back(id);
        });
  }

  CallPlan Plan() const {
    CallPlan plan{.wants_text = true};
    plan.request.max_new_tokens = 10;
    plan.request.arrival = clock_.Now();
    return plan;
  }
  // Open, and as far as the engine knows submitted.
  RequestId Begin(Reply* reply, const CallPlan& plan) {
    const RequestId id = delivery_->Open(reply);
    const bool begun = delivery_->Begin(
        id, plan.client_deadline,
        std::make_unique<Call>(plan, PromptFacts{.prompt_tokens = 3}, &tokenizer_));
    EXPECT_TRUE(begun);
    delivery_->Submitted(id);
    return id;
  }
  void Publish(Event event) {
    std::vector<Event> events;
    events.push_back(std::move(event));
    delivery_->Publish(std::move(events));
  }
  static Event TokenEvent(RequestId id, char c) {
    return {.id = id, .token = TokenReport{.token = c}};
  }
  static Event EndEvent(RequestId id, End end) { return {.id = id, .end = std::move(end)}; }
  std::vector<RequestId> cancelled() {
    MutexLock lock(&mu_);
    return cancelled_;
  }

  FakeClock clock_;
  NoObserver observer_;
  ByteTokenizer tokenizer_{300, std::nullopt};
  Mutex mu_;
  std::vector<RequestId> cancelled_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Delivery> delivery_;
};

INSTANTIATE_TEST_SUITE_P(Threads, DeliveryTest, ::testing::Values(1, 3));

TEST_P(DeliveryTest, BringsTokensAndTheEndInOrder) {
  FakeReply reply;
  const RequestId id = Begin(&reply, Plan());
  for (const char c : {'a', 'b', 'c'}) Publish(TokenEvent(id, c));
  clock_.Advance(absl::Seconds(2));
  Publish(EndEvent(id, {.reason = EndReason::kLength}));
  const Ending ending = reply.AwaitEnd();
  EXPECT_FALSE(ending.error.has_value());
  EXPECT_EQ(ending.finish->reason, FinishReason::kLength);
  EXPECT_EQ(ending.tally.prompt_tokens, 3);
  EXPECT_EQ(ending.tally.generated_tokens, 3);
  EXPECT_EQ(reply.text(), "abc");
  EXPECT_EQ(delivery_->open_calls(), 0);
}

TEST_P(DeliveryTest, EndsACallThatWasNotSubmittedWhenItIsCut) {
  FakeReply reply;
  const RequestId id = delivery_->Open(&reply);
  delivery_->CutOff(id, Cut::kCancelled);
  EXPECT_EQ(reply.AwaitEnd().error->reason, "CANCELLED");
  EXPECT_FALSE(delivery_->IsOpen(id));
  EXPECT_FALSE(
      delivery_->Begin(id, false, std::make_unique<Call>(Plan(), PromptFacts{}, &tokenizer_)));
  delivery_->Refuse(id, NotReady());  // too late: no second end
  EXPECT_TRUE(cancelled().empty());
}

TEST_P(DeliveryTest, CancelsTheEngineAndWaitsForItsEndWhenASubmittedCallIsCut) {
  FakeReply reply;
  const RequestId id = Begin(&reply, Plan());
  delivery_->CutOff(id, Cut::kDrain);
  EXPECT_EQ(cancelled(), std::vector<RequestId>{id});
  EXPECT_FALSE(reply.ended());
  Publish(EndEvent(id, {.why = absl::CancelledError("cut off")}));
  EXPECT_EQ(reply.AwaitEnd().error->reason, "DRAIN_TIMEOUT");
}

TEST_P(DeliveryTest, CancelsOnceMoreWhatWasCutBetweenBeginAndSubmit) {
  FakeReply reply;
  const RequestId id = delivery_->Open(&reply);
  ASSERT_TRUE(
      delivery_->Begin(id, false, std::make_unique<Call>(Plan(), PromptFacts{}, &tokenizer_)));
  delivery_->CutOff(id, Cut::kCancelled);  // the engine knows nothing of it yet
  delivery_->Submitted(id);
  EXPECT_EQ(cancelled(), (std::vector<RequestId>{id, id}));
  Publish(EndEvent(id, {.why = absl::CancelledError("cut off")}));
  EXPECT_EQ(reply.AwaitEnd().error->reason, "CANCELLED");
}

TEST_P(DeliveryTest, TheFirstCutCounts) {
  FakeReply reply;
  const RequestId id = Begin(&reply, Plan());
  delivery_->CutOff(id, Cut::kDeadline);
  delivery_->CutOff(id, Cut::kDrain);
  Publish(EndEvent(id, {.why = absl::CancelledError("cut off"), .phase = Phase::kDecode}));
  const Error error = *reply.AwaitEnd().error;
  EXPECT_EQ(error.reason, "DEADLINE");
  EXPECT_EQ(error.metadata[0].second, "decode");
}

TEST_P(DeliveryTest, DoesNotTakeBackAFinishedAnswer) {
  FakeReply reply;
  const RequestId id = Begin(&reply, Plan());
  delivery_->CutOff(id, Cut::kCancelled);
  Publish(EndEvent(id, {.reason = EndReason::kEos}));
  EXPECT_FALSE(reply.AwaitEnd().error.has_value());
}

TEST_P(DeliveryTest, CutsTheEngineWhenAStopStringMatchesAndEndsWell) {
  CallPlan plan = Plan();
  plan.stop_strings = {"bc"};
  FakeReply reply;
  const RequestId id = Begin(&reply, plan);
  for (const char c : {'a', 'b', 'c'}) Publish(TokenEvent(id, c));
  reply.AwaitTokens(3);
  Publish(TokenEvent(id, 'd'));  // the engine was a step ahead
  Publish(EndEvent(id, {.why = absl::CancelledError("cut off")}));
  const Ending ending = reply.AwaitEnd();
  EXPECT_EQ(cancelled(), std::vector<RequestId>{id});
  EXPECT_FALSE(ending.error.has_value());
  EXPECT_EQ(ending.finish->reason, FinishReason::kStopString);
  EXPECT_EQ(ending.finish->stop_string, "bc");
  EXPECT_EQ(ending.tally.generated_tokens, 3);
  EXPECT_EQ(reply.text(), "a");
}

TEST_P(DeliveryTest, CutsAReaderThatFallsBehind) {
  FakeReply reply;
  const RequestId id = Begin(&reply, Plan());
  reply.FallBehind();
  Publish(TokenEvent(id, 'a'));
  reply.AwaitTokens(1);
  Publish(EndEvent(id, {.why = absl::CancelledError("cut off")}));
  const Error error = *reply.AwaitEnd().error;
  EXPECT_EQ(error.code, absl::StatusCode::kAborted);
  EXPECT_EQ(error.reason, "SLOW_READER");
  EXPECT_EQ(error.metadata[0].second, "77");
}

TEST_P(DeliveryTest, TellsWhyTheEngineEndedACall) {
  struct Case {
    End end;
    bool client_deadline;
    const char* reason;
  };
  const Case cases[] = {
      {{.why = absl::DeadlineExceededError("")}, true, "DEADLINE"},
      {{.why = absl::DeadlineExceededError("")}, false, "REQUEST_TIME_MAX"},
      {{.why = absl::UnavailableError("the device was lost")}, false, "DEVICE_LOST"},
      {{.why = absl::DataLossError("NaN"), .not_finite = NotFinite{.layer = 1}},
       false,
       "STATE_NOT_FINITE"},
      {{.why = absl::CancelledError("")}, false, "CANCELLED"},
      {{.why = absl::InternalError("a bug")}, false, "INTERNAL"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.reason);
    CallPlan plan = Plan();
    plan.client_deadline = each.client_deadline;
    FakeReply reply;
    const RequestId id = Begin(&reply, plan);
    Publish(EndEvent(id, each.end));
    EXPECT_EQ(reply.AwaitEnd().error->reason, each.reason);
  }
}

TEST_P(DeliveryTest, CutsEverybodyAtOnce) {
  FakeReply submitted, waiting;
  const RequestId id = Begin(&submitted, Plan());
  delivery_->Open(&waiting);
  delivery_->CutOffAll(Cut::kDrain);
  EXPECT_EQ(waiting.AwaitEnd().error->reason, "DRAIN_TIMEOUT");
  Publish(EndEvent(id, {.why = absl::CancelledError("cut off")}));
  EXPECT_EQ(submitted.AwaitEnd().error->reason, "DRAIN_TIMEOUT");
}

TEST_P(DeliveryTest, IgnoresEventsOfCallsThatItDoesNotKnow) {
  FakeReply reply;
  const RequestId id = Begin(&reply, Plan());
  Publish(TokenEvent(id + 1000, 'z'));
  Publish(EndEvent(id, {.reason = EndReason::kLength}));
  reply.AwaitEnd();
  EXPECT_EQ(reply.text(), "");
}

TEST_P(DeliveryTest, EndsEachOfManyCallsOnceWhileAllAreCutFromOtherThreads) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kCalls = 400;
  std::vector<std::unique_ptr<FakeReply>> replies;
  std::vector<RequestId> ids, submitted;
  std::mt19937 rng(seed);
  for (int i = 0; i < kCalls; ++i) {
    replies.push_back(std::make_unique<FakeReply>());
    FakeReply* const reply = replies.back().get();
    const bool waits = rng() % 4 == 0;
    ids.push_back(waits ? delivery_->Open(reply) : Begin(reply, Plan()));
    if (!waits) submitted.push_back(ids.back());
  }
  std::thread canceller([&] {
    for (size_t i = 0; i < ids.size(); i += 2) delivery_->CutOff(ids[i], Cut::kCancelled);
  });
  std::thread drainer([&] { delivery_->CutOffAll(Cut::kDrain); });
  for (const RequestId id : submitted) {
    Publish(TokenEvent(id, 'a'));
    Publish(EndEvent(id, {.why = absl::CancelledError("cut off")}));
  }
  canceller.join();
  drainer.join();
  for (const auto& reply : replies) reply->AwaitEnd();
  EXPECT_EQ(delivery_->open_calls(), 0);
}

// Steps as the engine makes them: some of the calls get a letter each, some end with it. Writes are
// slow at random, so that letters gather, and clients leave while they are being written to.
TEST_P(DeliveryTest, KeepsTheOrderOfEachOfManyStreamsThatAreCutWhileTheyAreWritten) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kCalls = 60, kLetters = 200;
  std::mt19937 rng(seed);
  CallPlan plan = Plan();
  plan.request.max_new_tokens = kLetters;
  FakeWire wire(seed);
  std::vector<std::unique_ptr<WireReply>> replies;
  std::vector<RequestId> ids;
  for (int i = 0; i < kCalls; ++i) {
    replies.push_back(std::make_unique<WireReply>(&wire));
    ids.push_back(Begin(replies.back().get(), plan));
  }
  std::thread leaver([&] {
    for (size_t i = 0; i < ids.size(); i += 3) {
      replies[i]->AwaitTokens(static_cast<int>(i));
      delivery_->CutOff(ids[i], Cut::kCancelled);
    }
  });
  std::vector<std::string> sent(kCalls);
  std::vector<bool> over(kCalls);
  for (int left = kCalls; left > 0;) {
    std::vector<Event> step;
    const std::vector<RequestId> cut = cancelled();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (over[i] || rng() % 4 == 0) continue;
      if (std::find(cut.begin(), cut.end(), ids[i]) != cut.end()) {
        step.push_back(EndEvent(ids[i], {.why = absl::CancelledError("cut off")}));
        over[i] = true;
        --left;
        continue;
      }
      sent[i].push_back(static_cast<char>('a' + rng() % 26));
      step.push_back(TokenEvent(ids[i], sent[i].back()));
      over[i] = sent[i].size() == kLetters;
      if (over[i]) step.back().end = End{.reason = EndReason::kLength};
      left -= over[i] ? 1 : 0;
    }
    std::shuffle(step.begin(), step.end(), rng);
    if (!step.empty()) delivery_->Publish(std::move(step));
  }
  leaver.join();
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool whole = sent[i].size() == kLetters;
    EXPECT_EQ(replies[i]->AwaitFinish().error.has_value(), !whole);
    EXPECT_EQ(replies[i]->text(), sent[i]) << "call " << i;
  }
  EXPECT_EQ(delivery_->open_calls(), 0);
}

}  // namespace
}  // namespace eddy
