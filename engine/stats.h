// What one step did and what the engine holds, for whoever watches it. Plain values.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "engine/batch_plan.h"
#include "engine/executor.h"

namespace eddy {

// Requests without a slot.
struct WaitingLoad {
  int requests = 0;
  int64_t prompt_tokens = 0;
  absl::Time oldest = absl::InfiniteFuture();  // the earliest arrival; future: none waits
};
WaitingLoad operator+(const WaitingLoad& a, const WaitingLoad& b);

// Handed to an observer on the engine thread once per turn of the loop. A turn in which the line
// changed but nothing ran has rows, fills and saves 0.
struct StepStats {
  int rows = 0;                  // tokens fed
  int sequences = 0;             // sequences that got rows
  int single_row_sequences = 0;  // of them, those that go through the step kernels
  int sampled = 0;               // tokens generated
  int prompt_rows = 0;           // of `rows`, those of prompts
  int fills = 0, fills_from_checkpoint = 0, saves = 0;
  int not_finite = 0;                                 // sequences that ended for it
  bool recorded = false;                              // see RecordedSteps
  absl::Duration step_time = absl::ZeroDuration();    // before Plan to after Commit
  absl::Duration device_time = absl::ZeroDuration();  // of it, inside Executor::Run
  // After the step:
  int running = 0;  // sequences with a slot
  int waiting = 0;  // requests without one, those still in the inbox included
  int64_t waiting_prompt_tokens = 0;
  absl::Time oldest_waiting = absl::InfiniteFuture();  // as in WaitingLoad
  int slots_used = 0, slots_total = 0;
  int pages_used = 0, pages_total = 0;
};

// The counts of a step that ran; the rest is left at its default. REQUIRES: the step was not yet
// committed, since that changes the sequences of the plan.
StepStats CountStep(const BatchPlan& plan, const StepResult& result);

}  // namespace eddy
