// Proves that added tokens are cut out leftmost and longest, and what each of their flags does.
#include "server/text/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

using testing::ElementsAre;

std::vector<std::string> Cut(const std::vector<AddedToken>& tokens, const std::string& text,
                             bool literal_special = false) {
  AddedTokenSet set;
  for (const AddedToken& token : tokens) set.Add(token, token.content);
  Pieces pieces(text);
  set.CutOut(literal_special, &pieces);
  std::vector<std::string> cut;
  for (const Piece& piece : pieces.list) {
    std::string shown(pieces.View(piece));
    cut.push_back(piece.id < 0 ? shown : "<" + shown + ">");
  }
  return cut;
}

TEST(AddedTokens, AreCutOutLeftmostAndLongest) {
  const std::vector<AddedToken> tokens = {
      {.id = 1, .content = "ab"}, {.id = 2, .content = "abc"}, {.id = 3, .content = "bcd"}};
  EXPECT_THAT(Cut(tokens, "xabcdy"), ElementsAre("x", "<abc>", "dy"));
  EXPECT_THAT(Cut(tokens, "abab"), ElementsAre("<ab>", "<ab>"));
  EXPECT_THAT(Cut(tokens, "xy"), ElementsAre("xy"));
}

TEST(AddedTokens, TakeWhiteSpaceAlong) {
  const AddedToken left = {.id = 1, .content = "M", .lstrip = true};
  const AddedToken right = {.id = 1, .content = "M", .rstrip = true};
  EXPECT_THAT(Cut({left}, "a \u3000M b"), ElementsAre("a", "< \u3000M>", " b"));
  EXPECT_THAT(Cut({right}, "a M \u0085b"), ElementsAre("a ", "<M \u0085>", "b"));
  EXPECT_THAT(Cut({{.id = 1, .content = "M", .lstrip = true, .rstrip = true}}, "M M"),
              ElementsAre("<M >", "<M>"));
}

TEST(AddedTokens, CountAsSingleWordsOnly) {
  const AddedToken word = {.id = 1, .content = "M", .single_word = true};
  EXPECT_THAT(Cut({word}, "M aM Mb -M- M\u0301"),
              ElementsAre("<M>", " aM Mb -", "<M>", "- M\u0301"));
}

TEST(AddedTokens, StayTextIfAsked) {
  const AddedToken special = {.id = 1, .content = "<s>", .special = true};
  const AddedToken plain = {.id = 2, .content = "<x>"};
  EXPECT_THAT(Cut({special, plain}, "a<s><x>", /*literal_special=*/true),
              ElementsAre("a<s>", "<<x>>"));
}

TEST(AddedTokens, TakeWhiteSpaceOnlyOnce) {
  const AddedToken mask = {.id = 1, .content = "M", .rstrip = true};
  const AddedToken line = {.id = 2, .content = "\n", .lstrip = true};
  EXPECT_THAT(Cut({mask, line}, "M\nb\n"), ElementsAre("<M\n>", "b", "<\n>"));
}

}  // namespace
}  // namespace eddy
