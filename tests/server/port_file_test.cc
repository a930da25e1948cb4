// Proves what the port file holds, and what is said when it cannot be written.
#include "server/port_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace eddy {
namespace {

TEST(PortFile, HoldsThePortsThatAreOn) {
  const std::string path = ::testing::TempDir() + "eddy_port_file_test.json";
  ASSERT_TRUE(
      WritePortFile(path, {{"listen", 50051}, {"admin_listen", 0}, {"metrics_listen", 7}}).ok());
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file);
  EXPECT_EQ(json, (nlohmann::json{{"listen", 50051}, {"metrics_listen", 7}}));
}

TEST(PortFile, ThatCannotBeWrittenIsAnErrorWithItsName) {
  const absl::Status status = WritePortFile("/no/such/folder/ports", {{"listen", 1}});
  EXPECT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find("/no/such/folder/ports"), std::string::npos);
}

}  // namespace
}  // namespace eddy
