// What the server is doing, and whether it takes calls.
#pragma once

#include <atomic>
#include <optional>

#include "server/errors.h"

namespace eddy {

// Thread-safe. The state only moves forward.
class Lifecycle {
 public:
  enum class State {
    kStarting,  // the model is being loaded
    kServing,
    kLeaving,     // told to stop, health says so, calls are still taken
    kDraining,    // refuses calls, finishes those that it took
    kDeviceLost,  // about to end
  };
  State state() const { return state_.load(std::memory_order_acquire); }
  // No effect if the state is this one or a later one.
  void MoveTo(State state) {
    State now = state_.load(std::memory_order_relaxed);
    while (now < state && !state_.compare_exchange_weak(now, state, std::memory_order_acq_rel)) {
    }
  }
  // Why a call for the model is not taken now; nothing if it is.
  std::optional<Error> Refusal() const {
    switch (state()) {
      case State::kStarting:
        return NotReady();
      case State::kServing:
      case State::kLeaving:
        return std::nullopt;
      case State::kDraining:
        return Draining();
      case State::kDeviceLost:
        return DeviceLost("the device was lost, the process is about to end");
    }
    return std::nullopt;
  }

 private:
  std::atomic<State> state_{State::kStarting};
};

}  // namespace eddy
