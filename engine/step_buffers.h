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
  // The most that a step can have.
  struct Size {
    int rows = 0;
    int sequences = 0;
    int pages = 0;  // of one sequence
  };
  static int64_t Bytes(const Size& size);
  // Nothing when memory is short.
  static std::optional<StepBuffers> Allocate(Device* device, const Size& size);

  // `max_pages`: the most pages of a sequence that will be added; 0: no layer reads any.
  void Clear(int max_pages);
  // One more sequence with these tokens, of which `position` came before; none for a flush.
  // `pages`: as in Step, at most max_pages.
  void Add(int32_t slot, int64_t position, std::span<const int32_t> tokens,
           std::span<const int32_t> pages);
  // Adds sequences of nobody, with one row each, until there are so many.
  void Pad(int sequences);
  // Sends what was added to the device. `single_row_sequences`: as in Step.
  Step Upload(int single_row_sequences);

 private:
  StepBuffers(Device* device, const Size& size) : device_(device), size_(size) {}
  // Where each array starts, in elements of one block. The pages come last, so that only those in
  // use are sent.
  int64_t row_start_at() const { return size_.rows; }
  int64_t slots_at() const { return row_start_at() + size_.sequences + 1; }
  int64_t positions_at() const { return slots_at() + size_.sequences; }
  int64_t pages_at() const { return positions_at() + size_.sequences; }

  Device* device_;
  Size size_;
  Buffer host_;
  Buffer on_device_;
  int rows_ = 0;
  int sequences_ = 0;
  int max_rows_per_sequence_ = 0;
  int max_pages_ = 0;
};

}  // namespace eddy
