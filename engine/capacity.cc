#include "engine/capacity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "engine/readouts.h"
#include "engine/step_buffers.h"
#include "kernels/rules/attention/attention.h"

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

// Pages that one sequence needs at most: a ring if a window bounds what is read, and never more
// than its positions fill.
int64_t PagesPerSequence(const LoadOptions& options, const MemoryNeeds& needs, int rows) {
  const int64_t per_page = options.kv_page_tokens;
  if (needs.page == 0) return 0;
  EDDY_CHECK(needs.kv_window > 0 || needs.max_positions > 0);
  int64_t pages = INT32_MAX;
  if (needs.max_positions > 0) pages = (needs.max_positions + per_page - 1) / per_page;
  if (needs.kv_window == 0) return pages;
  return std::min(
      pages,
      RingPages({.window = needs.kv_window, .max_rows_per_step = rows, .rows_per_page = per_page}));
}

absl::Status CheckOptions(const LoadOptions& options, const MemoryNeeds& needs, int rows) {
  // A step must hold a row of every sequence and one more, or prompts would starve.
  if (options.max_sequences >= rows || rows < 2) {
    return absl::InvalidArgumentError(absl::StrCat("max_rows_per_step is ", rows,
                                                   ", must be more than max_sequences, ",
                                                   std::max(1, options.max_sequences)));
  }
  if (needs.page == 0) return absl::OkStatus();
  if (!(options.kv_fraction > 0 && options.kv_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_fraction is ", options.kv_fraction,
                     ", must be above 0 and below 1 for a model with attention layers"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ScratchBytes(const Blueprint& blueprint, int rows) {
  int64_t most = 1;
  for (const LayerNeeds& needs : blueprint.needs) {
    most = std::max(most, needs.scratch_bytes + needs.scratch_bytes_per_row * rows);
  }
  return most;
}

MemoryNeeds NeedsOf(const Blueprint& blueprint, int64_t weight_bytes, const KvLayout& kv,
                    const DeviceTraits& traits) {
  const StateLayout layout(blueprint.needs);
  // The scratch of many rows is bounded by its slope from none to one.
  int64_t scratch_per_row = 0;
  for (const LayerNeeds& needs : blueprint.needs) {
    scratch_per_row = std::max(scratch_per_row, needs.scratch_bytes_per_row);
  }
  const int64_t logits = traits.logit_rows * blueprint.ends.vocab * SizeOf(DType::kF32);
  return {.weights = weight_bytes,
          .record = layout.record_bytes(),
          // The fresh record is one more.
          .fixed = ScratchBytes(blueprint, 0) + logits + layout.record_bytes(),
          .per_row = scratch_per_row + blueprint.ends.d_model * SizeOf(DType::kF32) +
                     StepBuffers::Bytes({.rows = 1}) + Readouts::BytesPerRow(blueprint.needs),
          .per_sequence = StepBuffers::Bytes({.sequences = 1}),
          .page = kv.page_bytes(),
          .kv_window = kv.window(),
          .max_positions = blueprint.config.max_positions};
}

absl::StatusOr<Capacity> DivideMemory(const LoadOptions& options, const MemoryNeeds& needs,
                                      int64_t free_bytes, const std::string& backend) {
  const Defaults defaults = DefaultsOf(backend);
  const int rows =
      options.max_rows_per_step > 0 ? options.max_rows_per_step : defaults.max_rows_per_step;
  EDDY_RETURN_IF_ERROR(CheckOptions(options, needs, rows));
  const int wanted = options.max_sequences > 0 ? options.max_sequences
                                               : std::min(defaults.max_sequences, rows - 1);

  const auto budget =
      static_cast<int64_t>(options.memory_fraction * static_cast<double>(free_bytes));
  const int64_t workspace = needs.fixed + needs.per_row * rows;
  const int64_t pages_per_sequence = PagesPerSequence(options, needs, rows);
  const int64_t sequence_workspace =
      needs.per_sequence + pages_per_sequence * static_cast<int64_t>(sizeof(int32_t));
  const int64_t per_slot = needs.record + sequence_workspace;
  // Without the null slot and the null page.
  const int64_t rest = budget - needs.weights - workspace - needs.record - needs.page;
  const auto for_pages =
      needs.page == 0 ? int64_t{0}
                      : static_cast<int64_t>(options.kv_fraction * static_cast<double>(rest));
  const int64_t fitting = per_slot > 0 ? (rest - for_pages) / per_slot : wanted;
  if (rest < 0 || fitting < 1 || for_pages < needs.page) {
    const std::string pages = needs.page == 0
                                  ? ""
                                  : absl::StrCat(" + two pages ", 2 * needs.page, " (kv_fraction ",
                                                 options.kv_fraction, " of the rest)");
    return absl::ResourceExhaustedError(absl::StrCat(
        "the model does not fit: weights ", needs.weights, " + workspace ", workspace,
        " + records of two slots ", 2 * needs.record, pages, " bytes, but memory_fraction ",
        options.memory_fraction, " of the ", free_bytes, " bytes that are free is ", budget));
  }
  Capacity capacity;
  capacity.slots = static_cast<int>(std::min<int64_t>(wanted, fitting));
  capacity.max_rows_per_step = rows;
  capacity.weight_bytes = needs.weights;
  capacity.state_bytes = needs.record * (capacity.slots + 1);
  capacity.workspace_bytes = workspace + sequence_workspace * capacity.slots;
  capacity.lowered = options.max_sequences > capacity.slots;
  if (needs.page == 0) return capacity;
  capacity.rows_per_page = options.kv_page_tokens;
  capacity.pages_per_sequence = static_cast<int>(pages_per_sequence);
  capacity.pages = static_cast<int>(std::min(
      {for_pages / needs.page, pages_per_sequence * capacity.slots, int64_t{INT32_MAX} - 1}));
  capacity.kv_bytes = needs.page * (int64_t{capacity.pages} + 1);
  return capacity;
}

}  // namespace eddy
