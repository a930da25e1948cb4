// Brings what the engine made to the clients that wait for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// All calls that are open, from their arrival to their end, and the thread that turns events into
// text and hands it to their replies. Thread-safe; knows no gRPC.
//
// Whoever takes a call out of the map is the one who ends its reply, and nobody touches a reply
// that left the map: a call that was not yet submitted is ended by whoever refuses or cuts it, one
// that was submitted by the delivery thread alone, when the engine's event with `end` comes.
class Delivery {
 public:
  struct Options {
    absl::Duration max_request_time = absl::Minutes(10);  // both only for the texts of errors
    int64_t outbox_bytes_max = 1 << 20;
  };
  // `cancel` is Engine::Cancel. All that is pointed to outlives the delivery.
  Delivery(const Options& options, const Clock* clock, CallObserver* observer,
           absl::AnyInvocable<void(RequestId, absl::Status) const> cancel);
  // REQUIRES: no call is open.
  ~Delivery();

  // A new call. From here on it can be cut.
  RequestId Open(Reply* reply) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsOpen(RequestId id) const ABSL_LOCKS_EXCLUDED(mu_);
  // Before the request is submitted. False: the call was cut, and has been ended.
  bool Begin(RequestId id, bool client_deadline, std::unique_ptr<Call> call)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a call that is not submitted, or that the engine refused. No effect if it has ended.
  void Refuse(RequestId id, Error error, int prompt_tokens = 0) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a call as soon as possible. No effect if it has ended.
  void CutOff(RequestId id, Cut why) ABSL_LOCKS_EXCLUDED(mu_);
  void CutOffAll(Cut why) ABSL_LOCKS_EXCLUDED(mu_);
  // A cut that came between Begin and Engine::Submit found nothing to cancel in the engine, so it
  // is looked at once more after Submit.
  void Submitted(RequestId id) ABSL_LOCKS_EXCLUDED(mu_);

  void Publish(std::vector<Event> events) ABSL_LOCKS_EXCLUDED(mu_);  // engine thread

  int open_calls() const ABSL_LOCKS_EXCLUDED(mu_);
  // When a client that found the line full with `waiting` calls should try again: 100 ms to 5 s.
  absl::Duration PushBack(int64_t waiting) const;

 private:
  struct Entry {
    Reply* reply = nullptr;
    std::unique_ptr<Call> call = nullptr;          // set by Begin; then the delivery thread's
    absl::Time last_token = absl::InfinitePast();  // the delivery thread's
    bool client_deadline = false;
    bool submitted = false;
    Cut cut = Cut::kNone;
  };
  using Map = std::unordered_map<RequestId, std::unique_ptr<Entry>>;

  void Run();
  void Deliver(Event event);
  void Finish(RequestId id, const End& end, Output output);
  void ObserveToken(Entry* entry, absl::Time now);
  Entry* Find(RequestId id) ABSL_LOCKS_EXCLUDED(mu_);
  std::unique_ptr<Entry> TakeOut(RequestId id) ABSL_LOCKS_EXCLUDED(mu_);
  Error WhyCut(const Entry& entry, const End& end) const;
  Error ErrorOf(Cut cut, Phase phase) const;

  const Options options_;
  const Clock* const clock_;
  CallObserver* const observer_;
  const absl::AnyInvocable<void(RequestId, absl::Status) const> cancel_;
  DrainMeter meter_;
  // Of the events that are being delivered; the delivery thread's.
  std::vector<double> first_seconds_, between_seconds_;

  mutable Mutex mu_;
  CondVar news_;
  RequestId next_id_ ABSL_GUARDED_BY(mu_) = 1;
  Map calls_ ABSL_GUARDED_BY(mu_);
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace eddy
