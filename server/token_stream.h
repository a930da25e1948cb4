// One open call whose answer is a stream.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/functional/any_invocable.h"
#include "server/delivery.h"
#include "server/mailbox.h"
#include "server/open_calls.h"
#include "server/output.h"
#include "server/rpc.h"

namespace eddy {

// The write reactor around a mailbox. Owns itself: OnDone, gRPC's last word, deletes it. OnDone
// comes only after Finish, Finish is called by whoever got it as a Todo, and nobody else touches
// the stream after that.
class TokenStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          public Reply,
                          private OpenCall {
 public:
  // Makes a message out of what is new.
  using Render = absl::AnyInvocable<grpc::ByteBuffer(const Output&)>;

  TokenStream(Rpc rpc, int64_t outbox_bytes_max);

  Rpc& rpc() { return rpc_; }
  // See UnaryReply.
  void Connect(Render render, Delivery* delivery, RequestId id);

  bool Put(Output output) override;
  void End(Ending ending) override { Do(mailbox_.End(std::move(ending))); }
  void Refuse(Error error) { End({.error = std::move(error)}); }

 private:
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  bool BeginCut(absl::Time since) override { return mailbox_.BeginCut(since); }
  void FinishCut() override;
  // Touches no member when there is nothing to do: the stream may be gone by then.
  void Do(Mailbox::Todo todo);

  Rpc rpc_;
  Render render_;
  Delivery* delivery_ = nullptr;  // null: refused
  RequestId id_ = 0;
  Mailbox mailbox_;
  grpc::ByteBuffer message_;  // belongs to gRPC while a write is under way
};

}  // namespace eddy
