// Proves that a build knows its version.
#include "base/version.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace eddy {
namespace {

TEST(Version, IsThreeNumbers) {
  EXPECT_TRUE(std::regex_match(std::string(Version()), std::regex("[0-9]+\\.[0-9]+\\.[0-9]+")))
      << Version();
  EXPECT_TRUE(std::regex_match(std::string(Commit()), std::regex("unknown|[0-9a-f]{12,}")))
      << Commit();
}

}  // namespace
}  // namespace eddy
