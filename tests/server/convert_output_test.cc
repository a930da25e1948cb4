// Proves what clients read of what the engine made: outputs, finish, prompt, scores.
#include "server/convert_output.h"

#include <gtest/gtest.h>

#include <memory>

#include "server/text/byte_tokenizer.h"

namespace eddy {
namespace {

class ConvertOutputTest : public ::testing::Test {
 protected:
  ConvertOutputTest() {
    model_.name = "tiny";
    model_.info.vocab_size = 300;
    model_.tokenizer = std::make_unique<ByteTokenizer>(300, std::nullopt);
    shape_ = {.model = &model_, .request_id = "r1", .seed = 42};
  }
  static TokenReport Report(int32_t token) {
    return {.token = token, .logprob = -0.5f, .rank = 2, .entropy = 1.5f, .top = {{'x', -0.25f}}};
  }

  ServedModel model_;
  ResponseShape shape_;
};

TEST_F(ConvertOutputTest, SendsTextAndCountsAloneByDefault) {
  const Output output{.num_tokens = 2, .text = "ab", .tokens = {Report('a'), Report('b')}};
  const v1::GenerateResponse response = ToGenerateResponse(output, shape_);
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).text(), "ab");
  EXPECT_EQ(response.outputs(0).num_tokens(), 2u);
  EXPECT_EQ(response.outputs(0).token_ids_size(), 0);
  EXPECT_EQ(response.outputs(0).logprobs_size(), 0);
  EXPECT_FALSE(response.outputs(0).has_finish_info());
  EXPECT_FALSE(response.has_prompt_info());
}

TEST_F(ConvertOutputTest, SendsWhatWasAskedForPerToken) {
  shape_.token_ids = shape_.logprobs = shape_.uncertainty = true;
  const Output output{.num_tokens = 1, .text = "a", .tokens = {Report('a')}};
  const v1::GenerateResponse response = ToGenerateResponse(output, shape_);
  const v1::SequenceOutput& sequence = response.outputs(0);
  EXPECT_EQ(sequence.token_ids(0), static_cast<uint32_t>('a'));
  EXPECT_EQ(sequence.logprobs(0).logprob(), -0.5f);
  EXPECT_EQ(sequence.logprobs(0).rank(), 2u);
  EXPECT_EQ(sequence.logprobs(0).token(), "a");
  EXPECT_EQ(sequence.logprobs(0).top(0).token(), "x");
  EXPECT_EQ(sequence.uncertainty(0).entropy(), 1.5f);
  EXPECT_FALSE(sequence.uncertainty(0).has_kalman_readout_std());
  EXPECT_FALSE(sequence.uncertainty(0).has_delta_residual());
}

TEST_F(ConvertOutputTest, SendsWhatTheLayersSay) {
  shape_.uncertainty = true;
  TokenReport report = Report('a');
  report.kalman = KalmanReport{.precision = 3,
                               .least_precision = 1,
                               .deviation = 0.5f,
                               .surprise = 2,
                               .information = 0.25f,
                               .spread = 0.125f};
  report.delta = DeltaReport{.residual = 0.75f, .contraction = 4, .decay = 0.875f};
  const auto expect = [](const v1::TokenUncertainty& sent) {
    EXPECT_EQ(sent.kalman_precision_mean(), 3);
    EXPECT_EQ(sent.kalman_precision_min(), 1);
    EXPECT_EQ(sent.kalman_readout_std(), 0.5f);
    EXPECT_EQ(sent.kalman_surprise(), 2);
    EXPECT_EQ(sent.kalman_information(), 0.25f);
    EXPECT_EQ(sent.kalman_spread(), 0.125f);
    EXPECT_EQ(sent.delta_residual(), 0.75f);
    EXPECT_EQ(sent.delta_contraction(), 4);
    EXPECT_EQ(sent.delta_decay(), 0.875f);
  };
  const Output generated{.num_tokens = 1, .tokens = {report}};
  expect(ToGenerateResponse(generated, shape_).outputs(0).uncertainty(0));
  shape_.first_scored = 1;
  Output scored{.scored = {report}};
  scored.prompt = std::make_unique<PromptFacts>(PromptFacts{.prompt_tokens = 2});
  scored.finish = Finish{};
  expect(ToScoreResponse(scored, shape_).uncertainty(0));
}

TEST_F(ConvertOutputTest, SendsTheFiguresOfTheState) {
  Output output;
  output.finish = Finish{.state_stats = {{.layer = 2,
                                          .layer_type = "kalman",
                                          .field = "precision",
                                          .elements = 12,
                                          .nonfinite = 1,
                                          .min = -1,
                                          .max = 8,
                                          .mean = 2,
                                          .rms = 3}}};
  const v1::GenerateResponse response = ToGenerateResponse(output, shape_);
  ASSERT_EQ(response.outputs(0).finish_info().state_stats_size(), 1);
  const v1::StateFieldStats& stats = response.outputs(0).finish_info().state_stats(0);
  EXPECT_EQ(stats.layer(), 2u);
  EXPECT_EQ(stats.layer_type(), "kalman");
  EXPECT_EQ(stats.field(), "precision");
  EXPECT_EQ(stats.elements(), 12u);
  EXPECT_EQ(stats.nonfinite(), 1u);
  EXPECT_EQ(stats.min(), -1);
  EXPECT_EQ(stats.max(), 8);
  EXPECT_EQ(stats.mean(), 2);
  EXPECT_EQ(stats.rms(), 3);
}

TEST_F(ConvertOutputTest, TellsHowASequenceEnded) {
  shape_.timings = true;
  Output output;
  output.finish = Finish{.reason = FinishReason::kStopString, .stop_string = "END"};
  output.tally = {.prompt_tokens = 4,
                  .generated_tokens = 9,
                  .timings = {.queue = absl::Milliseconds(1500), .decode_steps = 9},
                  .total = absl::Seconds(2)};
  const v1::GenerateResponse response = ToGenerateResponse(output, shape_);
  const v1::FinishInfo& info = response.outputs(0).finish_info();
  EXPECT_EQ(info.reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(info.stop_string(), "END");
  EXPECT_EQ(info.usage().prompt_tokens(), 4u);
  EXPECT_EQ(info.usage().generated_tokens(), 9u);
  EXPECT_EQ(info.seed(), 42u);
  EXPECT_EQ(info.timings().queue().seconds(), 1);
  EXPECT_EQ(info.timings().queue().nanos(), 500000000);
  EXPECT_EQ(info.timings().decode_steps(), 9u);
  EXPECT_EQ(info.timings().total().seconds(), 2);
}

TEST_F(ConvertOutputTest, NamesTheTokenThatEndedASequence) {
  const std::pair<FinishReason, v1::FinishReason> reasons[] = {
      {FinishReason::kEos, v1::FINISH_REASON_EOS},
      {FinishReason::kStopToken, v1::FINISH_REASON_STOP_TOKEN}};
  for (const auto& [ours, theirs] : reasons) {
    Output output;
    output.finish = Finish{.reason = ours, .stop_token = 256};
    const v1::GenerateResponse response = ToGenerateResponse(output, shape_);
    EXPECT_EQ(response.outputs(0).finish_info().reason(), theirs);
    EXPECT_EQ(response.outputs(0).finish_info().stop_token_id(), 256u);
  }
}

TEST_F(ConvertOutputTest, TellsWhatBecameOfThePrompt) {
  shape_.first_scored = 0;
  Output output{.num_tokens = 1, .scored = {Report('b'), Report('c')}};
  output.prompt = std::make_unique<PromptFacts>(PromptFacts{
      .prompt_tokens = 3, .truncated_tokens = 7, .first_token = 'a', .text = "abc", .ids = {1}});
  const v1::GenerateResponse response = ToGenerateResponse(output, shape_);
  const v1::PromptInfo& info = response.prompt_info();
  EXPECT_EQ(info.request_id(), "r1");
  EXPECT_EQ(info.model(), "tiny");
  EXPECT_EQ(info.prompt_tokens(), 3u);
  EXPECT_EQ(info.truncated_tokens(), 7u);
  EXPECT_EQ(info.prompt_text(), "abc");
  EXPECT_EQ(info.prompt_token_ids_size(), 1);
  ASSERT_EQ(info.prompt_logprobs_size(), 3);
  EXPECT_FALSE(info.prompt_logprobs(0).has_logprob());
  EXPECT_EQ(info.prompt_logprobs(0).rank(), 0u);
  EXPECT_EQ(info.prompt_logprobs(0).token(), "a");
  EXPECT_EQ(info.prompt_logprobs(2).token(), "c");
}

TEST_F(ConvertOutputTest, ScoresTheTokensThatWereReported) {
  shape_.first_scored = 1;
  shape_.uncertainty = true;
  shape_.next_tokens = {'y', 'z'};
  Output output{
      .scored = {Report('b'), Report('c')}, .next = {-1.0f, -2.0f}, .next_top = {{'t', -0.125f}}};
  output.prompt = std::make_unique<PromptFacts>(PromptFacts{.prompt_tokens = 3});
  output.finish = Finish{};
  const v1::ScoreResponse response = ToScoreResponse(output, shape_);
  EXPECT_EQ(response.prompt_info().prompt_tokens(), 3u);
  EXPECT_EQ(response.prompt_info().prompt_logprobs_size(), 0);
  EXPECT_EQ(response.logprobs_size(), 2);
  EXPECT_DOUBLE_EQ(response.sum_logprob(), -1.0);
  EXPECT_EQ(response.scored_tokens(), 2u);
  EXPECT_EQ(response.uncertainty_size(), 2);
  ASSERT_EQ(response.next_size(), 3);
  EXPECT_EQ(response.next(0).token(), "t");
  EXPECT_EQ(response.next(1).token(), "y");
  EXPECT_EQ(response.next(2).logprob(), -2.0f);
  EXPECT_TRUE(response.has_timings());
}

TEST_F(ConvertOutputTest, AScoreFromTheStartHasAnEntryForTheFirstToken) {
  shape_.first_scored = 0;
  shape_.uncertainty = true;
  Output output{.scored = {Report('b')}};
  output.prompt =
      std::make_unique<PromptFacts>(PromptFacts{.prompt_tokens = 2, .first_token = 'a'});
  output.finish = Finish{};
  const v1::ScoreResponse response = ToScoreResponse(output, shape_);
  EXPECT_EQ(response.logprobs_size(), 2);
  EXPECT_FALSE(response.logprobs(0).has_logprob());
  EXPECT_EQ(response.uncertainty_size(), 2);
  EXPECT_EQ(response.scored_tokens(), 1u);
}

}  // namespace
}  // namespace eddy
