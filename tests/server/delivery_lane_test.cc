// Proves what a lane does when its thread falls behind: what several steps made for one call goes
// out as one output, nothing is lost, and the end still comes once and last. The thread is kept
// busy by a client whose Put does not return until the test lets it. What holds for all lanes
// together is proved in delivery_test.cc.
#include "server/delivery_lane.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/text/byte_tokenizer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_reply.h"

namespace eddy {
namespace {

// Holds the thread that brings it something until it is let go.
class HeavyReply : public FakeReply {
 public:
  bool Put(Output output) override {
    FakeReply::Put(std::move(output));
    MutexLock lock(&mu_);
    while (!open_) opened_.Wait(&mu_);
    return true;
  }
  void LetGo() {
    MutexLock lock(&mu_);
    open_ = true;
    opened_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

class CountingObserver : public CallObserver {
 public:
  void Tokens(const std::vector<double>& first, const std::vector<double>& between) override {
    MutexLock lock(&mu_);
    tokens_ += first.size() + between.size();
    changed_.NotifyAll();
  }
  // How many there were when there were enough.
  size_t AwaitTokens(size_t least) {
    MutexLock lock(&mu_);
    while (tokens_ < least) changed_.Wait(&mu_);
    return tokens_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t tokens_ ABSL_GUARDED_BY(mu_) = 0;
};

class DeliveryLaneTest : public ::testing::Test {
 protected:
  DeliveryLaneTest() {
    Begin(kHeavy, &heavy_, {});
    Publish({{kHeavy, 'h'}});
    heavy_.AwaitTokens(1);  // from here on the lane's thread is held
  }
  ~DeliveryLaneTest() override {
    Publish({{kHeavy, 'h'}}, /*ends=*/true);
    heavy_.AwaitEnd();
    lane_.reset();
    EXPECT_EQ(cancelled_, cancels_);
  }

  struct Letter {
    RequestId id;
    char letter;
  };
  void Begin(RequestId id, Reply* reply, std::vector<std::string> stop_strings) {
    CallPlan plan{.wants_text = true, .stop_strings = std::move(stop_strings)};
    plan.request.arrival = clock_.Now();
    lane_->Open(id, reply);
    EXPECT_TRUE(lane_->Begin(id, false, std::make_unique<Call>(plan, PromptFacts{}, &tokenizer_)));
    lane_->Submitted(id);
  }
  // One step, in which each letter ends its call or none does.
  void Publish(const std::vector<Letter>& letters, bool ends = false) {
    std::vector<Event> events;
    for (const Letter& each : letters) {
      events.push_back({.id = each.id, .token = TokenReport{.token = each.letter}});
      if (ends) events.back().end = End{.reason = EndReason::kLength};
    }
    lane_->Publish(std::move(events));
  }

  static constexpr RequestId kHeavy = 1, kFirst = 2, kSecond = 3;
  FakeClock clock_;
  CountingObserver observer_;
  ByteTokenizer tokenizer_{300, std::nullopt};
  HeavyReply heavy_;
  std::vector<RequestId> cancelled_;  // the lane's thread's until the lane is gone
  std::vector<RequestId> cancels_;    // that the test expects
  DeliveryLane::Environment environment_{
      .clock = &clock_, .observer = &observer_, .cancel = [this](RequestId id, absl::Status) {
        cancelled_.push_back(id);
      }};
  std::unique_ptr<DeliveryLane> lane_ = std::make_unique<DeliveryLane>(&environment_, "lane");
};

TEST_F(DeliveryLaneTest, JoinsWhatSeveralStepsMadeWhileItWasBusy) {
  FakeReply first, second;
  Begin(kFirst, &first, {});
  Begin(kSecond, &second, {});
  Publish({{kSecond, 'x'}, {kFirst, 'a'}});
  Publish({{kFirst, 'b'}});
  Publish({{kFirst, 'c'}, {kSecond, 'y'}});
  heavy_.LetGo();
  first.AwaitTokens(3);
  second.AwaitTokens(2);
  EXPECT_EQ(first.text(), "abc");
  EXPECT_EQ(first.puts(), 1);
  EXPECT_EQ(second.text(), "xy");
  EXPECT_EQ(second.puts(), 1);
  Publish({{kFirst, 'd'}, {kSecond, 'z'}}, /*ends=*/true);
  first.AwaitEnd();
  second.AwaitEnd();
  EXPECT_EQ(first.text(), "abcd");
  EXPECT_EQ(second.text(), "xyz");
}

TEST_F(DeliveryLaneTest, JoinsTheEndToWhatCameBeforeIt) {
  FakeReply reply;
  Begin(kFirst, &reply, {});
  Publish({{kFirst, 'a'}});
  Publish({{kFirst, 'b'}}, /*ends=*/true);
  heavy_.LetGo();
  const Ending ending = reply.AwaitEnd();
  EXPECT_EQ(ending.finish->reason, FinishReason::kLength);
  EXPECT_EQ(ending.tally.generated_tokens, 2);
  EXPECT_EQ(reply.text(), "ab");
  EXPECT_EQ(reply.puts(), 1);
}

TEST_F(DeliveryLaneTest, StopsAtAStopStringAmidWhatItJoins) {
  FakeReply reply;
  Begin(kFirst, &reply, {"b"});
  for (const char letter : {'a', 'b', 'c'}) Publish({{kFirst, letter}});
  cancels_ = {kFirst};
  heavy_.LetGo();
  reply.AwaitTokens(2);
  Publish({{kFirst, 'd'}}, /*ends=*/true);
  const Ending ending = reply.AwaitEnd();
  EXPECT_EQ(ending.finish->reason, FinishReason::kStopString);
  EXPECT_EQ(ending.tally.generated_tokens, 2);
  EXPECT_EQ(reply.text(), "a");
  EXPECT_EQ(reply.puts(), 2);  // the finish is the second
}

TEST_F(DeliveryLaneTest, ObservesEveryTokenThatItJoins) {
  FakeReply reply;
  Begin(kFirst, &reply, {});
  for (int i = 0; i < 4; ++i) Publish({{kFirst, 'a'}});
  Publish({{kFirst, 'b'}}, /*ends=*/true);
  heavy_.LetGo();
  reply.AwaitEnd();
  EXPECT_EQ(observer_.AwaitTokens(6), 6u);  // one is the other call's
}

}  // namespace
}  // namespace eddy
