// Clocks that tests can move.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace eddy {

// Stands still until it is told. Thread-safe.
class FakeClock : public Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixNanos(now_.load()); }
  absl::Duration Steady() const override { return absl::Nanoseconds(steady_.load()); }
  void Advance(absl::Duration by) {
    now_ += absl::ToInt64Nanoseconds(by);
    steady_ += absl::ToInt64Nanoseconds(by);
  }
  // Somebody sets the clock on the wall.
  void Set(absl::Time now) { now_ = absl::ToUnixNanos(now); }

 private:
  std::atomic<int64_t> now_{1'000'000'000'000};
  std::atomic<int64_t> steady_{7'000};
};

// The real time and as much more as it is told: for tests in which real clients take part.
// Thread-safe.
class ShiftedClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now() + absl::Nanoseconds(shift_.load()); }
  absl::Duration Steady() const override {
    return RealClock().Steady() + absl::Nanoseconds(shift_.load());
  }
  void Advance(absl::Duration by) { shift_ += absl::ToInt64Nanoseconds(by); }

 private:
  std::atomic<int64_t> shift_{0};
};

}  // namespace eddy
