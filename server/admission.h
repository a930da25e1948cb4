// The way of a checked call into the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "server/call.h"
#include "server/delivery.h"
#include "server/errors.h"
#include "server/intake.h"
#include "server/served_model.h"

namespace eddy {

// Encodes prompts on threads of its own and submits them. The bound of the waiting line counts what
// waits here and what waits in the engine. Thread-safe; knows no gRPC.
class Admission {
 public:
  struct Options {
    int intake_threads = 2;
    int max_waiting_requests = 1024;
    int64_t max_waiting_prompt_tokens = 1 << 20;
  };
  // All that is pointed to outlives it.
  Admission(const Options& options, const ServedModel* model, const Clock* clock, Engine* engine,
            Delivery* delivery);

  // Takes the open call `id` on; it ends through `delivery`, whatever happens. Never blocks.
  void Start(RequestId id, CallPlan plan);
  // Does `job`, which works on so many bytes of text, on an intake thread; or says why not.
  std::optional<Error> Do(int64_t text_bytes, Intake::Job job);

 private:
  // `text_bytes` are to be encoded or decoded; the line bears `tokens` meanwhile.
  std::optional<Error> Push(int64_t text_bytes, int64_t tokens, Intake::Job job);
  // What a text counts for in the line until its tokens are known.
  int64_t TokensOf(int64_t text_bytes) const;
  void Submit(RequestId id, CallPlan plan);

  const Options options_;
  const ServedModel* const model_;
  const Clock* const clock_;
  Engine* const engine_;
  Delivery* const delivery_;
  Intake intake_;  // last: its threads use all of the above
};

}  // namespace eddy
