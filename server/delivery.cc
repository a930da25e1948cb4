#include "server/delivery.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace eddy {

Delivery::Delivery(const Options& options, const Clock* clock, CallObserver* observer,
                   absl::AnyInvocable<void(RequestId, absl::Status) const> cancel)
    : environment_{.max_request_time = options.max_request_time,
                   .outbox_bytes_max = options.outbox_bytes_max,
                   .clock = clock,
                   .observer = observer,
                   .cancel = std::move(cancel)} {
  EDDY_CHECK(options.threads >= 1);
  for (int i = 0; i < options.threads; ++i) {
    lanes_.push_back(std::make_unique<DeliveryLane>(&environment_, absl::StrCat("delivery", i)));
  }
}

RequestId Delivery::Open(Reply* reply) {
  const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  lane(id).Open(id, reply);
  return id;
}

void Delivery::CutOffAll(Cut why) {
  for (const auto& lane : lanes_) lane->CutOffAll(why);
}

void Delivery::Publish(std::vector<Event> events) {
  if (lanes_.size() == 1) return lanes_[0]->Publish(std::move(events));
  std::vector<std::vector<Event>> shares(lanes_.size());
  for (auto& share : shares) share.reserve(events.size() / lanes_.size() + 8);
  for (Event& event : events) {
    shares[static_cast<size_t>(event.id) % lanes_.size()].push_back(std::move(event));
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!shares[i].empty()) lanes_[i]->Publish(std::move(shares[i]));
  }
}

int Delivery::open_calls() const {
  int calls = 0;
  for (const auto& lane : lanes_) calls += lane->open_calls();
  return calls;
}

absl::Duration Delivery::PushBack(int64_t waiting) const {
  return environment_.meter.PushBack(waiting, environment_.clock->Now());
}

}  // namespace eddy
