// What one step did, for whoever watches the engine.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace eddy {

// Handed to an observer on the engine thread once per step; a plain value.
struct StepStats {
  int rows = 0;                  // tokens fed
  int sequences = 0;             // sequences that got rows
  int single_row_sequences = 0;  // of them, those that decode
  int sampled = 0;               // tokens generated
  int prompt_rows = 0;           // of `rows`, those of prompts
  int fills = 0, fills_from_checkpoint = 0, saves = 0;
  int not_finite = 0;                                 // sequences that ended for it
  absl::Duration step_time = absl::ZeroDuration();    // Plan to Commit
  absl::Duration device_time = absl::ZeroDuration();  // of it, inside Executor::Run
  // After the step:
  int running = 0;  // sequences with a slot
  int waiting = 0;  // requests without one, those still in the inbox included
  int64_t waiting_prompt_tokens = 0;
  absl::Time oldest_waiting = absl::InfiniteFuture();  // arrival of the oldest; future: none waits
  int slots_used = 0, slots_total = 0;
  int pages_used = 0, pages_total = 0;
};

}  // namespace eddy
