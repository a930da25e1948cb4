// The arrays of a step: filled in page-locked host memory, used on the device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/device.h"

namespace eddy {

// Allocated once, at full size. Between Clear and the next Device::Finish the host arrays of what
// was uploaded must not change, so there is at most one upload between two Finish. Engine thread
// only; the device outlives it.
class StepBuffers {
 public:
  static int64_t Bytes(int max_rows, int max_sequences);
  // Nothing when memory is short.
  static std::optional<StepBuffers> Allocate(Device* device, int max_rows, int max_sequences);

  void Clear();
  // One more sequence with these tokens, of which `position` came before; none for a flush.
  void Add(int32_t slot, int64_t position, std::span<const int32_t> tokens);
  // Sends what was added to the device. `single_row_sequences`: as in Step.
  Step Upload(int single_row_sequences);

 private:
  StepBuffers(Device* device, int max_rows, int max_sequences)
      : device_(device), max_rows_(max_rows), max_sequences_(max_sequences) {}
  // Where each array starts, in elements of one block.
  int64_t row_start_at() const { return max_rows_; }
  int64_t slots_at() const { return row_start_at() + max_sequences_ + 1; }
  int64_t positions_at() const { return slots_at() + max_sequences_; }

  Device* device_;
  int max_rows_;
  int max_sequences_;
  Buffer host_;
  Buffer on_device_;
  int rows_ = 0;
  int sequences_ = 0;
  int max_rows_per_sequence_ = 0;
};

}  // namespace eddy
