// Proves the way from a checked call to its end with a real engine, intake and delivery, and an
// executor that echoes the prompt: the bounds of the line, cancels in every phase, deadlines, a
// lost device, and that after many random calls nothing is left. Run it under ThreadSanitizer.
#include "server/admission.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "server/text/byte_tokenizer.h"
#include "tests/testing/echo_executor.h"
#include "tests/testing/fake_reply.h"
#include "tests/testing/moment.h"

namespace eddy {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  struct Sizes {
    int slots = 2;
    int max_waiting = 4;
    int64_t max_waiting_prompt_tokens = 1000;
  };

  void Start(const Sizes& sizes) {
    model_.name = "echo";
    model_.info.vocab_size = 300;
    model_.capacity.slots = sizes.slots;
    model_.tokenizer = std::make_unique<ByteTokenizer>(300, std::nullopt);
    model_.limits = {.max_prompt_tokens = 200, .max_new_tokens = 100};
    delivery_ = std::make_unique<Delivery>(
        Delivery::Options{}, &clock_, &observer_,
        [this](RequestId id, absl::Status why) { engine_->Cancel(id, std::move(why)); });
    Engine::Callbacks callbacks;
    callbacks.sink = [this](std::vector<Event> events) { delivery_->Publish(std::move(events)); };
    callbacks.stepped = [](const StepStats&) {};
    callbacks.device_lost = [](const absl::Status&) {};
    engine_ = std::make_unique<Engine>(
        Engine::Options{.slots = sizes.slots,
                        .max_rows_per_step = 32,
                        .max_waiting = sizes.max_waiting,
                        .max_waiting_prompt_tokens = sizes.max_waiting_prompt_tokens},
        std::make_unique<EchoExecutor>(&control_), &clock_, std::move(callbacks));
    admission_ = std::make_unique<Admission>(
        Admission::Options{.intake_threads = 2,
                           .max_waiting_requests = sizes.max_waiting,
                           .max_waiting_prompt_tokens = sizes.max_waiting_prompt_tokens},
        &model_, &clock_, engine_.get(), delivery_.get());
  }
  void TearDown() override {
    control_.Open();
    admission_.reset();
    engine_.reset();
    delivery_.reset();
  }

  CallPlan Plan(const std::string& text, int max_new_tokens) const {
    CallPlan plan{.text = text, .wants_text = true};
    plan.request.max_new_tokens = max_new_tokens;
    plan.request.arrival = clock_.Now();
    return plan;
  }
  RequestId Begin(FakeReply* reply, CallPlan plan) {
    const RequestId id = delivery_->Open(reply);
    admission_->Start(id, std::move(plan));
    return id;
  }
  void AwaitWaiting(int requests) {
    while (engine_->waiting().requests < requests) std::this_thread::yield();
  }

  RealClock clock_;
  NoObserver observer_;
  EchoControl control_;
  ServedModel model_;
  std::unique_ptr<Delivery> delivery_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Admission> admission_;
};

TEST_F(AdmissionTest, GeneratesWhatTheModelSays) {
  Start({});
  FakeReply reply;
  Begin(&reply, Plan(">hello ", 14));
  EXPECT_FALSE(reply.AwaitEnd().error.has_value());
  EXPECT_EQ(reply.text(), "hello hello he");
}

TEST_F(AdmissionTest, RefusesATextThatIsTooLong) {
  Start({});
  FakeReply reply;
  Begin(&reply, Plan(std::string(201, 'x'), 1));
  const Error error = *reply.AwaitEnd().error;
  EXPECT_EQ(error.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error.reason, "PROMPT_TOO_LONG");
  EXPECT_EQ(error.metadata, (std::vector<std::pair<std::string, std::string>>{
                                {"prompt_tokens_at_least", "201"}, {"limit", "200"}}));
}

TEST_F(AdmissionTest, KeepsTheEndOfAPromptThatIsToBeCut) {
  Start({});
  FakeReply reply;
  CallPlan plan = Plan(std::string(300, 'x') + ">ab", 4);
  plan.truncate_to = 3;
  Begin(&reply, std::move(plan));
  EXPECT_EQ(reply.AwaitEnd().tally.prompt_tokens, 3);
  EXPECT_EQ(reply.text(), "abab");
}

TEST_F(AdmissionTest, RefusesAtOnceWhenTheLineIsFullAndSaysWhenToComeBack) {
  Start({.slots = 1, .max_waiting = 2});
  control_.Close();
  FakeReply running, first, second, refused;
  Begin(&running, Plan(">a", 3));
  control_.AwaitBlocked();
  Begin(&first, Plan(">b", 3));
  Begin(&second, Plan(">c", 3));
  AwaitWaiting(2);
  Begin(&refused, Plan(">d", 3));
  const Error error = *refused.AwaitEnd().error;
  EXPECT_EQ(error.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_EQ(error.metadata[0].second, "2");
  EXPECT_EQ(error.metadata[1].second, "2");
  EXPECT_GE(*error.retry_after, absl::Milliseconds(100));
  EXPECT_LE(*error.retry_after, absl::Seconds(5));
  control_.Open();
  for (FakeReply* reply : {&running, &first, &second}) {
    EXPECT_FALSE(reply->AwaitEnd().error.has_value());
  }
}

TEST_F(AdmissionTest, RefusesWhenTheWaitingPromptsAreTooLongTogether) {
  Start({.slots = 1, .max_waiting = 10, .max_waiting_prompt_tokens = 200});
  control_.Close();
  FakeReply running, waiting, refused;
  Begin(&running, Plan(">a", 3));
  control_.AwaitBlocked();
  Begin(&waiting, Plan(std::string(150, 'x'), 3));
  AwaitWaiting(1);
  Begin(&refused, Plan(std::string(100, 'x'), 3));
  const Error error = *refused.AwaitEnd().error;
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_EQ(error.metadata[1].second, "200");
  control_.Open();
  EXPECT_FALSE(waiting.AwaitEnd().error.has_value());
  EXPECT_FALSE(running.AwaitEnd().error.has_value());
}

TEST_F(AdmissionTest, CancelsInTheLineInThePromptAndWhileGenerating) {
  Start({.slots = 1});
  control_.Close();
  FakeReply running, waiting;
  const RequestId running_id = Begin(&running, Plan(">" + std::string(100, 'x'), 50));
  control_.AwaitBlocked();
  const RequestId waiting_id = Begin(&waiting, Plan(">b", 3));
  AwaitWaiting(1);
  delivery_->CutOff(waiting_id, Cut::kCancelled);
  control_.Allow(2);  // parts of the prompt; the cancel is told when the second has ended
  EXPECT_EQ(waiting.AwaitEnd().error->reason, "CANCELLED");
  control_.AwaitBlocked();
  delivery_->CutOff(running_id, Cut::kCancelled);
  control_.Open();
  EXPECT_EQ(running.AwaitEnd().error->reason, "CANCELLED");
  EXPECT_EQ(running.num_tokens(), 0);

  FakeReply generating;
  const RequestId id = Begin(&generating, Plan(">c", 100));
  generating.AwaitTokens(1);
  delivery_->CutOff(id, Cut::kCancelled);
  generating.AwaitEnd();  // at once or, if it was faster, well
  EXPECT_EQ(delivery_->open_calls(), 0);
}

TEST_F(AdmissionTest, EndsACallWhoseDeadlineIsOverBeforeItIsEncoded) {
  Start({});
  FakeReply reply;
  CallPlan plan = Plan(">a", 3);
  plan.request.deadline = clock_.Now() - absl::Seconds(1);
  plan.client_deadline = true;
  Begin(&reply, std::move(plan));
  const Error error = *reply.AwaitEnd().error;
  EXPECT_EQ(error.reason, "DEADLINE");
  EXPECT_EQ(error.metadata[0].second, "queue");
}

TEST_F(AdmissionTest, EndsACallWithTheReasonOfTheStateThatIsNotFinite) {
  Start({});
  control_.Poison('!');
  FakeReply poisoned, healthy;
  Begin(&poisoned, Plan(">!", 3));
  Begin(&healthy, Plan(">a", 3));
  const Error error = *poisoned.AwaitEnd().error;
  EXPECT_EQ(error.code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(error.reason, "STATE_NOT_FINITE");
  EXPECT_EQ(error.metadata, (std::vector<std::pair<std::string, std::string>>{
                                {"layer", "3"}, {"field", "s"}, {"position", "0"}}));
  EXPECT_FALSE(healthy.AwaitEnd().error.has_value());
}

TEST_F(AdmissionTest, EndsAllCallsWhenTheDeviceIsLostAndRefusesLaterOnes) {
  Start({.slots = 1});
  control_.Close();
  FakeReply running, waiting, late;
  Begin(&running, Plan(">a", 3));
  control_.AwaitBlocked();
  Begin(&waiting, Plan(">b", 3));
  AwaitWaiting(1);
  control_.Break();
  control_.Open();
  EXPECT_EQ(running.AwaitEnd().error->reason, "DEVICE_LOST");
  EXPECT_EQ(waiting.AwaitEnd().error->reason, "DEVICE_LOST");
  Begin(&late, Plan(">c", 3));
  const Error error = *late.AwaitEnd().error;
  EXPECT_EQ(error.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(error.reason, "DEVICE_LOST");
}

TEST_F(AdmissionTest, DoesOtherWorkOnItsThreadsAndRefusesItWhenFull) {
  Start({.slots = 1, .max_waiting = 1});
  control_.Close();
  FakeReply running, waiting;
  Begin(&running, Plan(">a", 3));
  control_.AwaitBlocked();
  Begin(&waiting, Plan(">b", 3));
  AwaitWaiting(1);
  const std::optional<Error> error = admission_->Do(1, [] {});
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->reason, "QUEUE_FULL");
  control_.Open();
  waiting.AwaitEnd();
  running.AwaitEnd();
  FakeReply told;
  EXPECT_FALSE(admission_->Do(1, [&told] { told.End({}); }).has_value());
  told.AwaitEnd();
}

// A text for Tokenize may be longer than any prompt; it must not close the line to prompts.
TEST_F(AdmissionTest, CountsATextOfAnyLengthForAPromptAtMost) {
  Start({.max_waiting_prompt_tokens = 300});
  Moment begun[2], go;
  for (Moment& one : begun) {
    EXPECT_FALSE(admission_
                     ->Do(1,
                          [&one, &go] {
                            one.Come();
                            go.Await();
                          })
                     .has_value());
    one.Await();
  }
  FakeReply reply;
  EXPECT_FALSE(admission_->Do(1 << 20, [] {}).has_value());
  Begin(&reply, Plan(">hello ", 6));
  go.Come();
  EXPECT_FALSE(reply.AwaitEnd().error.has_value());
  admission_.reset();  // its threads look at what stands here
}

TEST_F(AdmissionTest, LeavesNothingBehindAfterManyCallsOfWhichAThirdIsCancelled) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Start({.slots = 4, .max_waiting = 64, .max_waiting_prompt_tokens = 100000});
  constexpr int kThreads = 4, kCallsEach = 250;
  std::vector<std::thread> clients;
  for (unsigned t = 0; t < kThreads; ++t) {
    clients.emplace_back([this, t, seed] {
      std::mt19937 rng(seed + t);
      for (int i = 0; i < kCallsEach; ++i) {
        FakeReply reply;
        const int tokens = static_cast<int>(1 + rng() % 20);
        const RequestId id = Begin(&reply, Plan(">" + std::string(1 + rng() % 60, 'y'), tokens));
        const bool cancels = rng() % 3 == 0;
        if (cancels) delivery_->CutOff(id, Cut::kCancelled);
        const Ending ending = reply.AwaitEnd();
        if (ending.error.has_value()) {
          EXPECT_TRUE(cancels);
          EXPECT_EQ(ending.error->reason, "CANCELLED");
        } else {
          EXPECT_EQ(reply.num_tokens(), tokens);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(delivery_->open_calls(), 0);
  EXPECT_EQ(engine_->waiting().requests, 0);
}

}  // namespace
}  // namespace eddy
