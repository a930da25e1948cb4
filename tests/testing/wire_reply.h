// A stream over a wire that takes its time: what TokenStream is to gRPC, without gRPC.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/check.h"
#include "base/mutex.h"
#include "server/mailbox.h"
#include "server/output.h"

namespace eddy {

class WireReply;

// A thread that completes the writes of many replies, a random number of them at a time and in
// random order.
class FakeWire {
 public:
  explicit FakeWire(unsigned seed) : thread_([this, seed] { Run(seed); }) {}
  ~FakeWire() {
    {
      MutexLock lock(&mu_);
      closed_ = true;
      news_.NotifyOne();
    }
    thread_.join();
  }
  void Write(WireReply* reply, Output output) {
    MutexLock lock(&mu_);
    writes_.push_back({reply, std::move(output)});
    news_.NotifyOne();
  }

 private:
  struct Transfer {
    WireReply* reply = nullptr;
    Output output = {};
  };
  void Run(unsigned seed);

  Mutex mu_;
  CondVar news_;
  std::vector<Transfer> writes_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: starts when all else is ready
};

// Thread-safe. Checks that there is one write at a time, and one finish, after the last of them.
class WireReply : public Reply {
 public:
  explicit WireReply(FakeWire* wire) : wire_(wire) {}

  bool Put(Output output) override {
    Mailbox::Todo todo = mailbox_.Put(std::move(output), absl::UnixEpoch());
    const bool keeps_up = !todo.overflow;
    Do(std::move(todo));
    return keeps_up;
  }
  void End(Ending ending) override { Do(mailbox_.End(std::move(ending))); }
  // The wire's.
  void OnWriteDone(Output output) {
    {
      MutexLock lock(&mu_);
      EDDY_CHECK(writing_ && !ending_.has_value());
      writing_ = false;
      arrived_.Append(std::move(output));
      changed_.NotifyAll();
    }
    Do(mailbox_.Written(true, absl::UnixEpoch()));
  }

  void AwaitTokens(int least) {
    MutexLock lock(&mu_);
    while (arrived_.num_tokens < least) changed_.Wait(&mu_);
  }
  Ending AwaitFinish() {
    MutexLock lock(&mu_);
    while (!ending_.has_value()) changed_.Wait(&mu_);
    return *ending_;
  }
  std::string text() const {
    MutexLock lock(&mu_);
    return arrived_.text;
  }

 private:
  void Do(Mailbox::Todo todo) {
    if (todo.write.has_value()) {
      {
        MutexLock lock(&mu_);
        EDDY_CHECK(!writing_ && !ending_.has_value());
        writing_ = true;
      }
      wire_->Write(this, *std::move(todo.write));
    } else if (todo.finish.has_value()) {
      MutexLock lock(&mu_);
      EDDY_CHECK(!writing_ && !ending_.has_value());
      ending_ = *std::move(todo.finish);
      changed_.NotifyAll();
    }
  }

  FakeWire* const wire_;
  Mailbox mailbox_{1 << 20};
  mutable Mutex mu_;
  CondVar changed_;
  Output arrived_ ABSL_GUARDED_BY(mu_);
  std::optional<Ending> ending_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
};

inline void FakeWire::Run(unsigned seed) {
  std::mt19937 rng(seed);
  while (true) {
    std::vector<Transfer> writes;
    {
      MutexLock lock(&mu_);
      while (writes_.empty() && !closed_) news_.Wait(&mu_);
      if (writes_.empty()) return;
      std::shuffle(writes_.begin(), writes_.end(), rng);
      for (size_t some = rng() % writes_.size() + 1; some > 0; --some) {
        writes.push_back(std::move(writes_.back()));
        writes_.pop_back();
      }
    }
    for (Transfer& write : writes) write.reply->OnWriteDone(std::move(write.output));
  }
}

}  // namespace eddy
