// What the layers tell of tokens, on its way from the device to the reports.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "kernels/device.h"
#include "kernels/layer.h"

namespace eddy {

// One array for a step of so many rows, [read-outs of all layers, rows], allocated at full size.
// Engine thread only; the device outlives it.
class Readouts {
 public:
  // On the device.
  static int64_t BytesPerRow(std::span<const LayerNeeds> layers);
  // Nothing when memory is short. `rows`: the most that a step has.
  static std::optional<Readouts> Allocate(Device* device, std::span<const LayerNeeds> layers,
                                          int rows);

  // What Step::readouts is for the whole model; null if no layer tells anything.
  float* on_device() const { return static_cast<float*>(on_device_.data()); }
  // Enqueues the copy of what a step of `rows` rows told.
  void Fetch(int rows);
  // Sets `kalman` and `delta` to means over the layers of each kind: of the row that the token was
  // predicted from. REQUIRES: that step was fetched, and the device has finished.
  void Tell(int row, TokenReport* report) const;

 private:
  Readouts(Device* device, std::vector<Readout> kinds)
      : device_(device), kinds_(std::move(kinds)) {}

  Device* device_;
  std::vector<Readout> kinds_;  // of all layers, one after another
  Buffer on_device_;
  Buffer on_host_;
  int rows_ = 0;  // of the step that was fetched
};

}  // namespace eddy
