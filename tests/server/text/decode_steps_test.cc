// Proves each decoder by examples, and of what may be given out early both halves: nothing that a
// later token could still change, and all the rest.
#include "server/text/decode_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eddy {
namespace {

using testing::ElementsAre;

// What comes out after each token, and in the end.
std::vector<std::string> Parts(const std::vector<DecodeStep>& steps,
                               const std::vector<std::string>& tokens) {
  std::string text;
  DecodeChain chain(steps, &text);
  std::vector<std::string> parts;
  for (const std::string& token : tokens) {
    chain.Put(token);
    parts.push_back(std::exchange(text, ""));
  }
  chain.Flush();
  parts.push_back(text);
  return parts;
}

TEST(DecodeSteps, ReplaceWithinEachToken) {
  EXPECT_THAT(Parts({ReplaceInTokens{.from = "ab", .to = "x"}}, {"aab", "a", "b"}),
              ElementsAre("ax", "a", "b", ""));
}

TEST(DecodeSteps, JoinTokensBySpaces) {
  EXPECT_THAT(Parts({JoinWithSpaces{}}, {"a", "b"}), ElementsAre("a", " b", ""));
}

TEST(DecodeSteps, StripEachTokenOrTheWholeText) {
  const StripTokens strip = {.character = " ", .start = 1, .stop = 1};
  EXPECT_THAT(Parts({strip}, {"  a ", " b"}), ElementsAre(" a", "b", ""));
  EXPECT_THAT(Parts({Fuse{}, strip}, {" ", " a ", " ", "b "}),
              ElementsAre("", " a", " ", " b", ""));
}

TEST(DecodeSteps, DropMarksOfTheFirstToken) {
  const SpacesFromMarks marks = {.replacement = "_", .drop_first = true};
  EXPECT_THAT(Parts({marks}, {"_a_", "_b"}), ElementsAre("a", " b", ""));
}

TEST(DecodeSteps, BytesOfTheAlphabetGiveCharactersAsSoonAsWhole) {
  // U+4F60 is E4 BD A0.
  EXPECT_THAT(Parts({BytesFromAlphabet{}}, {"\u00e4\u00bd", "\u0142a", "\u00e4", "a"}),
              ElementsAre("", "\u4f60a", "", "\uFFFDa", ""));
  EXPECT_THAT(Parts({BytesFromAlphabet{}}, {"\u00e4\u00bd"}), ElementsAre("", "\uFFFD"));
}

TEST(DecodeSteps, ARunOfBytesIsKeptWholeUntilItEnds) {
  EXPECT_THAT(Parts({BytesFromNames{}}, {"<0xC3>", "<0xA9>", "<0x41>", "b"}),
              ElementsAre("", "", "", "\u00e9Ab", ""));
  EXPECT_THAT(Parts({BytesFromNames{}}, {"<0x41>", "<0x42>"}), ElementsAre("", "", "AB"));
}

TEST(DecodeSteps, ABrokenRunIsOneReplacementPerByteFromThereOn) {
  const std::string r = "\uFFFD";
  EXPECT_THAT(Parts({BytesFromNames{}}, {"<0x41>", "<0xC3>", "<0x41>", "<0x42>", "b", "<0x43>"}),
              ElementsAre("", "", r + r + r, r, "b", "", "C"));
  EXPECT_THAT(Parts({BytesFromNames{}}, {"<0x41>", "<0xC3>", "b"}),
              ElementsAre("", "", r + r + "b", ""));
}

TEST(DecodeSteps, KnowNamesOfBytes) {
  EXPECT_EQ(ByteOfName("<0x0A>"), 10);
  EXPECT_EQ(ByteOfName("<0xff>"), 255);
  for (const char* name : {"", "<0x0A", "<0x0G>", "<0x+5>", "<0x0A>>", "(0x0A>"}) {
    EXPECT_EQ(ByteOfName(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace eddy
