#include "server/unary_reply.h"

#include "server/wire.h"

namespace eddy {

UnaryReply::UnaryReply(Rpc rpc, grpc::ByteBuffer* answer) : rpc_(std::move(rpc)), answer_(answer) {
  rpc_.env().open_calls->Add(this);
}

void UnaryReply::Connect(Render render, Delivery* delivery, RequestId id) {
  render_ = std::move(render);
  delivery_ = delivery;
  id_ = id;
}

bool UnaryReply::Put(Output output) {
  output_.Append(std::move(output));
  return true;
}

void UnaryReply::End(Ending ending) {
  if (!ending.error.has_value()) *answer_ = render_(output_);
  Finish(rpc_.Close(ending));
}

void UnaryReply::Answer(const google::protobuf::Message& message) {
  *answer_ = WriteMessage(message);
  Finish(rpc_.Close({}));
}

void UnaryReply::OnCancel() {
  if (delivery_ == nullptr) return;
  delivery_->CutOff(id_, rpc_.PastDeadline() ? Cut::kDeadline : Cut::kCancelled);
}

void UnaryReply::OnDone() {
  rpc_.env().open_calls->Remove(this);
  delete this;
}

}  // namespace eddy
