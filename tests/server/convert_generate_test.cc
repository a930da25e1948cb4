// Proves that what passes the checks reaches the engine's request, and in which order refusals are
// told: unknown model, missing features, faults.
#include "server/convert_generate.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/convert_fixture.h"

namespace eddy {
namespace {

TEST_F(ConvertTest, RefusesTextForAModelWithoutTokenizer) {
  model_.tokenizer = nullptr;
  EXPECT_EQ(Read(base_)->reason, "NO_TOKENIZER");
  v1::GenerateRequest ids;
  ids.mutable_token_ids()->add_ids(1);
  EXPECT_FALSE(Read(ids).has_value());
  EXPECT_FALSE(call_.plan.wants_text);
  ids.mutable_stopping()->add_stop_strings("x");
  EXPECT_EQ(Read(ids)->reason, "NO_TOKENIZER");
  ids.mutable_stopping()->clear_stop_strings();
  ids.mutable_response()->set_prompt_text(true);
  EXPECT_EQ(Read(ids)->reason, "NO_TOKENIZER");
}

TEST_F(ConvertTest, KnowsTheModelByNameAndByDefault) {
  base_.set_model("tiny");
  EXPECT_FALSE(Read(base_).has_value());
  base_.set_model("huge");
  const std::optional<Error> error = Read(base_);
  EXPECT_EQ(error->code, absl::StatusCode::kNotFound);
  EXPECT_EQ(error->reason, "MODEL_NOT_FOUND");
  EXPECT_EQ(error->missing->name, "huge");
}

TEST_F(ConvertTest, NamesEachFeatureThatIsNotOffered) {
  using R = v1::GenerateRequest*;
  const std::vector<std::pair<std::function<void(R)>, std::string>> cases = {
      {[](R r) { r->mutable_session()->set_keep(true); }, "sessions"},
      {[](R r) { r->mutable_session()->mutable_start()->set_session_id("s"); }, "sessions"},
      {[](R r) { r->mutable_prefix_cache()->add_store_at(1); }, "prefix_cache.store_at"},
      {[](R r) { r->mutable_sampling()->set_num_sequences(2); }, "sampling.num_sequences"},
      {[](R r) { r->mutable_decoding()->set_json_schema("{}"); }, "decoding.json_schema"},
      {[](R r) { r->mutable_decoding()->set_regex("a"); }, "decoding.regex"},
      {[](R r) { r->mutable_decoding()->mutable_choices()->add_texts("a"); }, "decoding.choices"},
      {[](R r) { r->mutable_decoding()->set_grammar("root"); }, "decoding.grammar"},
      {[](R r) { r->mutable_decoding()->set_json_object(true); }, "decoding.json_object"},
      {[](R r) { r->mutable_response()->set_state_stats(true); }, "response.state_stats"},
  };
  for (const auto& [change, feature] : cases) {
    SCOPED_TRACE(feature);
    v1::GenerateRequest request = base_;
    change(&request);
    const std::optional<Error> error = Read(request);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code, absl::StatusCode::kUnimplemented);
    EXPECT_EQ(error->reason, "FEATURE_DISABLED");
    EXPECT_EQ(error->metadata[0].second, feature);
  }
  model_.info.record_bytes = 256;  // now there is a state to look at
  base_.mutable_response()->set_state_stats(true);
  EXPECT_FALSE(Read(base_).has_value());
  EXPECT_TRUE(call_.plan.request.report.state_stats);
  base_.mutable_session();
  base_.mutable_prefix_cache()->set_bypass(true);
  base_.mutable_decoding()->set_json_object(false);
  EXPECT_FALSE(Read(base_).has_value());
}

TEST_F(ConvertTest, HandsEverythingOnToTheEngine) {
  base_.set_priority(5);
  v1::SamplingOptions* const sampling = base_.mutable_sampling();
  sampling->set_temperature(0.5f);
  sampling->set_top_p(0.9f);
  sampling->set_top_k(40);
  sampling->set_min_p(0.1f);
  sampling->set_typical_p(0.8f);
  sampling->set_seed(77);
  v1::DecodingOptions* const decoding = base_.mutable_decoding();
  decoding->set_repetition_penalty(1.1f);
  decoding->set_frequency_penalty(0.2f);
  decoding->set_presence_penalty(0.3f);
  (*decoding->mutable_logit_bias())[9] = 2;
  decoding->add_allowed_token_ids(9);
  decoding->add_banned_token_ids(8);
  v1::StoppingOptions* const stopping = base_.mutable_stopping();
  stopping->set_max_new_tokens(10);
  stopping->set_min_new_tokens(2);
  stopping->add_stop_strings("x");
  stopping->set_include_stop_string(true);
  stopping->add_stop_token_ids(7);
  stopping->mutable_time_limit()->set_seconds(3);
  base_.mutable_response()->set_logprobs(true);
  base_.mutable_response()->set_top_logprobs(2);
  base_.mutable_response()->set_uncertainty(true);
  ASSERT_FALSE(Read(base_).has_value());
  const Request& request = call_.plan.request;
  EXPECT_EQ(request.priority, 5);
  EXPECT_EQ(request.max_new_tokens, 10);
  EXPECT_EQ(request.eos_tokens, std::vector<int32_t>{kEos});
  EXPECT_EQ(request.stop_tokens, std::vector<int32_t>{7});
  EXPECT_EQ(request.time_limit, times_.arrival + absl::Seconds(3));
  EXPECT_EQ(request.deadline, times_.arrival + absl::Minutes(10));
  EXPECT_FALSE(call_.plan.client_deadline);
  EXPECT_TRUE(request.report.logprobs);
  EXPECT_EQ(request.report.top, 2);
  EXPECT_TRUE(request.report.uncertainty);
  EXPECT_EQ(request.report.first_scored, -1);
  const SamplingParams& params = request.sampling;
  EXPECT_EQ(params.temperature, 0.5f);
  EXPECT_EQ(params.top_p, 0.9f);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.min_p, 0.1f);
  EXPECT_EQ(params.typical_p, 0.8f);
  EXPECT_EQ(params.seed, 77u);
  EXPECT_EQ(call_.shape.seed, 77u);
  EXPECT_EQ(params.repetition_penalty, 1.1f);
  EXPECT_EQ(params.frequency_penalty, 0.2f);
  EXPECT_EQ(params.presence_penalty, 0.3f);
  EXPECT_EQ(params.logit_bias, (std::vector<std::pair<int32_t, float>>{{9, 2.0f}}));
  EXPECT_EQ(params.allowed, std::vector<int32_t>{9});
  EXPECT_EQ(params.banned, std::vector<int32_t>{8});
  EXPECT_EQ(params.min_new_tokens, 2);
  EXPECT_EQ(params.ending_tokens, (std::vector<int32_t>{kEos, 7}));
  EXPECT_EQ(call_.plan.stop_strings, std::vector<std::string>{"x"});
  EXPECT_TRUE(call_.plan.include_stop_string);
}

TEST_F(ConvertTest, TakesTheDefaultsOfAnEmptyRequest) {
  ASSERT_FALSE(Read(base_).has_value());
  const uint64_t seed = call_.shape.seed;
  EXPECT_EQ(call_.plan.request.max_new_tokens, 50);
  EXPECT_EQ(call_.plan.request.sampling.temperature, 1.0f);
  EXPECT_EQ(call_.plan.request.time_limit, absl::InfiniteFuture());
  EXPECT_TRUE(call_.plan.wants_text);
  EXPECT_FALSE(call_.plan.wants_tokens);
  ASSERT_FALSE(Read(base_).has_value());
  EXPECT_NE(call_.shape.seed, seed);  // made anew for each call
}

TEST_F(ConvertTest, IgnoresEosWhenAsked) {
  base_.mutable_stopping()->set_ignore_eos(true);
  ASSERT_FALSE(Read(base_).has_value());
  EXPECT_TRUE(call_.plan.request.eos_tokens.empty());
  EXPECT_TRUE(call_.plan.request.sampling.ending_tokens.empty());
}

TEST_F(ConvertTest, TakesTheClientsDeadlineIfItIsSooner) {
  const CallTimes times{.arrival = times_.arrival,
                        .client_deadline = times_.arrival + absl::Seconds(5)};
  ASSERT_FALSE(ReadGenerateRequest(base_, model_, times, {}, &call_).has_value());
  EXPECT_EQ(call_.plan.request.deadline, times.client_deadline);
  EXPECT_TRUE(call_.plan.client_deadline);
}

TEST_F(ConvertTest, KeepsFaultsThatWereFoundBefore) {
  Faults faults;
  faults.Add("request_id", "request_id is wrong");
  base_.set_priority(101);
  const std::optional<Error> error =
      ReadGenerateRequest(base_, model_, times_, std::move(faults), &call_);
  EXPECT_EQ(error->faults.size(), 2u);
}

TEST_F(ConvertTest, AsksTheEngineToScoreFromTheFirstTokenOn) {
  score_.set_first_token(1);
  score_.set_top_logprobs(3);
  score_.add_next_token_ids(9);
  score_.set_uncertainty(true);
  ASSERT_FALSE(Read(score_).has_value());
  EXPECT_EQ(call_.plan.request.max_new_tokens, 0);
  EXPECT_EQ(call_.plan.request.report.first_scored, 1);
  EXPECT_EQ(call_.plan.request.report.top, 3);
  EXPECT_TRUE(call_.plan.request.report.uncertainty);
  EXPECT_EQ(call_.plan.request.report.next_tokens, std::vector<int32_t>{9});
}

}  // namespace
}  // namespace eddy
