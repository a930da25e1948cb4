// Proves that eddy detokenize takes what eddy tokenize prints.
#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::ElementsAre;

TEST_F(ClientTest, WhatTokenizePrintsDetokenizeTakes) {
  generation_.tokenized = FromJson<v1::TokenizeResponse>(
      R"({"tokenIds": [10, 11], "tokens": [{"token": "YQ==", "begin": 0, "end": 1},
                                           {"token": "Cg==", "begin": 1, "end": 2}]})");
  EXPECT_EQ(Run({"tokenize", "--prompt=a\n"}), 0) << err();
  EXPECT_EQ(out(), "10,11\n");
  EXPECT_EQ(Run({"tokenize", "--prompt=a\n", "--spans"}), 0) << err();
  EXPECT_TRUE(generation_.tokenize.tokens());
  EXPECT_EQ(out(), "10\t0\t1\t\"a\"\n11\t1\t2\t\"\\n\"\n");
  generation_.detokenized.set_text("a\n");
  EXPECT_EQ(Run({"detokenize", "--token_ids", "10,11\n"}), 0) << err();
  EXPECT_THAT(generation_.detokenize.token_ids(), ElementsAre(10, 11));
  EXPECT_EQ(out(), "a\n");
}

}  // namespace
}  // namespace eddy::client
