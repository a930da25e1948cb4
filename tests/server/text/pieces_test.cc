// Proves that rewritten text still knows where it comes from, gaps and pieces with ids included.
#include "server/text/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/text/tiny_tokenizers.h"

namespace eddy {
namespace {

TEST(Pieces, BeginAsOnePieceWithItsOwnPlaces) {
  const Pieces pieces("abc");
  EXPECT_THAT(Texts(pieces), testing::ElementsAre("abc"));
  EXPECT_THAT(pieces.origin, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(Pieces("").list.empty());
}

TEST(PieceRewriter, KeepsPlacesOfCopiesAndGaps) {
  Pieces pieces("ab-cd");
  pieces.list = {{.begin = 0, .end = 2}, {.begin = 3, .end = 5, .id = 7}};
  PieceRewriter to(pieces);
  to.Begin(pieces.list[0]);
  to.Append("XYZ", 0);
  to.Copy(1, 2);
  to.End();
  to.Begin(pieces.list[1]);
  to.Copy(3, 5);
  to.End();
  const Pieces result = to.Finish();
  EXPECT_EQ(result.text, "XYZb-cd");
  EXPECT_THAT(result.origin, testing::ElementsAre(0, 0, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Texts(result), testing::ElementsAre("XYZb", "cd"));
  EXPECT_EQ(result.list[1].id, 7);
}

TEST(PieceRewriter, DropsPiecesThatBecomeEmpty) {
  Pieces pieces("ab");
  PieceRewriter to(pieces);
  to.Begin(pieces.list[0]);
  to.End();
  const Pieces result = to.Finish();
  EXPECT_TRUE(result.list.empty());
  EXPECT_THAT(result.origin, testing::ElementsAre(2));
}

}  // namespace
}  // namespace eddy
