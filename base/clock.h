// The time, handed in so that tests can decide it.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace eddy {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace eddy
