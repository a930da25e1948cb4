// Proves what Tokenize and Detokenize answer.
#include "server/convert_text.h"

#include <gtest/gtest.h>

#include <memory>

#include "server/text/byte_tokenizer.h"

namespace eddy {
namespace {

class ConvertTextTest : public ::testing::Test {
 protected:
  ConvertTextTest() {
    model_.name = "tiny";
    model_.info.vocab_size = 300;
    model_.tokenizer = std::make_unique<ByteTokenizer>(300, std::nullopt);
  }

  ServedModel model_;
};

TEST_F(ConvertTextTest, TokenizesWithSpansWhenAsked) {
  v1::TokenizeRequest request;
  request.set_text("hé");
  v1::TokenizeResponse response;
  ASSERT_FALSE(Encode(request, model_, &response).has_value());
  EXPECT_EQ(response.token_ids_size(), 3);
  EXPECT_EQ(response.tokens_size(), 0);
  request.set_tokens(true);
  v1::TokenizeResponse spans;
  ASSERT_FALSE(Encode(request, model_, &spans).has_value());
  ASSERT_EQ(spans.tokens_size(), 3);
  EXPECT_EQ(spans.tokens(1).token(), "\xc3");
  EXPECT_EQ(spans.tokens(1).begin(), 1u);
  EXPECT_EQ(spans.tokens(1).end(), 2u);
}

TEST_F(ConvertTextTest, DetokenizesToTextAndRawBytes) {
  v1::DetokenizeRequest request;
  for (const uint32_t id : {static_cast<uint32_t>('a'), 257u, 0xc3u}) request.add_token_ids(id);
  ASSERT_FALSE(CheckDetokenizeRequest(request, model_).has_value());
  EXPECT_EQ(Decode(request, model_).text(), "a\xef\xbf\xbd");
  EXPECT_EQ(Decode(request, model_).raw(), "a\xc3");
  request.set_special_tokens(true);
  EXPECT_EQ(Decode(request, model_).raw(), "a<special_1>\xc3");
  request.add_token_ids(300);
  EXPECT_EQ(CheckDetokenizeRequest(request, model_)->faults[0].field, "token_ids[3]");
}

TEST_F(ConvertTextTest, SaysSoWhenThereIsNoTokenizer) {
  model_.tokenizer = nullptr;
  EXPECT_EQ(CheckTokenizeRequest({}, model_)->reason, "NO_TOKENIZER");
  EXPECT_EQ(CheckDetokenizeRequest({}, model_)->reason, "NO_TOKENIZER");
}

}  // namespace
}  // namespace eddy
