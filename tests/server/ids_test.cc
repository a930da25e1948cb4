// Proves which names calls may have, and how those that the server makes look.
#include "server/ids.h"

#include <gtest/gtest.h>

#include <string>

namespace eddy {
namespace {

TEST(Ids, AreUuidsOfVersionFour) {
  const std::string id = NewUuid();
  EXPECT_EQ(id.size(), 36u);
  EXPECT_EQ(id[14], '4');
  EXPECT_NE(std::string("89ab").find(id[19]), std::string::npos);
  EXPECT_TRUE(IsRequestId(id));
  EXPECT_NE(id, NewUuid());
}

TEST(Ids, OfRequestsAreShortAndPlain) {
  EXPECT_TRUE(IsRequestId("a"));
  EXPECT_TRUE(IsRequestId(std::string(128, 'x')));
  EXPECT_TRUE(IsRequestId("A.b_c:d-9"));
  EXPECT_FALSE(IsRequestId(""));
  EXPECT_FALSE(IsRequestId(std::string(129, 'x')));
  EXPECT_FALSE(IsRequestId("a b"));
  EXPECT_FALSE(IsRequestId("ä"));
}

TEST(Ids, OfTracesAndSpansAreHexAndNew) {
  for (const std::string& id : {NewTraceId(), NewSpanId()}) {
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    EXPECT_NE(id.find_first_not_of('0'), std::string::npos);
  }
  EXPECT_EQ(NewTraceId().size(), 32u);
  EXPECT_EQ(NewSpanId().size(), 16u);
  EXPECT_NE(NewTraceId(), NewTraceId());
  EXPECT_NE(NewSpanId(), NewSpanId());
}

}  // namespace
}  // namespace eddy
