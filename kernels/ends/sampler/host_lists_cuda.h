// The lists of the GPU's sampler in one piece of page-locked memory.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/ends/sampler/sampler_stage.h"

namespace eddy {

class HostLists {
 public:
  // Room for any one row, and for tiles of `max_rows` rows that ask for no more than tiles do: a
  // tile that does is cut. False as a bool if memory is short.
  HostLists(int64_t vocab, int max_rows);
  explicit operator bool() const { return static_cast<bool>(memory_); }
  const SampleLists& lists() const { return lists_; }

 private:
  Buffer memory_;
  SampleLists lists_;
};

}  // namespace eddy
