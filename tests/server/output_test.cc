// Proves that outputs join in order and count what they hold.
#include "server/output.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace eddy {
namespace {

TEST(Output, JoinsInOrder) {
  Output output{.num_tokens = 1, .text = "a", .tokens = {TokenReport{.token = 1}}};
  output.prompt = std::make_unique<PromptFacts>();
  Output later{.num_tokens = 2, .text = "b", .tokens = {TokenReport{.token = 2}}};
  later.finish = Finish{.reason = FinishReason::kEos};
  later.tally.generated_tokens = 3;
  output.Append(std::move(later));
  EXPECT_EQ(output.num_tokens, 3);
  EXPECT_EQ(output.text, "ab");
  EXPECT_EQ(output.tokens[1].token, 2);
  EXPECT_NE(output.prompt, nullptr);
  EXPECT_EQ(output.finish->reason, FinishReason::kEos);
  EXPECT_EQ(output.tally.generated_tokens, 3);
}

TEST(Output, CountsTheBytesThatGrow) {
  Output output{.num_tokens = 1, .text = "abc"};
  EXPECT_EQ(output.bytes(), 3);
  output.tokens.push_back({.token = 1, .top = {Candidate{}, Candidate{}}});
  EXPECT_EQ(output.bytes(), static_cast<int64_t>(3 + sizeof(TokenReport) + 2 * sizeof(Candidate)));
}

}  // namespace
}  // namespace eddy
