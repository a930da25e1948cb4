// Proves that eddy model lists all pages and shows one model and the server.
#include <nlohmann/json.hpp>

#include "tests/server/client/client_fixture.h"

namespace eddy::client {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(ClientTest, ListsTheModelsOfAllPages) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"model", "list"}, std::vector<std::string>{"models"}}) {
    EXPECT_EQ(Run(words), 0) << err();
    EXPECT_THAT(out(), HasSubstr("first\t"));
    EXPECT_THAT(out(), HasSubstr("second\t"));
  }
}

TEST_F(ClientTest, ShowsOneModelAndTheServer) {
  EXPECT_EQ(Run({"model", "get", "--model=tales"}), 0) << err();
  EXPECT_THAT(out(), HasSubstr("name: tales\n"));
  EXPECT_THAT(out(), HasSubstr("vocabulary: 512\n"));
  EXPECT_EQ(Run({"--output", "json", "model", "get", "--model=tales"}), 0) << err();
  EXPECT_EQ(nlohmann::json::parse(out())["model"]["vocab_size"], 512);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"model", "status"}, std::vector<std::string>{"status"}}) {
    EXPECT_EQ(Run(words), 0) << err();
    EXPECT_THAT(out(), StartsWith("state: SERVER_STATE_SERVING\n"));
    EXPECT_THAT(out(), HasSubstr("tales: 0 running"));
    // In one unit, so that they compare at a glance.
    EXPECT_THAT(out(), HasSubstr("memory: weights 35.000 MiB, state 0.375 MiB, attention "
                                 "0.000 MiB, workspace 0.001 MiB\n"));
  }
}

}  // namespace
}  // namespace eddy::client
