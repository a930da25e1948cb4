// Proves the checks that need the number of prompt tokens, and what is kept of a prompt.
#include "server/prompt.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/server/convert_fixture.h"

namespace eddy {
namespace {

TEST_F(ConvertTest, RefusesEmptyAndTooLongPromptsByName) {
  v1::GenerateRequest empty;
  EXPECT_EQ(Read(empty)->reason, "PROMPT_EMPTY");
  empty.set_text("");
  EXPECT_EQ(Read(empty)->reason, "PROMPT_EMPTY");
  empty.mutable_token_ids();
  EXPECT_EQ(Read(empty)->reason, "PROMPT_EMPTY");
  v1::GenerateRequest request;
  for (int i = 0; i < 1001; ++i) request.mutable_token_ids()->add_ids(1);
  const std::optional<Error> error = Read(request);
  EXPECT_EQ(error->reason, "PROMPT_TOO_LONG");
  EXPECT_EQ(error->metadata[0].second, "1001");
  EXPECT_EQ(error->metadata[1].second, "1000");
  request.set_truncate_prompt_tokens(1000);
  EXPECT_FALSE(Read(request).has_value());
}

// Says that its tokens are of up to seven bytes, and counts what it encodes.
class CountingTokenizer : public ByteTokenizer {
 public:
  CountingTokenizer() : ByteTokenizer(kVocab, std::nullopt) {}
  size_t FewestTokens(std::string_view text) const override { return text.size() / 7; }
  absl::StatusOr<std::vector<TokenSpan>> EncodeSpans(std::string_view text,
                                                     const EncodeOptions& options) const override {
    ++encoded_;
    return ByteTokenizer::EncodeSpans(text, options);
  }
  int encoded() const { return encoded_; }

 private:
  mutable int encoded_ = 0;
};

TEST_F(ConvertTest, RefusesTextsThatAreTooLongByFarWithoutEncodingThem) {
  auto owned = std::make_unique<CountingTokenizer>();
  const CountingTokenizer* const tokenizer = owned.get();
  model_.tokenizer = std::move(owned);
  PromptFacts facts;
  base_.set_text(std::string(7'007, 'x'));
  ASSERT_FALSE(Read(base_).has_value());
  const std::optional<Error> error = EncodePrompt(model_, &call_.plan, &facts);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->reason, "PROMPT_TOO_LONG");
  EXPECT_EQ(error->metadata, (std::vector<std::pair<std::string, std::string>>{
                                 {"prompt_tokens_at_least", "1001"}, {"limit", "1000"}}));
  EXPECT_EQ(tokenizer->encoded(), 0);
  // It might just fit, so it has to be encoded to know.
  base_.set_text(std::string(7'006, 'x'));
  ASSERT_FALSE(Read(base_).has_value());
  EXPECT_EQ(EncodePrompt(model_, &call_.plan, &facts)->metadata[0].second, "7006");
  EXPECT_EQ(tokenizer->encoded(), 1);
  // What is to be cut may be as long as it likes.
  base_.set_text(std::string(7'007, 'x'));
  base_.set_truncate_prompt_tokens(5);
  ASSERT_FALSE(Read(base_).has_value());
  EXPECT_FALSE(EncodePrompt(model_, &call_.plan, &facts).has_value());
}

TEST_F(ConvertTest, RefusesWhatCanNeverFit) {
  model_.capacity.pages = 2;
  model_.capacity.rows_per_page = 64;
  v1::GenerateRequest request;
  for (int i = 0; i < 100; ++i) request.mutable_token_ids()->add_ids(1);
  request.mutable_stopping()->set_max_new_tokens(28);
  EXPECT_FALSE(Read(request).has_value());
  request.mutable_stopping()->set_max_new_tokens(29);
  const std::optional<Error> error = Read(request);
  EXPECT_EQ(error->reason, "NEVER_FITS");
  EXPECT_EQ(error->metadata,
            (std::vector<std::pair<std::string, std::string>>{{"needed", "3"}, {"total", "2"}}));
  // Where all attention has windows, two pages are enough for any sequence.
  model_.capacity.pages_per_sequence = 2;
  EXPECT_FALSE(Read(request).has_value());
  model_.capacity = {.slots = 4};
  model_.info.max_positions = 128;
  EXPECT_EQ(Read(request)->reason, "NEVER_FITS");
}

TEST_F(ConvertTest, EncodesThePromptAndRepeatsItWhenAsked) {
  base_.mutable_response()->set_prompt_text(true);
  base_.mutable_response()->set_prompt_token_ids(true);
  base_.set_truncate_prompt_tokens(3);
  ASSERT_FALSE(Read(base_).has_value());
  PromptFacts facts;
  ASSERT_FALSE(EncodePrompt(model_, &call_.plan, &facts).has_value());
  EXPECT_EQ(call_.plan.request.prompt, (std::vector<int32_t>{'n', 'c', 'e'}));
  EXPECT_EQ(facts.prompt_tokens, 3);
  EXPECT_EQ(facts.truncated_tokens, 1);
  EXPECT_EQ(facts.first_token, 'n');
  EXPECT_EQ(*facts.text, "nce");
  EXPECT_EQ(facts.ids.size(), 3u);
}

}  // namespace
}  // namespace eddy
