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
};

// Retries what was refused and may succeed soon (a full line, a server that starts or ends), as the
// server's pushback says. Nothing waits longer than the timeout.
class Connection {
 public:
  explicit Connection(const CommonFlags& common);

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Gives a call its deadline: the timeout from now on.
  void SetDeadline(grpc::ClientContext* context) const;

 private:
  const absl::Duration timeout_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace eddy::client
