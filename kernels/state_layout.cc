#include "kernels/state_layout.h"

namespace eddy {

int64_t FieldBytes(const Field& field) {
  int64_t bytes = SizeOf(field.dtype);
  for (int64_t dim : field.shape) bytes *= dim;
  return bytes;
}

StateLayout::StateLayout(std::span<const LayerNeeds> layers) {
  offsets_.resize(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) offsets_[i].resize(layers[i].state.size());
  Place(layers, /*transient=*/false);
  persistent_bytes_ = record_bytes_;
  Place(layers, /*transient=*/true);
}

void StateLayout::Place(std::span<const LayerNeeds> layers, bool transient) {
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t f = 0; f < layers[i].state.size(); ++f) {
      const Field& field = layers[i].state[f];
      if (field.transient != transient) continue;
      offsets_[i][f] = record_bytes_;
      record_bytes_ += (FieldBytes(field) + kAlign - 1) / kAlign * kAlign;
    }
  }
}

}  // namespace eddy
