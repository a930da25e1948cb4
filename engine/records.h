// The bytes behind the slots: one record of fixed size for each, filled, copied out and examined by
// its layout alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "kernels/device.h"
#include "kernels/layer.h"
#include "kernels/state_layout.h"

namespace eddy {

// A field of one layer in the record.
struct RecordField {
  int layer = 0;
  std::string name = {};
};

// Copies are enqueued on the device's stream, in order with the layers' work. Engine thread only,
// and loading before that. Uses the device, which outlives it.
class Records {
 public:
  // Memory for slots 0..slots (slot 0 belongs to nobody) and one fresh record. Nothing when memory
  // is short. `layers` is the whole model's, `fresh` as MakeFreshRecord makes it.
  static std::optional<Records> Allocate(Device* device, std::span<const LayerNeeds> layers,
                                         int slots, std::span<const std::byte> fresh);

  // Where the layer finds field `field` of each slot.
  FieldView View(size_t layer, size_t field) const;
  const StateLayout& layout() const { return layout_; }

  void Fill(int32_t slot);  // with the initial values
  // With a flushed record's persistent part, [persistent_bytes()]; it stays as it is until the
  // device has finished.
  void Fill(int32_t slot, std::span<const std::byte> persistent);
  // Copies the persistent part out. REQUIRES: it was flushed.
  void Save(int32_t slot, std::span<std::byte> to);
  // Of each persistent field of a record that was saved; FieldStats::layer is the index in `layers`
  // of Allocate, and there is no layer_type.
  std::vector<FieldStats> Stats(std::span<const std::byte> persistent) const;
  // Fills the record with NaN, in debug builds only.
  void Poison(int32_t slot);
  // The first persistent field with a NaN or infinity in it, if any. Waits for the device; its
  // error is the device's. REQUIRES: the record was flushed.
  absl::StatusOr<std::optional<RecordField>> FirstNotFinite(int32_t slot);

 private:
  Records(Device* device, std::span<const LayerNeeds> layers);
  std::byte* At(int32_t slot) const;

  Device* device_;
  std::vector<std::vector<Field>> fields_;  // [layer][field]
  StateLayout layout_;
  Buffer memory_;
  Buffer fresh_;  // on the device: all of a record
};

// A record with the initial values: constants, or the weights that Field::initial_weight names.
// `weights` are each layer's, on the device. Waits for the device. Unavailable with its error;
// InvalidArgument, naming the weight, where e to the power of it is infinite.
absl::StatusOr<std::vector<std::byte>> MakeFreshRecord(
    Device* device, std::span<const LayerNeeds> layers,
    std::span<const std::vector<TensorView>> weights);

// SHA-256 of everything that gives the persistent part of a record, and the keys and values beside
// it, their meaning.
std::array<uint8_t, 32> LayoutFingerprint(std::span<const LayerNeeds> layers);

}  // namespace eddy
