// Proves that the housekeeper works as long as it is there, and is gone at once.
#include "server/housekeeper.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/testing/moment.h"

namespace eddy {
namespace {

TEST(Housekeeper, WorksUntilItIsGone) {
  std::atomic<int> times{0};
  Moment twice;
  {
    Housekeeper housekeeper(absl::Milliseconds(1), [&] {
      if (++times == 2) twice.Come();
    });
    twice.Await();
  }
  const int at_the_end = times;
  EXPECT_GE(at_the_end, 2);
  EXPECT_EQ(times, at_the_end);
}

TEST(Housekeeper, IsGoneAtOnceHoweverLongItsPeriod) {
  Housekeeper housekeeper(absl::Hours(24), [] {});
}

}  // namespace
}  // namespace eddy
