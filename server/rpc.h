// What is known of one RPC from its arrival to its log line.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "base/clock.h"
#include "server/errors.h"
#include "server/open_calls.h"
#include "server/output.h"
#include "server/trace_spans.h"

namespace eddy {

class Metrics;
class TraceExporter;

// What all replies share; outlives them.
struct RpcEnvironment {
  const Clock* clock = nullptr;
  Metrics* metrics = nullptr;
  OpenCalls* open_calls = nullptr;
  TraceExporter* traces = nullptr;  // null: nobody gets any
  double trace_sample_ratio = 0;    // of calls without a parent
};

// One for each reactor, from the handler to Finish.
class Rpc {
 public:
  // `method` is the RPC's name, "eddy.v1.ModelService/GetModel", a literal. `context` lives until
  // the reactor's OnDone.
  Rpc(grpc::CallbackServerContext* context, std::string_view method, const RpcEnvironment* env);

  // Names the call: by the request's field, else the metadata x-request-id, else a UUID. Adds a
  // fault if what it finds is no name, which then is not used.
  void ChooseId(const std::string& field, Faults* faults);
  // This call is one for the engine and counts in its metrics.
  void CountForEngine(int max_new_tokens) {
    for_engine_ = true;
    max_new_tokens_ = max_new_tokens;
  }

  const std::string& id() const { return id_; }
  absl::Time arrival() const { return timer_.start(); }
  // InfiniteFuture: the client set none.
  absl::Time client_deadline() const { return client_deadline_; }
  const RpcEnvironment& env() const { return *env_; }

  // Why a call that gRPC calls cancelled was: its deadline may have passed.
  bool PastDeadline() const { return client_deadline_ <= env_->clock->Now(); }
  // The last thing before Finish: sets the trailers, writes the log line, counts, hands the trace
  // on. Returns what to finish with.
  grpc::Status Close(const Ending& ending);
  // REQUIRES: Finish was not called.
  void TryCancel() { context_->TryCancel(); }

 private:
  void WriteLog(const Ending& ending) const;
  void Count(const Ending& ending) const;
  void Trace(const Ending& ending) const;
  std::string Metadata(const char* key) const;
  std::string AllOf(const char* key) const;  // joined by commas

  grpc::CallbackServerContext* const context_;
  const std::string_view service_, method_;
  const RpcEnvironment* const env_;
  const CallTimer timer_;
  absl::Time client_deadline_ = absl::InfiniteFuture();
  std::string id_;
  TracePlace place_;
  bool for_engine_ = false;
  int max_new_tokens_ = 0;
};

}  // namespace eddy
