// What the server runs on, on machines with and without a GPU: "cpu" never asks for one, "cuda"
// takes nothing else, "auto" takes what there is and says why if that is the CPU.
#include "engine/open_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eddy {
namespace {

TEST(OpenDevice, TakesTheCpuWithoutAReasonWhenItIsAskedFor) {
  const absl::StatusOr<OpenedDevice> opened = OpenDevice("cpu", {.threads = 1});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->device->backend(), "cpu");
  EXPECT_EQ(opened->no_gpu, "");
}

TEST(OpenDevice, SaysWithAutoWhyThereIsNoGpu) {
  const absl::StatusOr<OpenedDevice> opened = OpenDevice("auto", {.threads = 1});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->no_gpu.empty(), opened->device->backend() == "cuda") << opened->no_gpu;
}

TEST(OpenDevice, RefusesCudaInOneLineWhereThereIsNoSuchGpu) {
  // No machine has so many.
  const absl::StatusOr<OpenedDevice> opened = OpenDevice("cuda", {.ordinal = 4096});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(opened.status().message()), ::testing::StartsWith("--device=cuda: "));
  EXPECT_EQ(opened.status().message().find('\n'), absl::string_view::npos);
}

}  // namespace
}  // namespace eddy
