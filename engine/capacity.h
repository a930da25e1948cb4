// How a device's memory is divided: arithmetic alone, before anything is loaded.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/blueprint.h"
#include "engine/kv_pages.h"
#include "engine/load.h"

namespace eddy {

// What the model takes of a device, in bytes.
struct MemoryNeeds {
  int64_t weights = 0;
  int64_t record = 0;         // of one sequence
  int64_t fixed = 0;          // workspace, whatever a step holds
  int64_t per_row = 0;        // workspace for each row of a step
  int64_t per_sequence = 0;   // workspace for each slot
  int64_t page = 0;           // of one page of options.kv_page_tokens; 0: no layer attends
  int64_t kv_window = 0;      // as in KvLayout
  int64_t max_positions = 0;  // of a sequence; > 0 if a layer attends without a window
};

// What all layers together take for scratch in a step of so many rows: they run one after another,
// so they share the largest.
int64_t ScratchBytes(const Blueprint& blueprint, int rows);

MemoryNeeds NeedsOf(const Blueprint& blueprint, int64_t weight_bytes, const KvLayout& kv,
                    const DeviceTraits& traits);

// Slots from memory_fraction of `free_bytes` and from max_sequences, beside the null slot. If a
// layer attends, kv_fraction of what weights and workspace leave is for pages, beside the null
// page, but no more than all slots together can use. InvalidArgument if the options contradict each
// other, ResourceExhausted with the whole sum if not even one slot and one page fit. `backend`
// decides what 0 means in the options.
absl::StatusOr<Capacity> DivideMemory(const LoadOptions& options, const MemoryNeeds& needs,
                                      int64_t free_bytes, const std::string& backend);

}  // namespace eddy
