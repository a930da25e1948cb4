// Runs plans on a device.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/batch_plan.h"

namespace eddy {

// What one entry of the plan brought.
struct EntryResult {
  std::vector<TokenReport> scored = {};      // one for each of Sequence::scored_by
  std::optional<TokenReport> sampled = {};   // if the entry samples
  std::vector<float> next = {};              // see Event; if the entry is `last`
  std::vector<Candidate> next_top = {};      // likewise
  std::optional<NotFinite> not_finite = {};  // the sequence's numbers are lost; nothing else is set
  // The request's own parameters bar every token, so none was sampled; nothing else is set.
  bool barred = false;
};

// What a saved sequence left behind. Room for the checkpoint in host memory was reserved before the
// request came in.
struct Saved {
  std::shared_ptr<const Checkpoint> state = nullptr;  // exactly if the request keeps its state
  std::vector<FieldStats> stats = {};                 // if it asks for them
};

struct StepResult {
  std::vector<EntryResult> entries = {};  // one for each of plan.entries
  std::vector<Saved> saved = {};          // one for each of plan.saves
  bool recorded = false;                  // it ran from the device's record of such steps
};

// Not thread-safe: the engine loop owns it.
class Executor {
 public:
  virtual ~Executor() = default;
  // Never given an empty plan. Does what the plan says and returns when the tokens are on the host.
  // An error is final: the device's state is unknown after it.
  virtual absl::StatusOr<StepResult> Run(const BatchPlan& plan) = 0;
};

}  // namespace eddy
