#include "engine/capacity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace eddy {
namespace {

// What the options mean where they are 0.
struct Defaults {
  int max_sequences = 0;
  int max_rows_per_step = 0;
};
Defaults DefaultsOf(const std::string& backend) {
  if (backend == "cpu") return {.max_sequences = 16, .max_rows_per_step = 256};
  return {.max_sequences = 1024, .max_rows_per_step = 2048};
}

}  // namespace

absl::StatusOr<Capacity> DivideMemory(const LoadOptions& options, const MemoryNeeds& needs,
                                      int64_t free_bytes, const std::string& backend) {
  const Defaults defaults = DefaultsOf(backend);
  const int rows =
      options.max_rows_per_step > 0 ? options.max_rows_per_step : defaults.max_rows_per_step;
  // A step must hold a row of every sequence and one more, or prompts would starve.
  if (options.max_sequences >= rows || rows < 2) {
    return absl::InvalidArgumentError(absl::StrCat("max_rows_per_step is ", rows,
                                                   ", must be more than max_sequences, ",
                                                   std::max(1, options.max_sequences)));
  }
  const int wanted = options.max_sequences > 0 ? options.max_sequences
                                               : std::min(defaults.max_sequences, rows - 1);

  const auto budget =
      static_cast<int64_t>(options.memory_fraction * static_cast<double>(free_bytes));
  const int64_t workspace = needs.fixed + needs.per_row * rows;
  const int64_t per_slot = needs.record + needs.per_sequence;
  const int64_t rest = budget - needs.weights - workspace - needs.record;  // of the null slot
  const int64_t fitting = per_slot > 0 ? rest / per_slot : wanted;
  if (rest < 0 || fitting < 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the model does not fit: weights ", needs.weights, " + workspace ", workspace,
        " + records of two slots ", 2 * needs.record, " bytes, but memory_fraction ",
        options.memory_fraction, " of the ", free_bytes, " bytes that are free is ", budget));
  }
  Capacity capacity;
  capacity.slots = static_cast<int>(std::min<int64_t>(wanted, fitting));
  capacity.max_rows_per_step = rows;
  capacity.weight_bytes = needs.weights;
  capacity.state_bytes = needs.record * (capacity.slots + 1);
  capacity.workspace_bytes = workspace + needs.per_sequence * capacity.slots;
  capacity.lowered = options.max_sequences > capacity.slots;
  return capacity;
}

}  // namespace eddy
