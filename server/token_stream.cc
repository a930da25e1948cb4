#include "server/token_stream.h"

#include "server/metrics.h"

namespace eddy {

TokenStream::TokenStream(Rpc rpc, int64_t outbox_bytes_max)
    : rpc_(std::move(rpc)), mailbox_(outbox_bytes_max) {
  rpc_.env().open_calls->Add(this);
}

void TokenStream::Connect(Render render, Delivery* delivery, RequestId id) {
  render_ = std::move(render);
  delivery_ = delivery;
  id_ = id;
}

bool TokenStream::Put(Output output) {
  Mailbox::Todo todo = mailbox_.Put(std::move(output), rpc_.env().clock->Now());
  const bool keeps_up = !todo.overflow;
  Do(std::move(todo));
  return keeps_up;
}

void TokenStream::OnWriteDone(bool ok) {
  if (!ok && delivery_ != nullptr) delivery_->CutOff(id_, Cut::kCancelled);
  Do(mailbox_.Written(ok, rpc_.env().clock->Now()));
}

void TokenStream::OnCancel() {
  if (delivery_ == nullptr) return;
  delivery_->CutOff(id_, rpc_.PastDeadline() ? Cut::kDeadline : Cut::kCancelled);
}

void TokenStream::OnDone() {
  rpc_.env().open_calls->Remove(this);
  delete this;
}

// The mailbox withholds Finish meanwhile, so that the context is there to be cancelled.
void TokenStream::FinishCut() {
  rpc_.env().metrics->CountStall();
  if (delivery_ != nullptr) delivery_->CutOff(id_, Cut::kSlowReader);
  rpc_.TryCancel();
  Do(mailbox_.EndCut());
}

void TokenStream::Do(Mailbox::Todo todo) {
  if (todo.write.has_value()) {
    // A step makes one token of a sequence.
    if (todo.write->num_tokens > 1) rpc_.env().metrics->CountCoalescedMessage();
    message_ = render_(*todo.write);
    StartWrite(&message_);
  } else if (todo.finish.has_value()) {
    Finish(rpc_.Close(*todo.finish));
  }
}

}  // namespace eddy
