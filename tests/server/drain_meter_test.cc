// Proves when a client that found the line full is asked to come back.
#include "server/drain_meter.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace eddy {
namespace {

TEST(DrainMeter, SaysASecondBeforeAnythingWasMeasured) {
  EXPECT_EQ(DrainMeter().PushBack(100, absl::Now()), absl::Seconds(1));
}

TEST(DrainMeter, WaitsAsLongAsATenthOfTheLineTakes) {
  DrainMeter meter;
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 4000; ++i) {  // 100 calls a second
    now += absl::Milliseconds(10);
    meter.CallLeft(now);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(meter.PushBack(1000, now)), 1.0, 0.01);
  EXPECT_EQ(meter.PushBack(10, now), absl::Milliseconds(100));
  EXPECT_EQ(meter.PushBack(100000, now), absl::Seconds(5));
}

TEST(DrainMeter, ForgetsALineThatStandsStill) {
  DrainMeter meter;
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 1000; ++i) meter.CallLeft(now += absl::Milliseconds(10));
  EXPECT_LT(meter.PushBack(10, now), absl::Seconds(1));
  EXPECT_EQ(meter.PushBack(10, now + absl::Minutes(10)), absl::Seconds(5));
}

}  // namespace
}  // namespace eddy
