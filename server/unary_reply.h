// One open call with one answer.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/functional/any_invocable.h"
#include "server/delivery.h"
#include "server/open_calls.h"
#include "server/output.h"
#include "server/rpc.h"

namespace eddy {

// Collects the output of a call and answers when it ends. Owns itself: OnDone, gRPC's last word,
// deletes it. Put and End come from one thread at a time.
class UnaryReply final : public grpc::ServerUnaryReactor, public Reply, private OpenCall {
 public:
  // Makes the answer of a call that ended well out of all its output.
  using Render = absl::AnyInvocable<grpc::ByteBuffer(const Output&)>;

  // `answer` lives until OnDone.
  UnaryReply(Rpc rpc, grpc::ByteBuffer* answer);

  Rpc& rpc() { return rpc_; }
  // In the handler, before the call is started: what becomes of its output, and whom to tell when
  // the client cancels. gRPC tells of a cancel only when the handler has returned.
  void Connect(Render render, Delivery* delivery, RequestId id);

  bool Put(Output output) override;
  void End(Ending ending) override;
  // For calls that need no engine: the answer, or why there is none. The last call of all.
  void Answer(const google::protobuf::Message& message);
  void Refuse(Error error) { End({.error = std::move(error)}); }

 private:
  void OnCancel() override;
  void OnDone() override;
  // The answer goes out together with the status; there is no write to be stuck in.
  bool BeginCut(absl::Time) override { return false; }
  void FinishCut() override {}

  Rpc rpc_;
  grpc::ByteBuffer* const answer_;
  Render render_;
  Delivery* delivery_ = nullptr;  // null: a call that needs no engine
  RequestId id_ = 0;
  Output output_;
};

}  // namespace eddy
