// Proves that eddy model inspect shows what a folder holds, for people and as JSON, tells problems
// with status 1 and a wrong command line with 2, and needs no server.
#include <nlohmann/json.hpp>

#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kGood[] = "tests/golden/gated_deltanet_hybrid_a";

TEST_F(ClientTest, InspectShowsAGoodFolderWithoutAServer) {
  server_->Shutdown();
  EXPECT_EQ(Run({"model", "inspect", kGood, "--memory=1GiB", "--weights"}), 0) << err();
  EXPECT_THAT(out(), HasSubstr("type: gated_deltanet\n"));
  EXPECT_THAT(out(), HasSubstr("attention: 256 bytes per token, 16KiB per page\n"));
  EXPECT_THAT(out(), HasSubstr("in 1GiB of memory: 16 slots, "));
  EXPECT_THAT(out(), HasSubstr("no problems\n"));
  EXPECT_EQ(Run({"model", "inspect", kGood, "--memory=1GiB", "--output=json"}), 0) << err();
  const nlohmann::json json = nlohmann::json::parse(out());
  EXPECT_THAT(json["problems"], IsEmpty());
  EXPECT_EQ(json["slots"], 16);
  EXPECT_GT(json["kv_bytes_per_token"], 0);
  EXPECT_EQ(json["state_type"], "float32");
}

TEST_F(ClientTest, InspectReckonsWithTheTypeOfStatesOfTheServer) {
  EXPECT_EQ(Run({"model", "inspect", kGood, "--state_type=bfloat16", "--output=json"}), 0) << err();
  EXPECT_EQ(nlohmann::json::parse(out())["state_type"], "bfloat16");
  EXPECT_EQ(Run({"model", "inspect", "tests/golden/mamba2_a", "--state_type=bfloat16"}), 1);
  EXPECT_THAT(out(), HasSubstr("problem: --state_type=bfloat16: model type mamba2"));
  EXPECT_EQ(Run({"model", "inspect", kGood, "--state_type=float16"}), 2);
}

TEST_F(ClientTest, InspectTellsProblemsWithStatusOne) {
  EXPECT_EQ(Run({"model", "inspect", kGood, "--memory=1000"}), 1);
  EXPECT_THAT(out(), HasSubstr("problem: the model does not fit"));
  EXPECT_THAT(err(), IsEmpty());
  EXPECT_EQ(Run({"model", "inspect", "no/such/folder", "--output=json"}), 1);
  EXPECT_EQ(nlohmann::json::parse(out())["problems"].size(), 2U);
}

TEST_F(ClientTest, InspectTakesOneFolder) {
  EXPECT_EQ(Run({"model", "inspect"}), 2);
  EXPECT_EQ(Run({"model", "inspect", "a", "b"}), 2);
  EXPECT_EQ(Run({"model", "inspect", kGood, "--memory=some"}), 2);
  EXPECT_THAT(err(), HasSubstr("--memory=some: must be"));
}

}  // namespace
}  // namespace eddy::client
