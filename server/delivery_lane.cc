#include "server/delivery_lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace eddy {

DeliveryLane::DeliveryLane(Environment* environment, std::string thread_name)
    : environment_(environment), thread_([this, name = std::move(thread_name)] {
        NameThisThread(name);
        Run();
      }) {}

DeliveryLane::~DeliveryLane() {
  {
    MutexLock lock(&mu_);
    EDDY_CHECK(calls_.empty());
    closed_ = true;
    news_.NotifyOne();
  }
  thread_.join();
}

void DeliveryLane::Open(RequestId id, Reply* reply) {
  MutexLock lock(&mu_);
  auto entry = std::make_unique<Entry>();
  entry->reply = reply;
  const bool is_new = calls_.emplace(id, std::move(entry)).second;
  EDDY_CHECK(is_new);
}

bool DeliveryLane::IsOpen(RequestId id) const {
  MutexLock lock(&mu_);
  return calls_.contains(id);
}

bool DeliveryLane::Begin(RequestId id, bool client_deadline, std::unique_ptr<Call> call) {
  MutexLock lock(&mu_);
  auto it = calls_.find(id);
  if (it == calls_.end()) return false;
  it->second->call = std::move(call);
  it->second->client_deadline = client_deadline;
  it->second->submitted = true;
  return true;
}

void DeliveryLane::Refuse(RequestId id, Error error, int prompt_tokens) {
  if (std::unique_ptr<Entry> entry = TakeOut(id)) {
    entry->reply->End({.error = std::move(error), .tally = {.prompt_tokens = prompt_tokens}});
  }
}

void DeliveryLane::CutOff(RequestId id, Cut why) {
  std::unique_ptr<Entry> unsubmitted;
  {
    MutexLock lock(&mu_);
    auto it = calls_.find(id);
    if (it == calls_.end()) return;
    if (it->second->submitted) {
      if (it->second->cut == Cut::kNone) it->second->cut = why;
    } else {
      unsubmitted = std::move(it->second);
      calls_.erase(it);
    }
  }
  if (unsubmitted != nullptr) {
    unsubmitted->reply->End({.error = ErrorOf(why, Phase::kQueue)});
  } else {
    environment_->cancel(id, absl::CancelledError("cut off"));
  }
}

void DeliveryLane::CutOffAll(Cut why) {
  std::vector<RequestId> ids;
  {
    MutexLock lock(&mu_);
    ids.reserve(calls_.size());
    for (const auto& [id, entry] : calls_) ids.push_back(id);
  }
  for (const RequestId id : ids) CutOff(id, why);
}

void DeliveryLane::Submitted(RequestId id) {
  {
    MutexLock lock(&mu_);
    auto it = calls_.find(id);
    if (it == calls_.end() || it->second->cut == Cut::kNone) return;
  }
  environment_->cancel(id, absl::CancelledError("cut off"));
}

void DeliveryLane::Publish(std::vector<Event> events) {
  MutexLock lock(&mu_);
  ++steps_;
  if (events_.empty()) {
    events_ = std::move(events);
  } else {
    events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                   std::make_move_iterator(events.end()));
  }
  news_.NotifyOne();
}

int DeliveryLane::open_calls() const {
  MutexLock lock(&mu_);
  return static_cast<int>(calls_.size());
}

void DeliveryLane::Run() {
  while (true) {
    std::vector<Event> events;
    int steps = 0;
    {
      MutexLock lock(&mu_);
      while (events_.empty() && !closed_) news_.Wait(&mu_);
      if (events_.empty()) return;
      events.swap(events_);
      steps = std::exchange(steps_, 0);
    }
    // A step brings a call one event at most; those of several steps are brought together.
    if (steps > 1) {
      std::stable_sort(events.begin(), events.end(),
                       [](const Event& a, const Event& b) { return a.id < b.id; });
    }
    for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
      while (end < events.size() && events[end].id == events[begin].id) ++end;
      Deliver({&events[begin], end - begin});
    }
    environment_->observer->Tokens(first_seconds_, between_seconds_);
    first_seconds_.clear();
    between_seconds_.clear();
  }
}

// What came for one call while the thread was busy goes out as one output.
void DeliveryLane::Deliver(std::span<Event> events) {
  const RequestId id = events.front().id;
  // Only this thread ends calls that were submitted, so what it finds stays alive meanwhile.
  Entry* const entry = Find(id);
  if (entry == nullptr) return;
  const bool was_stopped = entry->call->stopped();
  Output output;
  for (Event& event : events) {
    if (event.token.has_value() && !entry->call->stopped()) {
      ObserveToken(entry, environment_->clock->Now());
    }
    output.Append(entry->call->Take(&event));
    if (event.end.has_value()) return Finish(id, *event.end, std::move(output));
  }
  const bool keeps_up = output.empty() || entry->reply->Put(std::move(output));
  if (!keeps_up) {
    CutOff(id, Cut::kSlowReader);
  } else if (entry->call->stopped() && !was_stopped) {
    CutOff(id, Cut::kStopString);
  }
}

// A complete answer is never taken back: it ends well if the engine says so, or if a stop string
// was found before the call was cut for another reason.
void DeliveryLane::Finish(RequestId id, const End& end, Output output) {
  const std::unique_ptr<Entry> entry = TakeOut(id);
  const absl::Time now = environment_->clock->Now();
  environment_->meter.CallLeft(now);
  Ending ending{.tally = entry->call->TallyAt(end, now)};
  const bool complete = end.why.ok() || entry->call->stopped();
  if (complete && entry->cut != Cut::kSlowReader) {
    Output last = entry->call->Close(end, now);
    ending.finish = last.finish;
    output.Append(std::move(last));
  } else {
    ending.error = WhyCut(*entry, end);
  }
  const bool keeps_up = output.empty() || entry->reply->Put(std::move(output));
  if (!keeps_up) ending.error = ErrorOf(Cut::kSlowReader, end.phase);
  entry->reply->End(std::move(ending));
}

void DeliveryLane::ObserveToken(Entry* entry, absl::Time now) {
  if (entry->last_token == absl::InfinitePast()) {
    first_seconds_.push_back(absl::ToDoubleSeconds(now - entry->call->arrival()));
  } else {
    between_seconds_.push_back(absl::ToDoubleSeconds(now - entry->last_token));
  }
  entry->last_token = now;
}

DeliveryLane::Entry* DeliveryLane::Find(RequestId id) {
  MutexLock lock(&mu_);
  auto it = calls_.find(id);
  return it == calls_.end() ? nullptr : it->second.get();
}

std::unique_ptr<DeliveryLane::Entry> DeliveryLane::TakeOut(RequestId id) {
  MutexLock lock(&mu_);
  auto node = calls_.extract(id);
  return node.empty() ? nullptr : std::move(node.mapped());
}

Error DeliveryLane::WhyCut(const Entry& entry, const End& end) const {
  if (end.not_finite.has_value()) return StateNotFinite(*end.not_finite);
  if (absl::IsUnavailable(end.why)) return DeviceLost(std::string(end.why.message()));
  if (entry.cut != Cut::kNone) return ErrorOf(entry.cut, end.phase);
  if (absl::IsDeadlineExceeded(end.why)) {
    return entry.client_deadline ? DeadlinePassed(end.phase)
                                 : RequestTimePassed(environment_->max_request_time);
  }
  if (absl::IsCancelled(end.why)) return Cancelled();
  return Internal(end.why.ToString());
}

Error DeliveryLane::ErrorOf(Cut cut, Phase phase) const {
  switch (cut) {
    case Cut::kDeadline:
      return DeadlinePassed(phase);
    case Cut::kSlowReader:
      return SlowReader(environment_->outbox_bytes_max);
    case Cut::kDrain:
      return DrainTimeout();
    case Cut::kCancelled:
    case Cut::kStopString:
    case Cut::kNone:
      return Cancelled();
  }
  return Cancelled();
}

}  // namespace eddy
