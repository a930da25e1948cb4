// Some of the calls that are open, and the thread that brings them what the engine made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "engine/request.h"
#include "server/call.h"
#include "server/drain_meter.h"
#include "server/output.h"

namespace eddy {

// Why the server itself ended a call before the engine did. The first cut counts.
enum class Cut { kNone, kCancelled, kDeadline, kSlowReader, kDrain, kStopString };

// One of the threads of a Delivery with the calls that are its own; see there for who ends a call.
// Thread-safe; knows no gRPC.
class DeliveryLane {
 public:
  // What all lanes share; outlives them.
  struct Environment {
    absl::Duration max_request_time = absl::ZeroDuration();  // both only for the texts of errors
    int64_t outbox_bytes_max = 0;
    const Clock* clock = nullptr;
    CallObserver* observer = nullptr;
    absl::AnyInvocable<void(RequestId, absl::Status) const> cancel;
    DrainMeter meter = {};
  };
  DeliveryLane(Environment* environment, std::string thread_name);
  // REQUIRES: no call is open.
  ~DeliveryLane();

  // Of Delivery, for the calls of this lane.
  void Open(RequestId id, Reply* reply) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsOpen(RequestId id) const ABSL_LOCKS_EXCLUDED(mu_);
  bool Begin(RequestId id, bool client_deadline, std::unique_ptr<Call> call)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(RequestId id, Error error, int prompt_tokens) ABSL_LOCKS_EXCLUDED(mu_);
  void CutOff(RequestId id, Cut why) ABSL_LOCKS_EXCLUDED(mu_);
  void CutOffAll(Cut why) ABSL_LOCKS_EXCLUDED(mu_);
  void Submitted(RequestId id) ABSL_LOCKS_EXCLUDED(mu_);
  // The events of one step.
  void Publish(std::vector<Event> events) ABSL_LOCKS_EXCLUDED(mu_);
  int open_calls() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Reply* reply = nullptr;
    std::unique_ptr<Call> call = nullptr;          // set by Begin; then the lane's thread's
    absl::Time last_token = absl::InfinitePast();  // the lane's thread's
    bool client_deadline = false;
    bool submitted = false;
    Cut cut = Cut::kNone;
  };
  using Map = std::unordered_map<RequestId, std::unique_ptr<Entry>>;

  void Run();
  void Deliver(std::span<Event> events);
  void Finish(RequestId id, const End& end, Output output);
  void ObserveToken(Entry* entry, absl::Time now);
  Entry* Find(RequestId id) ABSL_LOCKS_EXCLUDED(mu_);
  std::unique_ptr<Entry> TakeOut(RequestId id) ABSL_LOCKS_EXCLUDED(mu_);
  Error WhyCut(const Entry& entry, const End& end) const;
  Error ErrorOf(Cut cut, Phase phase) const;

  Environment* const environment_;
  // Of the events that are being delivered; the lane's thread's.
  std::vector<double> first_seconds_, between_seconds_;

  mutable Mutex mu_;
  CondVar news_;
  Map calls_ ABSL_GUARDED_BY(mu_);
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  int steps_ ABSL_GUARDED_BY(mu_) = 0;  // so many lists were joined in events_
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace eddy
