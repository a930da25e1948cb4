// Proves that eddy health succeeds only for a service that takes calls.
#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::HasSubstr;

TEST_F(ClientTest, HealthSucceedsOnlyForAServiceThatTakesCalls) {
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  health->SetServingStatus("up", true);
  health->SetServingStatus("down", false);
  EXPECT_EQ(Run({"health"}), 0) << err();
  EXPECT_EQ(out(), "SERVING\n");
  EXPECT_EQ(Run({"health", "up", "--wait=30s"}), 0) << err();
  EXPECT_EQ(out(), "SERVING\n");
  EXPECT_EQ(Run({"health", "down"}), 24);
  EXPECT_EQ(out(), "NOT_SERVING\n");
  EXPECT_EQ(Run({"health", "unheard-of"}), 15);
  EXPECT_EQ(Run({"health", "down", "--wait=50ms"}), 14);
  EXPECT_THAT(err(), HasSubstr("not SERVING after 50ms"));
}

}  // namespace
}  // namespace eddy::client
