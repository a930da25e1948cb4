// Proves that eddy score sends what its flags say and prints tokens, sum and perplexity.
#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

TEST_F(ClientTest, ScorePrintsTokensAndSum) {
  generation_.scored = FromJson<v1::ScoreResponse>(R"({
      "logprobs": [{"tokenId": 3}, {"tokenId": 4, "logprob": -2, "rank": 9}],
      "sumLogprob": -2, "scoredTokens": 1, "next": [{"tokenId": 8, "logprob": -0.25}]})");
  EXPECT_EQ(Run({"score", "--token_ids=3,4", "--first_token=1", "--top=3", "--next_token_ids=8,9"}),
            0)
      << err();
  EXPECT_THAT(generation_.score,
              EqualsJson(R"({"tokenIds": {"ids": [3, 4]}, "firstToken": 1, "topLogprobs": 3,
                             "nextTokenIds": [8, 9]})"));
  EXPECT_EQ(out(),
            "3\t-\t0\n4\t-2.0000\t9\nnext\t8 -0.2500\n"
            "sum -2, tokens 1, perplexity 7.38906\n");
}

}  // namespace
}  // namespace eddy::client
