// Where each state field of each layer lies in the record of one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layer.h"

namespace eddy {

// Bytes of one field: the product of its shape times the size of its type, without padding.
int64_t FieldBytes(const Field& field);

// Persistent fields come first, in the order of the layers, each on a multiple of kAlign: so a
// checkpoint is the first persistent_bytes() of a flushed record, and it is the same on every
// device, whatever transient fields the device adds behind. Fill, copy, export and statistics
// iterate over this and nothing else. Immutable, any thread.
class StateLayout {
 public:
  static constexpr int64_t kAlign = 256;
  explicit StateLayout(std::span<const LayerNeeds> layers);
  int64_t offset(size_t layer, size_t field) const { return offsets_[layer][field]; }
  int64_t persistent_bytes() const { return persistent_bytes_; }
  int64_t record_bytes() const { return record_bytes_; }

 private:
  void Place(std::span<const LayerNeeds> layers, bool transient);

  std::vector<std::vector<int64_t>> offsets_;  // [layer][field], bytes
  int64_t persistent_bytes_ = 0;
  int64_t record_bytes_ = 0;
};

}  // namespace eddy
