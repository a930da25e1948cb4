#include "server/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/prompt.h"

namespace eddy {
namespace {

// Until a text is encoded, this many of its bytes count as one token.
constexpr int64_t kBytesPerToken = 4;
// A text of more bytes keeps a thread busy for so long, up to seconds, that others must not wait
// for it.
constexpr int64_t kShortTextBytes = 64 << 10;

}  // namespace

Admission::Admission(const Options& options, const ServedModel* model, const Clock* clock,
                     Engine* engine, Delivery* delivery)
    : options_(options),
      model_(model),
      clock_(clock),
      engine_(engine),
      delivery_(delivery),
      intake_(options.intake_threads) {}

void Admission::Start(RequestId id, CallPlan plan) {
  const int64_t bytes = plan.text.has_value() ? static_cast<int64_t>(plan.text->size()) : 0;
  const int64_t tokens =
      plan.text.has_value() ? TokensOf(bytes) : static_cast<int64_t>(plan.request.prompt.size());
  auto job = [this, id, plan = std::move(plan)]() mutable { Submit(id, std::move(plan)); };
  if (std::optional<Error> error = Push(bytes, tokens, std::move(job))) {
    delivery_->Refuse(id, std::move(*error));
  }
}

std::optional<Error> Admission::Do(int64_t text_bytes, Intake::Job job) {
  return Push(text_bytes, TokensOf(text_bytes), std::move(job));
}

// A text that holds more tokens than a prompt may is refused once it is encoded, or cut, or no
// prompt at all; it must not take more of the line than a prompt can, or it alone would close it
// for all.
int64_t Admission::TokensOf(int64_t text_bytes) const {
  return std::min<int64_t>(text_bytes / kBytesPerToken, model_->limits.max_prompt_tokens);
}

std::optional<Error> Admission::Push(int64_t text_bytes, int64_t tokens, Intake::Job job) {
  const WaitingLoad behind = engine_->waiting();
  const Intake::Load most{.jobs = options_.max_waiting_requests - behind.requests,
                          .tokens = options_.max_waiting_prompt_tokens - behind.prompt_tokens};
  const Intake::Length length =
      text_bytes > kShortTextBytes ? Intake::Length::kLong : Intake::Length::kShort;
  if (intake_.Push(std::move(job), length, tokens, most)) return std::nullopt;
  const Intake::Load here = intake_.load();
  const int64_t waiting = here.jobs + behind.requests;
  const absl::Duration retry_after = delivery_->PushBack(waiting);
  if (here.jobs >= most.jobs) {
    return QueueFull("requests", waiting, options_.max_waiting_requests, retry_after);
  }
  return QueueFull("prompt tokens", here.tokens + behind.prompt_tokens,
                   options_.max_waiting_prompt_tokens, retry_after);
}

void Admission::Submit(RequestId id, CallPlan plan) {
  if (!delivery_->IsOpen(id)) return;
  if (plan.request.deadline <= clock_->Now()) {
    return delivery_->Refuse(id, plan.client_deadline
                                     ? DeadlinePassed(Phase::kQueue)
                                     : RequestTimePassed(model_->limits.max_request_time));
  }
  PromptFacts facts;
  if (std::optional<Error> error = EncodePrompt(*model_, &plan, &facts)) {
    return delivery_->Refuse(id, std::move(*error));
  }
  const int prompt_tokens = facts.prompt_tokens;
  auto call = std::make_unique<Call>(plan, std::move(facts), model_->tokenizer.get());
  if (!delivery_->Begin(id, plan.client_deadline, std::move(call))) return;
  plan.request.id = id;
  const absl::Status status = engine_->Submit(std::move(plan.request));
  if (status.ok()) return delivery_->Submitted(id);
  if (const std::optional<LineFull> full = LineFullOf(status)) {
    const bool requests = full->bound == LineFull::Bound::kRequests;
    const absl::Duration retry_after = delivery_->PushBack(engine_->waiting().requests);
    return delivery_->Refuse(
        id,
        QueueFull(requests ? "requests" : "prompt tokens", full->waiting, full->limit, retry_after),
        prompt_tokens);
  }
  delivery_->Refuse(id, DeviceLost(std::string(status.message())), prompt_tokens);
}

}  // namespace eddy
