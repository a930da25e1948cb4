#include "engine/readouts.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"

namespace eddy {
namespace {

std::vector<Readout> KindsOf(std::span<const LayerNeeds> layers) {
  std::vector<Readout> kinds;
  for (const LayerNeeds& layer : layers) {
    kinds.insert(kinds.end(), layer.readouts.begin(), layer.readouts.end());
  }
  return kinds;
}

}  // namespace

int64_t Readouts::BytesPerRow(std::span<const LayerNeeds> layers) {
  return static_cast<int64_t>(KindsOf(layers).size() * sizeof(float));
}

std::optional<Readouts> Readouts::Allocate(Device* device, std::span<const LayerNeeds> layers,
                                           int rows) {
  Readouts readouts(device, KindsOf(layers));
  const int64_t bytes = BytesPerRow(layers) * rows;
  if (bytes == 0) return readouts;
  readouts.on_device_ = device->Allocate(bytes);
  readouts.on_host_ = device->AllocateHost(bytes);
  if (!readouts.on_device_ || !readouts.on_host_) return std::nullopt;
  return readouts;
}

void Readouts::Fetch(int rows) {
  rows_ = rows;
  if (kinds_.empty()) return;
  const size_t bytes = kinds_.size() * static_cast<size_t>(rows) * sizeof(float);
  device_->Download({static_cast<std::byte*>(on_host_.data()), bytes}, on_device_.data());
}

void Readouts::Tell(int row, TokenReport* report) const {
  EDDY_CHECK(row >= 0 && row < rows_);
  std::array<double, kReadouts> sums = {};
  std::array<int, kReadouts> layers = {};
  float least_precision = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const auto at = i * static_cast<size_t>(rows_) + static_cast<size_t>(row);
    const float value = static_cast<const float*>(on_host_.data())[at];
    const auto kind = static_cast<size_t>(kinds_[i]);
    sums[kind] += value;
    ++layers[kind];
    if (kinds_[i] == Readout::kLeastPrecision) least_precision = std::min(least_precision, value);
  }
  const auto told = [&](Readout kind) { return layers[static_cast<size_t>(kind)] > 0; };
  const auto mean = [&](Readout kind) {
    const auto at = static_cast<size_t>(kind);
    return static_cast<float>(sums[at] / layers[at]);
  };
  if (told(Readout::kPrecision)) {
    report->kalman = KalmanReport{.precision = mean(Readout::kPrecision),
                                  .least_precision = least_precision,
                                  .deviation = mean(Readout::kDeviation),
                                  .surprise = mean(Readout::kSurprise),
                                  .information = mean(Readout::kInformation),
                                  .spread = mean(Readout::kSpread)};
  }
  if (told(Readout::kResidual)) {
    report->delta = DeltaReport{.residual = mean(Readout::kResidual),
                                .contraction = mean(Readout::kContraction),
                                .decay = mean(Readout::kDecay)};
  }
}

}  // namespace eddy
