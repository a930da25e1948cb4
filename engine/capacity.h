// How a device's memory is divided: arithmetic alone, before anything is loaded.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/load.h"

namespace eddy {

// What the model takes of a device, in bytes.
struct MemoryNeeds {
  int64_t weights = 0;
  int64_t record = 0;        // of one sequence
  int64_t fixed = 0;         // workspace, whatever a step holds
  int64_t per_row = 0;       // workspace for each row of a step
  int64_t per_sequence = 0;  // workspace for each slot
};

// Slots from memory_fraction of `free_bytes` and from max_sequences, beside the null slot.
// InvalidArgument if the options contradict each other, ResourceExhausted with the whole sum if not
// even one sequence fits. `backend` decides what 0 means in the options.
absl::StatusOr<Capacity> DivideMemory(const LoadOptions& options, const MemoryNeeds& needs,
                                      int64_t free_bytes, const std::string& backend);

}  // namespace eddy
