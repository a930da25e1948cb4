// Proves that the server's state only moves forward, and what it refuses calls with.
#include "server/lifecycle.h"

#include <gtest/gtest.h>

namespace eddy {
namespace {

TEST(Lifecycle, OnlyMovesForward) {
  Lifecycle lifecycle;
  EXPECT_EQ(lifecycle.Refusal()->reason, "NOT_READY");
  lifecycle.MoveTo(Lifecycle::State::kServing);
  EXPECT_FALSE(lifecycle.Refusal().has_value());
  lifecycle.MoveTo(Lifecycle::State::kDraining);
  lifecycle.MoveTo(Lifecycle::State::kServing);
  EXPECT_EQ(lifecycle.Refusal()->reason, "DRAINING");
  lifecycle.MoveTo(Lifecycle::State::kDeviceLost);
  EXPECT_EQ(lifecycle.Refusal()->reason, "DEVICE_LOST");
}

}  // namespace
}  // namespace eddy
