#include "server/delivery.h"

#include <iterator>
#include <utility>

#include "base/check.h"

namespace eddy {

Delivery::Delivery(const Options& options, const Clock* clock, CallObserver* observer,
                   absl::AnyInvocable<void(RequestId, absl::Status) const> cancel)
    : options_(options),
      clock_(clock),
      observer_(observer),
      cancel_(std::move(cancel)),
      thread_([this] { Run(); }) {}

Delivery::~Delivery() {
  {
    MutexLock lock(&mu_);
    EDDY_CHECK(calls_.empty());
    closed_ = true;
    news_.NotifyOne();
  }
  thread_.join();
}

RequestId Delivery::Open(Reply* reply) {
  MutexLock lock(&mu_);
  const RequestId id = next_id_++;
  auto entry = std::make_unique<Entry>();
  entry->reply = reply;
  calls_.emplace(id, std::move(entry));
  return id;
}

bool Delivery::IsOpen(RequestId id) const {
  MutexLock lock(&mu_);
  return calls_.contains(id);
}

bool Delivery::Begin(RequestId id, bool client_deadline, std::unique_ptr<Call> call) {
  MutexLock lock(&mu_);
  auto it = calls_.find(id);
  if (it == calls_.end()) return false;
  it->second->call = std::move(call);
  it->second->client_deadline = client_deadline;
  it->second->submitted = true;
  return true;
}

void Delivery::Refuse(RequestId id, Error error, int prompt_tokens) {
  if (std::unique_ptr<Entry> entry = TakeOut(id)) {
    entry->reply->End({.error = std::move(error), .tally = {.prompt_tokens = prompt_tokens}});
  }
}

void Delivery::CutOff(RequestId id, Cut why) {
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
    cancel_(id, absl::CancelledError("cut off"));
  }
}

void Delivery::CutOffAll(Cut why) {
  std::vector<RequestId> ids;
  {
    MutexLock lock(&mu_);
    ids.reserve(calls_.size());
    for (const auto& [id, entry] : calls_) ids.push_back(id);
  }
  for (const RequestId id : ids) CutOff(id, why);
}

void Delivery::Submitted(RequestId id) {
  {
    MutexLock lock(&mu_);
    auto it = calls_.find(id);
    if (it == calls_.end() || it->second->cut == Cut::kNone) return;
  }
  cancel_(id, absl::CancelledError("cut off"));
}

void Delivery::Publish(std::vector<Event> events) {
  if (events.empty()) return;
  MutexLock lock(&mu_);
  if (events_.empty()) {
    events_ = std::move(events);
  } else {
    events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                   std::make_move_iterator(events.end()));
  }
  news_.NotifyOne();
}

int Delivery::open_calls() const {
  MutexLock lock(&mu_);
  return static_cast<int>(calls_.size());
}

absl::Duration Delivery::PushBack(int64_t waiting) const {
  return meter_.PushBack(waiting, clock_->Now());
}

void Delivery::Run() {
  while (true) {
    std::vector<Event> events;
    {
      MutexLock lock(&mu_);
      while (events_.empty() && !closed_) news_.Wait(&mu_);
      if (events_.empty()) return;
      events.swap(events_);
    }
    for (Event& event : events) Deliver(std::move(event));
    observer_->Tokens(first_seconds_, between_seconds_);
    first_seconds_.clear();
    between_seconds_.clear();
  }
}

void Delivery::Deliver(Event event) {
  // Only this thread ends calls that were submitted, so what it finds stays alive meanwhile.
  Entry* const entry = Find(event.id);
  if (entry == nullptr) return;
  const bool was_stopped = entry->call->stopped();
  if (event.token.has_value() && !was_stopped) ObserveToken(entry, clock_->Now());
  Output output = entry->call->Take(&event);
  if (event.end.has_value()) return Finish(event.id, *event.end, std::move(output));
  const bool keeps_up = output.empty() || entry->reply->Put(std::move(output));
  if (!keeps_up) {
    CutOff(event.id, Cut::kSlowReader);
  } else if (entry->call->stopped() && !was_stopped) {
    CutOff(event.id, Cut::kStopString);
  }
}

// A complete answer is never taken back: it ends well if the engine says so, or if a stop string
// was found before the call was cut for another reason.
void Delivery::Finish(RequestId id, const End& end, Output output) {
  const std::unique_ptr<Entry> entry = TakeOut(id);
  const absl::Time now = clock_->Now();
  meter_.CallLeft(now);
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

void Delivery::ObserveToken(Entry* entry, absl::Time now) {
  if (entry->last_token == absl::InfinitePast()) {
    first_seconds_.push_back(absl::ToDoubleSeconds(now - entry->call->arrival()));
  } else {
    between_seconds_.push_back(absl::ToDoubleSeconds(now - entry->last_token));
  }
  entry->last_token = now;
}

Delivery::Entry* Delivery::Find(RequestId id) {
  MutexLock lock(&mu_);
  auto it = calls_.find(id);
  return it == calls_.end() ? nullptr : it->second.get();
}

std::unique_ptr<Delivery::Entry> Delivery::TakeOut(RequestId id) {
  MutexLock lock(&mu_);
  auto node = calls_.extract(id);
  return node.empty() ? nullptr : std::move(node.mapped());
}

Error Delivery::WhyCut(const Entry& entry, const End& end) const {
  if (end.not_finite.has_value()) return StateNotFinite(*end.not_finite);
  if (absl::IsUnavailable(end.why)) return DeviceLost(std::string(end.why.message()));
  if (entry.cut != Cut::kNone) return ErrorOf(entry.cut, end.phase);
  if (absl::IsDeadlineExceeded(end.why)) {
    return entry.client_deadline ? DeadlinePassed(end.phase)
                                 : RequestTimePassed(options_.max_request_time);
  }
  if (absl::IsCancelled(end.why)) return Cancelled();
  return Internal(end.why.ToString());
}

Error Delivery::ErrorOf(Cut cut, Phase phase) const {
  switch (cut) {
    case Cut::kDeadline:
      return DeadlinePassed(phase);
    case Cut::kSlowReader:
      return SlowReader(options_.outbox_bytes_max);
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
