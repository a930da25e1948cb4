// The channel to the server and the flags that all commands share.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace eddy::client {

struct CommonFlags {
  std::string target = "localhost:50051";
  std::string model;
  absl::Duration timeout = absl::Seconds(60);
  std::string output = "text";
  int retries = 3;
  std::string request_id;
  std::string traceparent;
};

// Retries what was refused and may succeed soon (a full line, a server that starts or ends), as the
// server's pushback says. Nothing waits longer than the timeout.
class Connection {
 public:
  explicit Connection(const CommonFlags& common);

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Gives a call its deadline, the timeout from now on, and the trace that it belongs to.
  void Prepare(grpc::ClientContext* context) const;
  // Keeps what the server said of the trace of a call that is over.
  void NoteTrace(const grpc::ClientContext& context);
  const std::string& trace_id() const { return trace_id_; }  // empty: it said nothing

 private:
  const absl::Duration timeout_;
  const std::string traceparent_;
  std::string trace_id_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace eddy::client
