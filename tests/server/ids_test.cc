// Proves which names calls may have, and what is read of a traceparent.
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

TEST(Ids, AreReadFromATraceParentThatIsExactlyRight) {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c", parent = "b7ad6b7169203331";
  EXPECT_EQ(TraceIdOf("00-" + trace + "-" + parent + "-01"), trace);
  EXPECT_EQ(TraceIdOf("01-" + trace + "-" + parent + "-01"), "");
  EXPECT_EQ(TraceIdOf("00-" + trace + "-" + parent + "-0"), "");
  EXPECT_EQ(TraceIdOf("00-" + trace + "-" + parent + "-01x"), "");
  EXPECT_EQ(TraceIdOf("00-" + std::string(32, '0') + "-" + parent + "-01"), "");
  EXPECT_EQ(TraceIdOf("00-" + trace + "-" + std::string(16, '0') + "-01"), "");
  EXPECT_EQ(TraceIdOf("00-0AF7651916CD43DD8448EB211C80319C-" + parent + "-01"), "");
  EXPECT_EQ(TraceIdOf(""), "");
  EXPECT_EQ(NewSpanId().size(), 16u);
}

}  // namespace
}  // namespace eddy
