#include "tests/testing/test_device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/open_device.h"

namespace eddy::testing {
namespace {

std::string Kind() {
  const char* const kind = std::getenv("EDDY_TEST_DEVICE");
  return kind == nullptr ? "cpu" : kind;
}

// Skips everything, and says why, where the device cannot be had.
class NeedsDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    const absl::StatusOr<OpenedDevice> opened =
        OpenDevice(Kind(), {.threads = 1, .matrices = DType::kF32});
    if (!opened.ok()) GTEST_SKIP() << opened.status();
  }
};

// gtest owns it. A program without this file's function does without.
[[maybe_unused]] ::testing::Environment* const kNeedsDevice =
    ::testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace

std::unique_ptr<Device> OpenTestDevice(DType matrices, DType states) {
  absl::StatusOr<OpenedDevice> opened =
      OpenDevice(Kind(), {.threads = 1, .matrices = matrices, .states = states});
  EDDY_CHECK(opened.ok());
  return std::move(opened->device);
}

}  // namespace eddy::testing
