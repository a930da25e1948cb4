// Proves what a client of a real server reads: streams and unary answers that agree, endings,
// stop strings, reports per token, prompts, scores, tokens and ids.
#include <gtest/gtest.h>

#include <random>

#include "tests/testing/running_server.h"

namespace eddy {
namespace {

class GenerateTest : public ::testing::Test {
 protected:
  RunningServer server_;
};

TEST_F(GenerateTest, StreamsTheAnswerWithThePromptInTheFirstMessage) {
  const StreamResult result = ReadStream(&server_.generation(), EchoRequest("hello ", 12));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.text, "hello hello ");
  EXPECT_EQ(result.num_tokens, 12);
  EXPECT_EQ(result.prompt_infos, 1);
  EXPECT_TRUE(result.prompt_info_first);
  ASSERT_TRUE(result.finish.has_value());
  EXPECT_EQ(result.finish->reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(result.finish->usage().generated_tokens(), 12u);
  EXPECT_EQ(result.finish->usage().prompt_tokens(), 7u);
  EXPECT_EQ(result.initial_metadata, 0u);
}

TEST_F(GenerateTest, AnswersUnaryWithTheSameTextAsTheStream) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const std::string alphabet[] = {"a", "b", "é", "漢", "🙂", "\n"};
  for (int i = 0; i < 100; ++i) {
    std::string text;
    for (unsigned k = 0; k < 1 + rng() % 12; ++k) text += alphabet[rng() % 6];
    v1::GenerateRequest request = EchoRequest(text, static_cast<int>(1 + rng() % 40));
    if (rng() % 2 == 0) request.mutable_stopping()->add_stop_strings(alphabet[rng() % 6] + "a");
    request.mutable_stopping()->set_include_stop_string(rng() % 2 == 0);
    const StreamResult streamed = ReadStream(&server_.generation(), request);
    v1::GenerateResponse unary;
    ASSERT_TRUE(server_.Generate(request, &unary).ok());
    ASSERT_TRUE(streamed.status.ok());
    ASSERT_EQ(unary.outputs_size(), 1);
    EXPECT_EQ(unary.outputs(0).text(), streamed.text);
    EXPECT_EQ(static_cast<int>(unary.outputs(0).num_tokens()), streamed.num_tokens);
    EXPECT_EQ(unary.outputs(0).finish_info().reason(), streamed.finish->reason());
  }
}

TEST_F(GenerateTest, EndsAtEosAndStopTokensAndSaysWhich) {
  v1::GenerateRequest request;
  for (const uint32_t id : {1u, 'a' + 0u, 'b' + 0u, kEchoEos + 0u}) {
    request.mutable_token_ids()->add_ids(id);
  }
  request.mutable_response()->set_token_ids(true);
  v1::GenerateResponse eos;
  ASSERT_TRUE(server_.Generate(request, &eos).ok());
  EXPECT_EQ(eos.outputs(0).text(), "ab");
  EXPECT_EQ(eos.outputs(0).token_ids_size(), 3);
  EXPECT_EQ(eos.outputs(0).finish_info().reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(eos.outputs(0).finish_info().stop_token_id(), static_cast<uint32_t>(kEchoEos));
  request.mutable_stopping()->add_stop_token_ids('b');
  v1::GenerateResponse stopped;
  ASSERT_TRUE(server_.Generate(request, &stopped).ok());
  EXPECT_EQ(stopped.outputs(0).text(), "a");
  EXPECT_EQ(stopped.outputs(0).finish_info().reason(), v1::FINISH_REASON_STOP_TOKEN);
  request.mutable_stopping()->clear_stop_token_ids();
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_stopping()->set_max_new_tokens(5);
  v1::GenerateResponse ignored;
  ASSERT_TRUE(server_.Generate(request, &ignored).ok());
  EXPECT_EQ(ignored.outputs(0).text(), "abab");  // EOS has no text
  EXPECT_EQ(ignored.outputs(0).finish_info().reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(GenerateTest, EndsAtAStopStringAcrossTokens) {
  v1::GenerateRequest request = EchoRequest("one STOP two", 100);
  request.mutable_stopping()->add_stop_strings("STOP");
  request.mutable_response()->set_timings(true);
  v1::GenerateResponse response;
  ASSERT_TRUE(server_.Generate(request, &response).ok());
  const v1::SequenceOutput& output = response.outputs(0);
  EXPECT_EQ(output.text(), "one ");
  EXPECT_EQ(output.num_tokens(), 8u);
  EXPECT_EQ(output.finish_info().reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(output.finish_info().stop_string(), "STOP");
  EXPECT_EQ(output.finish_info().usage().generated_tokens(), 8u);
  EXPECT_GT(output.finish_info().timings().decode_steps(), 0u);
}

TEST_F(GenerateTest, ReportsLogprobsAndEntropyPerToken) {
  v1::GenerateRequest request = EchoRequest("ab", 4);
  v1::ResponseOptions* const want = request.mutable_response();
  want->set_token_ids(true);
  want->set_logprobs(true);
  want->set_top_logprobs(3);
  want->set_uncertainty(true);
  want->set_state_stats(true);
  want->set_prompt_logprobs(true);
  want->set_prompt_text(true);
  want->set_prompt_token_ids(true);
  request.mutable_sampling()->set_seed(99);
  v1::GenerateResponse response;
  ASSERT_TRUE(server_.Generate(request, &response).ok());
  const v1::SequenceOutput& output = response.outputs(0);
  ASSERT_EQ(output.logprobs_size(), 4);
  EXPECT_EQ(output.logprobs(0).token_id(), static_cast<uint32_t>('a'));
  EXPECT_EQ(output.logprobs(0).logprob(), EchoExecutor::LogprobOf('a'));
  EXPECT_EQ(output.logprobs(0).top_size(), 3);
  EXPECT_EQ(output.uncertainty(3).entropy(), 0.25f);
  EXPECT_EQ(output.uncertainty(3).delta_residual(), 0.5f);
  EXPECT_FALSE(output.uncertainty(3).has_kalman_spread());
  ASSERT_EQ(output.finish_info().state_stats_size(), 1);
  EXPECT_EQ(output.finish_info().state_stats(0).layer_type(), "echo");
  EXPECT_EQ(output.finish_info().state_stats(0).elements(), 3u);
  EXPECT_EQ(output.finish_info().seed(), 99u);
  const v1::PromptInfo& prompt = response.prompt_info();
  EXPECT_EQ(prompt.prompt_text(), ">ab");
  EXPECT_EQ(prompt.prompt_token_ids_size(), 3);
  ASSERT_EQ(prompt.prompt_logprobs_size(), 3);
  EXPECT_FALSE(prompt.prompt_logprobs(0).has_logprob());
  EXPECT_EQ(prompt.prompt_logprobs(1).logprob(), EchoExecutor::LogprobOf('a'));
}

TEST_F(GenerateTest, SendsNoTextWhenNoneIsWanted) {
  v1::GenerateRequest request = EchoRequest("ab", 4);
  request.mutable_response()->set_omit_text(true);
  request.mutable_response()->set_token_ids(true);
  v1::GenerateResponse response;
  ASSERT_TRUE(server_.Generate(request, &response).ok());
  EXPECT_EQ(response.outputs(0).text(), "");
  EXPECT_EQ(response.outputs(0).token_ids_size(), 4);
}

TEST_F(GenerateTest, NamesTheCallInTrailersAndPromptInfo) {
  v1::GenerateRequest request = EchoRequest("ab", 2);
  request.set_request_id("call-1");
  EXPECT_EQ(ReadStream(&server_.generation(), request).request_id, "call-1");
  request.clear_request_id();
  grpc::ClientContext named;
  named.AddMetadata("x-request-id", "from-metadata");
  EXPECT_EQ(ReadStream(&server_.generation(), request, &named).request_id, "from-metadata");
  const StreamResult unnamed = ReadStream(&server_.generation(), request);
  EXPECT_EQ(unnamed.request_id.size(), 36u);
  request.set_priority(1000);
  const StreamResult refused = ReadStream(&server_.generation(), request);
  EXPECT_FALSE(refused.status.ok());
  EXPECT_EQ(refused.request_id.size(), 36u);
  EXPECT_EQ(refused.initial_metadata, 0u);
}

TEST_F(GenerateTest, ScoresAPrompt) {
  v1::ScoreRequest request;
  request.set_text("abcd");
  request.set_first_token(2);
  request.set_top_logprobs(2);
  request.add_next_token_ids('z');
  v1::ScoreResponse response;
  ASSERT_TRUE(server_.Score(request, &response).ok());
  ASSERT_EQ(response.logprobs_size(), 2);
  EXPECT_EQ(response.logprobs(0).token(), "c");
  EXPECT_EQ(response.logprobs(1).top_size(), 2);
  EXPECT_EQ(response.scored_tokens(), 2u);
  EXPECT_DOUBLE_EQ(response.sum_logprob(), static_cast<double>(EchoExecutor::LogprobOf('c')) +
                                               static_cast<double>(EchoExecutor::LogprobOf('d')));
  ASSERT_EQ(response.next_size(), 3);
  EXPECT_EQ(response.next(2).token(), "z");
  EXPECT_EQ(response.prompt_info().prompt_tokens(), 4u);
  EXPECT_GT(response.timings().prefill_steps(), 0u);
}

TEST_F(GenerateTest, ScoresOnlyWhatComesNextWhenAsked) {
  v1::ScoreRequest request;
  request.set_text("abcd");
  request.set_first_token(4);
  request.add_next_token_ids('q');
  v1::ScoreResponse response;
  ASSERT_TRUE(server_.Score(request, &response).ok());
  EXPECT_EQ(response.logprobs_size(), 0);
  EXPECT_EQ(response.scored_tokens(), 0u);
  EXPECT_EQ(response.next_size(), 1);
}

TEST_F(GenerateTest, TokenizesAndDetokenizes) {
  grpc::ClientContext there, back;
  v1::TokenizeRequest text;
  text.set_text("héllo");
  text.set_tokens(true);
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(server_.generation().Tokenize(&there, text, &tokens).ok());
  EXPECT_EQ(tokens.token_ids_size(), 6);
  EXPECT_EQ(tokens.tokens_size(), 6);
  v1::DetokenizeRequest ids;
  *ids.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse again;
  ASSERT_TRUE(server_.generation().Detokenize(&back, ids, &again).ok());
  EXPECT_EQ(again.text(), "héllo");
  EXPECT_EQ(back.GetServerTrailingMetadata().count("x-request-id"), 1u);
}

TEST_F(GenerateTest, TellsOfItsModelAndItsLoad) {
  grpc::ClientContext list_context, get_context;
  v1::ListModelsResponse list;
  ASSERT_TRUE(server_.models().ListModels(&list_context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_EQ(list.models(0).name(), "echo");
  v1::GetModelRequest request;
  request.set_model("echo");
  v1::GetModelResponse model;
  ASSERT_TRUE(server_.models().GetModel(&get_context, request, &model).ok());
  EXPECT_EQ(model.model().vocab_size(), static_cast<uint32_t>(kEchoVocab));
  EXPECT_EQ(model.model().limits().max_sequences(), 4u);
  v1::GenerateResponse response;
  ASSERT_TRUE(server_.Generate(EchoRequest("a", 3), &response).ok());
  const v1::GetServerStatusResponse status = server_.Status();
  EXPECT_EQ(status.state(), v1::SERVER_STATE_SERVING);
  EXPECT_EQ(status.device().backend(), "cpu");
  ASSERT_EQ(status.loads_size(), 1);
  EXPECT_EQ(status.loads(0).slots_total(), 4u);
  EXPECT_EQ(status.loads(0).waiting_requests(), 0u);
  EXPECT_TRUE(status.loads(0).has_last_step_age());
}

TEST(GenerateWithoutTokenizer, TakesAndGivesTokenIds) {
  RunningServer server([](ServerSetting* setting) { setting->has_tokenizer = false; });
  v1::GenerateRequest request;
  for (const uint32_t id : {1u, 5u, 6u}) request.mutable_token_ids()->add_ids(id);
  request.mutable_stopping()->set_max_new_tokens(4);
  request.mutable_response()->set_token_ids(true);
  v1::GenerateResponse response;
  ASSERT_TRUE(server.Generate(request, &response).ok());
  EXPECT_EQ(response.outputs(0).text(), "");
  EXPECT_EQ(response.outputs(0).token_ids_size(), 4);
  EXPECT_EQ(response.outputs(0).token_ids(3), 6u);
}

}  // namespace
}  // namespace eddy
