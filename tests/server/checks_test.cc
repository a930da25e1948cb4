// Proves that every field of GenerateRequest and ScoreRequest is checked against exactly its
// bounds, and that all faults are told at once.
#include "server/checks.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/convert_fixture.h"

namespace eddy {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST_F(ConvertTest, ChecksTheBoundsOfSampling) {
  auto sampling = [](auto set) {
    return [set](v1::GenerateRequest* request) { set(request->mutable_sampling()); };
  };
  using S = v1::SamplingOptions*;
  Check({
      {sampling([](S s) { s->set_temperature(0); }), ""},
      {sampling([](S s) { s->set_temperature(10); }), ""},
      {sampling([](S s) { s->set_temperature(-0.001f); }), "sampling.temperature"},
      {sampling([](S s) { s->set_temperature(10.001f); }), "sampling.temperature"},
      {sampling([](S s) { s->set_temperature(kNan); }), "sampling.temperature"},
      {sampling([](S s) { s->set_temperature(kInf); }), "sampling.temperature"},
      {sampling([](S s) { s->set_top_p(1); }), ""},
      {sampling([](S s) { s->set_top_p(1e-6f); }), ""},
      {sampling([](S s) { s->set_top_p(0); }), "sampling.top_p"},
      {sampling([](S s) { s->set_top_p(1.001f); }), "sampling.top_p"},
      {sampling([](S s) { s->set_top_p(kNan); }), "sampling.top_p"},
      {sampling([](S s) { s->set_top_k(kVocab); }), ""},
      {sampling([](S s) { s->set_top_k(kVocab + 1); }), "sampling.top_k"},
      {sampling([](S s) { s->set_top_k(4294967295u); }), "sampling.top_k"},
      {sampling([](S s) { s->set_min_p(0.999f); }), ""},
      {sampling([](S s) { s->set_min_p(1); }), "sampling.min_p"},
      {sampling([](S s) { s->set_min_p(-0.1f); }), "sampling.min_p"},
      {sampling([](S s) { s->set_min_p(kNan); }), "sampling.min_p"},
      {sampling([](S s) { s->set_typical_p(1); }), ""},
      {sampling([](S s) { s->set_typical_p(0); }), "sampling.typical_p"},
      {sampling([](S s) { s->set_typical_p(kNan); }), "sampling.typical_p"},
      {sampling([](S s) { s->set_num_sequences(1); }), ""},
  });
}

TEST_F(ConvertTest, ChecksTheBoundsOfDecoding) {
  auto decoding = [](auto set) {
    return [set](v1::GenerateRequest* request) { set(request->mutable_decoding()); };
  };
  using D = v1::DecodingOptions*;
  Check({
      {decoding([](D d) { d->set_repetition_penalty(0.1f); }), ""},
      {decoding([](D d) { d->set_repetition_penalty(10); }), ""},
      {decoding([](D d) { d->set_repetition_penalty(0.09f); }), "decoding.repetition_penalty"},
      {decoding([](D d) { d->set_repetition_penalty(10.1f); }), "decoding.repetition_penalty"},
      {decoding([](D d) { d->set_repetition_penalty(kNan); }), "decoding.repetition_penalty"},
      {decoding([](D d) { d->set_frequency_penalty(-2); }), ""},
      {decoding([](D d) { d->set_frequency_penalty(2.1f); }), "decoding.frequency_penalty"},
      {decoding([](D d) { d->set_frequency_penalty(kInf); }), "decoding.frequency_penalty"},
      {decoding([](D d) { d->set_presence_penalty(2); }), ""},
      {decoding([](D d) { d->set_presence_penalty(-2.1f); }), "decoding.presence_penalty"},
      {decoding([](D d) { (*d->mutable_logit_bias())[kVocab - 1] = -100; }), ""},
      {decoding([](D d) { (*d->mutable_logit_bias())[kVocab] = 1; }), "decoding.logit_bias[300]"},
      {decoding([](D d) { (*d->mutable_logit_bias())[5] = 101; }), "decoding.logit_bias[5]"},
      {decoding([](D d) { (*d->mutable_logit_bias())[5] = kNan; }), "decoding.logit_bias[5]"},
      {decoding([](D d) { d->add_allowed_token_ids(kVocab - 1); }), ""},
      {decoding([](D d) { d->add_allowed_token_ids(kVocab); }), "decoding.allowed_token_ids[0]"},
      {decoding([](D d) { d->add_banned_token_ids(kVocab); }), "decoding.banned_token_ids[0]"},
      {decoding([](D d) {
         for (int i = 0; i < 65537; ++i) d->add_banned_token_ids(1);
       }),
       "decoding.banned_token_ids"},
      {decoding([](D d) {
         d->add_allowed_token_ids(7);
         d->add_banned_token_ids(7);
       }),
       "decoding.allowed_token_ids"},
      {decoding([](D d) {
         for (uint32_t i = 0; i < kVocab; ++i) d->add_banned_token_ids(i);
       }),
       "decoding.banned_token_ids"},
  });
}

TEST_F(ConvertTest, ChecksTheBoundsOfStopping) {
  auto stopping = [](auto set) {
    return [set](v1::GenerateRequest* request) { set(request->mutable_stopping()); };
  };
  using S = v1::StoppingOptions*;
  Check({
      {stopping([](S s) { s->set_max_new_tokens(500); }), ""},
      {stopping([](S s) { s->set_max_new_tokens(501); }), "stopping.max_new_tokens"},
      {stopping([](S s) { s->set_max_new_tokens(4294967295u); }), "stopping.max_new_tokens"},
      {stopping([](S s) { s->set_min_new_tokens(50); }), ""},
      {stopping([](S s) { s->set_min_new_tokens(51); }), "stopping.min_new_tokens"},
      {stopping([](S s) {
         for (int i = 0; i < 16; ++i) s->add_stop_strings("x");
       }),
       ""},
      {stopping([](S s) {
         for (int i = 0; i < 17; ++i) s->add_stop_strings("x");
       }),
       "stopping.stop_strings"},
      {stopping([](S s) { s->add_stop_strings(std::string(256, 'x')); }), ""},
      {stopping([](S s) { s->add_stop_strings(""); }), "stopping.stop_strings[0]"},
      {stopping([](S s) { s->add_stop_strings(std::string(257, 'x')); }),
       "stopping.stop_strings[0]"},
      {stopping([](S s) { s->add_stop_token_ids(kVocab); }), "stopping.stop_token_ids[0]"},
      {stopping([](S s) {
         for (int i = 0; i < 65; ++i) s->add_stop_token_ids(1);
       }),
       "stopping.stop_token_ids"},
      {stopping([](S s) { s->mutable_time_limit()->set_nanos(1000000); }), ""},
      {stopping([](S s) { s->mutable_time_limit()->set_nanos(999999); }), "stopping.time_limit"},
      {stopping([](S s) { s->mutable_time_limit(); }), "stopping.time_limit"},
      {stopping([](S s) { s->mutable_time_limit()->set_seconds(600); }), ""},
      {stopping([](S s) { s->mutable_time_limit()->set_seconds(601); }), "stopping.time_limit"},
      {stopping(
           [](S s) { s->mutable_time_limit()->set_seconds(std::numeric_limits<int64_t>::min()); }),
       "stopping.time_limit"},
      {stopping([](S s) {
         s->mutable_time_limit()->set_seconds(1);
         s->mutable_time_limit()->set_nanos(-1);
       }),
       "stopping.time_limit"},
  });
}

TEST_F(ConvertTest, ChecksTheBoundsOfTheRest) {
  using R = v1::GenerateRequest*;
  Check({
      {[](R r) { r->set_priority(100); }, ""},
      {[](R r) { r->set_priority(-100); }, ""},
      {[](R r) { r->set_priority(101); }, "priority"},
      {[](R r) { r->set_priority(-101); }, "priority"},
      {[](R r) { r->set_truncate_prompt_tokens(1000); }, ""},
      {[](R r) { r->set_truncate_prompt_tokens(1001); }, "truncate_prompt_tokens"},
      {[](R r) { r->mutable_response()->set_top_logprobs(1); }, "response.top_logprobs"},
      {[](R r) {
         r->mutable_response()->set_logprobs(true);
         r->mutable_response()->set_top_logprobs(21);
         r->mutable_stopping()->set_max_new_tokens(1);
       },
       "response.top_logprobs"},
      {[](R r) {
         r->mutable_response()->set_prompt_logprobs(true);
         r->mutable_response()->set_top_logprobs(20);
         r->mutable_stopping()->set_max_new_tokens(1);
       },
       ""},
      {[](R r) {
         r->mutable_response()->set_omit_text(true);
         r->mutable_stopping()->add_stop_strings("x");
       },
       "response.omit_text"},
      {[](R r) { r->mutable_token_ids()->add_ids(kVocab - 1); }, ""},
      {[](R r) {
         r->mutable_token_ids()->add_ids(0);
         r->mutable_token_ids()->add_ids(kVocab);
       },
       "token_ids.ids[1]"},
      {[](R r) { r->set_text("\xff"); }, "text"},
      {[](R r) {
         // The prompt is counted only when it is encoded; ids are counted at once.
         for (int i = 0; i < 2; ++i) r->mutable_token_ids()->add_ids(1);
         r->mutable_response()->set_logprobs(true);
         r->mutable_stopping()->set_max_new_tokens(101);
       },
       "response"},
      {[](R r) {
         r->mutable_token_ids()->add_ids(1);
         r->mutable_response()->set_logprobs(true);
         r->mutable_stopping()->set_max_new_tokens(100);
       },
       ""},
  });
}

TEST_F(ConvertTest, TellsAllFaultsAtOnce) {
  base_.clear_text();
  base_.set_priority(1000);
  base_.mutable_sampling()->set_temperature(kNan);
  base_.mutable_sampling()->set_top_p(2);
  base_.mutable_stopping()->set_max_new_tokens(9000);
  base_.mutable_stopping()->add_stop_token_ids(kVocab);
  base_.mutable_decoding()->set_presence_penalty(3);
  const std::optional<Error> error = Read(base_);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->reason, "INVALID_FIELD");
  EXPECT_EQ(error->faults.size(), 7u);
  EXPECT_NE(error->message.find("stopping.max_new_tokens is 9000; it must be 0 to 500"),
            std::string::npos);
  EXPECT_NE(error->message.find("sampling.temperature is nan; it must be in [0, 10]"),
            std::string::npos);
}

// Rounded to a few digits, a number just beyond a bound would read as the bound itself.
TEST_F(ConvertTest, ShowsANumberAsItIs) {
  base_.mutable_sampling()->set_top_p(1.0000001f);
  base_.mutable_sampling()->set_temperature(-0.3f);
  const std::optional<Error> error = Read(base_);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->message,
            "sampling.temperature is -0.3; it must be in [0, 10]; "
            "sampling.top_p is 1.0000001; it must be in (0, 1]");
}

TEST_F(ConvertTest, DescribesOnlyTheFirstOfManyWrongIds) {
  base_.clear_text();
  for (int i = 0; i < 500; ++i) base_.mutable_token_ids()->add_ids(4294967295u);
  const std::optional<Error> error = Read(base_);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->faults.size(), static_cast<size_t>(Faults::kDescribedPerList) + 1);
  EXPECT_EQ(error->faults.back().description, "token_ids.ids: 492 more ids are not below 300");
}

TEST_F(ConvertTest, ChecksTheBoundsOfScore) {
  using R = v1::ScoreRequest*;
  const std::vector<std::pair<std::function<void(R)>, std::string>> cases = {
      {[](R r) { r->set_first_token(2); }, ""},
      {[](R r) { r->set_first_token(3); }, "first_token"},
      {[](R r) { r->set_first_token(4294967295u); }, "first_token"},
      {[](R r) { r->set_top_logprobs(20); }, ""},
      {[](R r) { r->set_top_logprobs(21); }, "top_logprobs"},
      {[](R r) { r->add_next_token_ids(kVocab - 1); }, ""},
      {[](R r) { r->add_next_token_ids(kVocab); }, "next_token_ids[0]"},
      {[](R r) {
         for (int i = 0; i < 257; ++i) r->add_next_token_ids(1);
       },
       "next_token_ids"},
      {[](R r) { r->set_priority(101); }, "priority"},
      {[](R r) {
         r->set_top_logprobs(20);
         for (int i = 0; i < 3; ++i) r->mutable_token_ids()->add_ids(1);  // 5 * 21 entries
       },
       "first_token"},
      {[](R r) {
         r->set_top_logprobs(19);
         for (int i = 0; i < 3; ++i) r->mutable_token_ids()->add_ids(1);  // 5 * 20 entries
       },
       ""},
      {[](R r) {
         r->set_top_logprobs(19);
         r->set_uncertainty(true);  // 5 * 21
         for (int i = 0; i < 3; ++i) r->mutable_token_ids()->add_ids(1);
       },
       "first_token"},
      {[](R r) { r->clear_prompt(); }, "prompt"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    v1::ScoreRequest request = score_;
    cases[i].first(&request);
    const std::optional<Error> error = Read(request);
    if (cases[i].second.empty()) {
      EXPECT_FALSE(error.has_value());
    } else {
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->faults[0].field, cases[i].second);
    }
  }
}

}  // namespace
}  // namespace eddy
