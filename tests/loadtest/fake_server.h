// A generation service of known latencies, in the process of the test: it counts tokens, no model.
#pragma once

#include <grpcpp/server.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "eddy/v1/generation.grpc.pb.h"
#include "eddy/v1/model.grpc.pb.h"

namespace eddy::loadtest {

// What the server does with one call.
struct FakeAnswer {
  absl::Duration first = {};    // arrival to the first token
  absl::Duration between = {};  // from one token to the next; zero: as fast as they are taken
  grpc::Status refusal = {};    // not OK: refused at once, with no token
  int tokens_per_message = 1;
  int tokens_missing = 0;  // ends well after so many fewer than asked for
};

// What it really did, since timers on a busy machine come late.
struct FakeTimes {
  double first_ms = 0;  // arrival to the writing of the first token
  uint32_t max_new_tokens = 0;
  std::vector<uint32_t> prompt;
};

// Thread-safe.
class FakeServer {
 public:
  // `plan` is given the number of the call, in order of arrival; it is called by threads of gRPC,
  // under a lock.
  explicit FakeServer(std::function<FakeAnswer(int)> plan);
  ~FakeServer();

  std::string target() const;
  // Nothing is written from now on for so long; what falls due meanwhile comes right after.
  void Stall(absl::Duration how_long) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<FakeTimes> times() const ABSL_LOCKS_EXCLUDED(mu_);  // in order of arrival
  int cancelled() const ABSL_LOCKS_EXCLUDED(mu_);                 // calls whose client went away

 private:
  class Generation;
  class Model;
  class Stream;
  friend class Stream;

  const std::function<FakeAnswer(int)> plan_;
  std::unique_ptr<Generation> generation_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;

  mutable Mutex mu_;
  absl::Time stalled_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::map<int, FakeTimes> times_ ABSL_GUARDED_BY(mu_);
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  int cancelled_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace eddy::loadtest
