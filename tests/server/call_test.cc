// Proves what a call makes of its tokens: text that never cuts a character, stop strings across
// token borders, endings whose text is not sent, counts, and the prompt with the first output.
#include "server/call.h"

#include <gtest/gtest.h>

#include <string>

#include "server/text/byte_tokenizer.h"

namespace eddy {
namespace {

constexpr int32_t kEos = 256;

class CallTest : public ::testing::Test {
 protected:
  CallPlan TextPlan() const {
    CallPlan plan{.wants_text = true};
    plan.request.max_new_tokens = 100;
    plan.request.arrival = absl::UnixEpoch();
    return plan;
  }
  Call Make(const CallPlan& plan) const {
    return Call(plan, PromptFacts{.prompt_tokens = 5}, &tokenizer_);
  }
  static Output Feed(Call* call, int32_t token) {
    Event event{.token = TokenReport{.token = token}};
    return call->Take(&event);
  }
  // All bytes of `text`, then the end; everything joined.
  static Output Run(Call* call, const std::string& text, EndReason reason) {
    Output all;
    for (const char c : text) {
      if (call->stopped()) break;
      all.Append(Feed(call, static_cast<uint8_t>(c)));
    }
    all.Append(call->Close({.reason = reason}, absl::UnixEpoch() + absl::Seconds(3)));
    return all;
  }

  const ByteTokenizer tokenizer_{300, std::nullopt};
};

TEST_F(CallTest, SendsThePromptWithTheFirstTokenAndNeverAgain) {
  Call call = Make(TextPlan());
  Event scored{.scored = {TokenReport{.token = 7}}};
  EXPECT_TRUE(call.Take(&scored).empty());  // nothing is sent before the first token
  Output first = Feed(&call, 'a');
  ASSERT_NE(first.prompt, nullptr);
  EXPECT_EQ(first.prompt->prompt_tokens, 5);
  ASSERT_EQ(first.scored.size(), 1u);
  EXPECT_EQ(first.scored[0].token, 7);
  Output second = Feed(&call, 'b');
  EXPECT_EQ(second.prompt, nullptr);
  EXPECT_TRUE(second.scored.empty());
}

TEST_F(CallTest, SendsThePromptWithTheEndIfThereIsNoToken) {
  Call call = Make(TextPlan());
  const Output last = call.Close({.reason = EndReason::kTimeLimit}, absl::UnixEpoch());
  EXPECT_NE(last.prompt, nullptr);
  EXPECT_EQ(last.finish->reason, FinishReason::kTimeLimit);
}

TEST_F(CallTest, GivesFiguresOfTheStateUnlessAStopStringEndedIt) {
  const End end{.reason = EndReason::kLength, .state_stats = {{.field = "s"}}};
  Call whole = Make(TextPlan());
  EXPECT_EQ(whole.Close(end, absl::UnixEpoch()).finish->state_stats.size(), 1u);
  CallPlan plan = TextPlan();
  plan.stop_strings = {"b"};
  Call stopped = Make(plan);
  Feed(&stopped, 'b');
  ASSERT_TRUE(stopped.stopped());
  EXPECT_TRUE(stopped.Close(end, absl::UnixEpoch()).finish->state_stats.empty());
}

TEST_F(CallTest, CountsATokenAtOnceEvenIfItsTextIsHeldBack) {
  Call call = Make(TextPlan());
  Output half = Feed(&call, 0xc3);
  EXPECT_EQ(half.num_tokens, 1);
  EXPECT_EQ(half.text, "");
  Output whole = Feed(&call, 0xa9);
  EXPECT_EQ(whole.num_tokens, 1);
  EXPECT_EQ(whole.text, "é");
}

TEST_F(CallTest, TurnsAnUnfinishedCharacterIntoTheReplacementAtTheEnd) {
  Call call = Make(TextPlan());
  const Output all = Run(&call, "a\xc3", EndReason::kLength);
  EXPECT_EQ(all.text, "a\xef\xbf\xbd");
  EXPECT_EQ(all.tally.generated_tokens, 2);
}

TEST_F(CallTest, FindsAStopStringAcrossTokensAndSendsNoBeginningOfIt) {
  CallPlan plan = TextPlan();
  plan.stop_strings = {"END"};
  Call call = Make(plan);
  EXPECT_EQ(Feed(&call, 'x').text, "x");
  EXPECT_EQ(Feed(&call, 'E').text, "");
  EXPECT_EQ(Feed(&call, 'N').text, "");
  EXPECT_FALSE(call.stopped());
  Feed(&call, 'D');
  EXPECT_TRUE(call.stopped());
  const Output last = call.Close({.reason = EndReason::kCut}, absl::UnixEpoch());
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.finish->reason, FinishReason::kStopString);
  EXPECT_EQ(last.finish->stop_string, "END");
}

TEST_F(CallTest, IncludesTheStopStringWhenAsked) {
  CallPlan plan = TextPlan();
  plan.stop_strings = {"END"};
  plan.include_stop_string = true;
  Call call = Make(plan);
  EXPECT_EQ(Run(&call, "xEND", EndReason::kCut).text, "xEND");
}

TEST_F(CallTest, GivesBackWhatWasHeldWhenNoStopStringCame) {
  CallPlan plan = TextPlan();
  plan.stop_strings = {"END"};
  Call call = Make(plan);
  const Output all = Run(&call, "xEN", EndReason::kLength);
  EXPECT_EQ(all.text, "xEN");
  EXPECT_EQ(all.finish->reason, FinishReason::kLength);
}

TEST_F(CallTest, AStopStringWithTheLastTokenWinsOverTheLength) {
  CallPlan plan = TextPlan();
  plan.stop_strings = {"END"};
  Call call = Make(plan);
  EXPECT_EQ(Run(&call, "xEND", EndReason::kLength).finish->reason, FinishReason::kStopString);
}

TEST_F(CallTest, DropsTokensThatComeAfterAStopString) {
  CallPlan plan = TextPlan();
  plan.stop_strings = {"b"};
  Call call = Make(plan);
  Feed(&call, 'a');
  Feed(&call, 'b');
  EXPECT_TRUE(Feed(&call, 'c').empty());
  EXPECT_EQ(call.generated(), 2);
}

TEST_F(CallTest, LooksForStopStringsOnlyFromMinNewTokensOn) {
  CallPlan plan = TextPlan();
  plan.stop_strings = {"ab"};
  plan.request.sampling.min_new_tokens = 3;
  Call call = Make(plan);
  const Output all = Run(&call, "ababab", EndReason::kLength);
  EXPECT_EQ(all.finish->reason, FinishReason::kStopString);
  EXPECT_EQ(all.text, "ab");
  EXPECT_EQ(all.tally.generated_tokens, 4);
}

TEST_F(CallTest, DoesNotSendTheTextOfTheTokenThatEndedIt) {
  CallPlan plan = TextPlan();
  plan.special_tokens = true;
  plan.wants_tokens = true;
  plan.request.sampling.ending_tokens = {kEos};
  Call call = Make(plan);
  Output all = Feed(&call, 'a');
  all.Append(Feed(&call, kEos));
  all.Append(call.Close({.reason = EndReason::kEos}, absl::UnixEpoch()));
  EXPECT_EQ(all.text, "a");
  EXPECT_EQ(all.num_tokens, 2);
  ASSERT_EQ(all.tokens.size(), 2u);
  EXPECT_EQ(all.tokens[1].token, kEos);
  EXPECT_EQ(all.finish->stop_token, kEos);
}

TEST_F(CallTest, ShowsSpecialTokensOnlyWhenAsked) {
  CallPlan plan = TextPlan();
  Call hidden = Make(plan);
  EXPECT_EQ(Feed(&hidden, 257).text, "");
  plan.special_tokens = true;
  Call shown = Make(plan);
  EXPECT_EQ(Feed(&shown, 257).text, "<special_1>");
}

TEST_F(CallTest, WithoutTextKeepsTokensOnly) {
  CallPlan plan = TextPlan();
  plan.wants_text = false;
  plan.wants_tokens = true;
  Call call(plan, PromptFacts{}, nullptr);
  const Output all = Run(&call, "ab", EndReason::kLength);
  EXPECT_EQ(all.text, "");
  EXPECT_EQ(all.tokens.size(), 2u);
}

TEST_F(CallTest, TellsTheTimesOfTheEngineAndItsOwn) {
  Call call = Make(TextPlan());
  const End end{.reason = EndReason::kLength, .timings = {.queue = absl::Seconds(1)}};
  const Output last = call.Close(end, absl::UnixEpoch() + absl::Seconds(9));
  EXPECT_EQ(last.tally.timings.queue, absl::Seconds(1));
  EXPECT_EQ(last.tally.total, absl::Seconds(9));
}

}  // namespace
}  // namespace eddy
