// Streams that do not take a thread each.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <utility>

#include "tests/testing/running_server.h"

namespace eddy {

// Reads one stream to its end, or cancels it after some tokens. Owned by the test, which waits for
// `done` before it is destroyed.
class StreamClient : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  // `cancel_after` tokens; negative: never. `done` comes on a thread of gRPC.
  StreamClient(v1::GenerationService::Stub* stub, v1::GenerateRequest request, int cancel_after,
               std::function<void()> done)
      : request_(std::move(request)), cancel_after_(cancel_after), done_(std::move(done)) {
    stub->async()->GenerateStream(&context_, &request_, this);
    if (cancel_after_ == 0) context_.TryCancel();
    StartRead(&message_);
    StartCall();
  }
  // After `done`.
  const StreamResult& result() const { return result_; }
  bool cancelled() const { return cancel_after_ >= 0; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    result_.Add(message_);
    if (cancel_after_ >= 0 && result_.num_tokens >= cancel_after_) context_.TryCancel();
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    result_.status = status;
    done_();
  }

  const v1::GenerateRequest request_;
  const int cancel_after_;
  const std::function<void()> done_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
  StreamResult result_;
};

// Counts down to zero.
class Countdown {
 public:
  explicit Countdown(int from) : left_(from) {}
  void Tick() {
    MutexLock lock(&mu_);
    if (--left_ == 0) zero_.NotifyAll();
  }
  void Await() {
    MutexLock lock(&mu_);
    while (left_ > 0) zero_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar zero_;
  int left_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eddy
