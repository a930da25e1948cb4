// Brings what the engine made to the clients that wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/clock.h"
#include "engine/request.h"
#include "server/call.h"
#include "server/delivery_lane.h"
#include "server/output.h"

namespace eddy {

// All calls that are open, from their arrival to their end, and the threads that turn events into
// text and hand it to their replies. Thread-safe; knows no gRPC.
//
// A call belongs to one lane from its arrival on, by its id, so that one thread brings all that it
// gets, in order. Whoever takes a call out of its lane's map is the one who ends its reply, and
// nobody touches a reply that left the map: a call that was not yet submitted is ended by whoever
// refuses or cuts it, one that was submitted by the lane's thread alone, when the engine's event
// with `end` comes.
class Delivery {
 public:
  struct Options {
    int threads = 1;
    absl::Duration max_request_time = absl::Minutes(10);  // both only for the texts of errors
    int64_t outbox_bytes_max = 1 << 20;
  };
  // `cancel` is Engine::Cancel. All that is pointed to outlives the delivery.
  Delivery(const Options& options, const Clock* clock, CallObserver* observer,
           absl::AnyInvocable<void(RequestId, absl::Status) const> cancel);

  // A new call. From here on it can be cut.
  RequestId Open(Reply* reply);
  bool IsOpen(RequestId id) const { return lane(id).IsOpen(id); }
  // Before the request is submitted. False: the call was cut, and has been ended.
  bool Begin(RequestId id, bool client_deadline, std::unique_ptr<Call> call) {
    return lane(id).Begin(id, client_deadline, std::move(call));
  }
  // Ends a call that is not submitted, or that the engine refused. No effect if it has ended.
  void Refuse(RequestId id, Error error, int prompt_tokens = 0) {
    lane(id).Refuse(id, std::move(error), prompt_tokens);
  }
  // Ends a call as soon as possible. No effect if it has ended.
  void CutOff(RequestId id, Cut why) { lane(id).CutOff(id, why); }
  void CutOffAll(Cut why);
  // A cut that came between Begin and Engine::Submit found nothing to cancel in the engine, so it
  // is looked at once more after Submit.
  void Submitted(RequestId id) { lane(id).Submitted(id); }

  // The events of one step. Never waits for a client or for a call's text. Engine thread.
  void Publish(std::vector<Event> events);

  int open_calls() const;
  // When a client that found the line full with `waiting` calls should try again: 100 ms to 5 s.
  absl::Duration PushBack(int64_t waiting) const;

 private:
  DeliveryLane& lane(RequestId id) const {
    return *lanes_[static_cast<size_t>(id) % lanes_.size()];
  }

  DeliveryLane::Environment environment_;
  std::atomic<RequestId> next_id_ = 1;
  std::vector<std::unique_ptr<DeliveryLane>> lanes_;  // last: their threads start
};

}  // namespace eddy
