// Runs plans on a device.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/batch_plan.h"

namespace eddy {

// What one entry of the plan brought.
struct EntryResult {
  std::vector<TokenReport> scored = {};     // prompt tokens that the request wants reported
  std::optional<TokenReport> sampled = {};  // if the entry samples
  std::vector<float> next = {};             // see Event
  std::vector<Candidate> next_top = {};
  std::optional<NotFinite> not_finite = {};  // the sequence's numbers are lost; nothing else is set
};

struct StepResult {
  std::vector<EntryResult> entries;  // one for each of plan.entries
  // One for each of plan.saves. Their room in host memory was reserved before the request came in.
  std::vector<std::shared_ptr<const Checkpoint>> saved;
};

// Not thread-safe: the engine loop owns it.
class Executor {
 public:
  virtual ~Executor() = default;
  // Does what the plan says and returns when the tokens are on the host. An error is final: the
  // device's state is unknown after it.
  virtual absl::StatusOr<StepResult> Run(const BatchPlan& plan) = 0;
};

}  // namespace eddy
