#include "engine/records.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/float_formats.h"
#include "engine/sha256.h"

namespace eddy {
namespace {

int64_t Elements(const Field& field) { return FieldBytes(field) / SizeOf(field.dtype); }

void FillConstant(const Field& field, std::byte* to) {
  for (int64_t i = 0; i < Elements(field); ++i) {
    if (field.dtype == DType::kF32) std::memcpy(to + 4 * i, &field.initial, 4);
    if (field.dtype == DType::kBF16) {
      const uint16_t rounded = ToBF16(field.initial);
      std::memcpy(to + 2 * i, &rounded, 2);
    }
    if (field.dtype == DType::kI32) {
      const auto whole = static_cast<int32_t>(field.initial);
      std::memcpy(to + 4 * i, &whole, 4);
    }
  }
}

// False if a number is too great for it.
bool ExpInPlace(const Field& field, std::byte* at) {
  EDDY_CHECK(field.dtype == DType::kF32);
  for (int64_t i = 0; i < Elements(field); ++i) {
    float value;
    std::memcpy(&value, at + 4 * i, 4);
    value = std::exp(value);
    if (!std::isfinite(value)) return false;
    std::memcpy(at + 4 * i, &value, 4);
  }
  return true;
}

void FillFromWeight(Device* device, const Field& field, const LayerNeeds& layer,
                    std::span<const TensorView> weights, std::byte* to) {
  for (size_t w = 0; w < layer.weights.size(); ++w) {
    if (layer.weights[w].name != field.initial_weight) continue;
    // Learned initial values are kept in the type of the state.
    EDDY_CHECK(layer.weights[w].dtype == field.dtype && layer.weights[w].shape == field.shape);
    return device->Download({to, static_cast<size_t>(FieldBytes(field))}, weights[w].data);
  }
  EDDY_CHECK(false && "initial_weight names no weight of the layer");
}

double ElementAt(DType dtype, const std::byte* from, int64_t i) {
  if (dtype == DType::kBF16) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    return FromBF16(bits);
  }
  if (dtype == DType::kI32) {
    int32_t whole;
    std::memcpy(&whole, from + 4 * i, 4);
    return whole;
  }
  float value;
  std::memcpy(&value, from + 4 * i, 4);
  return value;
}

FieldStats StatsOf(const Field& field, const std::byte* from) {
  FieldStats stats = {.field = field.name, .elements = Elements(field)};
  double least = 0, greatest = 0, sum = 0, squares = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < stats.elements; ++i) {
    const double value = ElementAt(field.dtype, from, i);
    if (!std::isfinite(value)) continue;
    least = finite == 0 ? value : std::min(least, value);
    greatest = finite == 0 ? value : std::max(greatest, value);
    sum += value;
    squares += value * value;
    ++finite;
  }
  stats.nonfinite = stats.elements - finite;
  if (finite == 0) return stats;
  const auto count = static_cast<double>(finite);
  stats.min = static_cast<float>(least);
  stats.max = static_cast<float>(greatest);
  stats.mean = static_cast<float>(sum / count);
  stats.rms = static_cast<float>(std::sqrt(squares / count));
  return stats;
}

}  // namespace

Records::Records(Device* device, std::span<const LayerNeeds> layers)
    : device_(device), layout_(layers) {
  for (const LayerNeeds& layer : layers) fields_.push_back(layer.state);
}

std::optional<Records> Records::Allocate(Device* device, std::span<const LayerNeeds> layers,
                                         int slots, std::span<const std::byte> fresh) {
  Records records(device, layers);
  const int64_t record_bytes = records.layout_.record_bytes();
  EDDY_CHECK(static_cast<int64_t>(fresh.size()) == record_bytes);
  records.memory_ = device->Allocate(record_bytes * (slots + 1));
  records.fresh_ = device->Allocate(record_bytes);
  if (!records.memory_ || !records.fresh_) return std::nullopt;
  device->Upload(records.fresh_.data(), fresh);
  records.Fill(kNoSlot);
  for (int32_t slot = 1; slot <= slots; ++slot) records.Poison(slot);
  return records;
}

std::byte* Records::At(int32_t slot) const {
  return static_cast<std::byte*>(memory_.data()) + layout_.record_bytes() * slot;
}

FieldView Records::View(size_t layer, size_t field) const {
  const Field& of = fields_[layer][field];
  return {.base = static_cast<std::byte*>(memory_.data()) + layout_.offset(layer, field),
          .stride = layout_.record_bytes(),
          .dtype = of.dtype,
          .shape = of.shape};
}

void Records::Fill(int32_t slot) { device_->Copy(At(slot), fresh_.data(), layout_.record_bytes()); }

void Records::Fill(int32_t slot, std::span<const std::byte> persistent) {
  const int64_t bytes = layout_.persistent_bytes();
  EDDY_CHECK(static_cast<int64_t>(persistent.size()) == bytes);
  device_->Upload(At(slot), persistent);
  const auto* const fresh = static_cast<const std::byte*>(fresh_.data());
  const int64_t transient_bytes = layout_.record_bytes() - bytes;
  if (transient_bytes > 0) device_->Copy(At(slot) + bytes, fresh + bytes, transient_bytes);
}

void Records::Save(int32_t slot, std::span<std::byte> to) {
  EDDY_CHECK(static_cast<int64_t>(to.size()) == layout_.persistent_bytes());
  device_->Download(to, At(slot));
}

std::vector<FieldStats> Records::Stats(std::span<const std::byte> persistent) const {
  EDDY_CHECK(static_cast<int64_t>(persistent.size()) == layout_.persistent_bytes());
  std::vector<FieldStats> all;
  for (size_t layer = 0; layer < fields_.size(); ++layer) {
    for (size_t f = 0; f < fields_[layer].size(); ++f) {
      if (fields_[layer][f].transient) continue;
      all.push_back(StatsOf(fields_[layer][f], persistent.data() + layout_.offset(layer, f)));
      all.back().layer = static_cast<int>(layer);
    }
  }
  return all;
}

void Records::Poison([[maybe_unused]] int32_t slot) {
#ifndef NDEBUG
  // All bits set: NaN as a float, -1 as a count.
  static const std::vector<std::byte> kPoison(1 << 16, std::byte{0xFF});
  for (int64_t at = 0; at < layout_.record_bytes(); at += 1 << 16) {
    const int64_t bytes = std::min<int64_t>(1 << 16, layout_.record_bytes() - at);
    device_->Upload(At(slot) + at, std::span(kPoison).first(static_cast<size_t>(bytes)));
  }
#endif
}

absl::StatusOr<std::optional<RecordField>> Records::FirstNotFinite(int32_t slot) {
  std::vector<std::byte> record(static_cast<size_t>(layout_.persistent_bytes()));
  Save(slot, record);
  if (const auto error = device_->Finish()) return absl::UnavailableError(*error);
  for (size_t layer = 0; layer < fields_.size(); ++layer) {
    for (size_t f = 0; f < fields_[layer].size(); ++f) {
      const Field& field = fields_[layer][f];
      const auto bytes = std::span(record).subspan(static_cast<size_t>(layout_.offset(layer, f)));
      if (field.transient) continue;
      if (AllFinite(field.dtype, bytes.first(static_cast<size_t>(FieldBytes(field))))) continue;
      return std::optional(RecordField{.layer = static_cast<int>(layer), .name = field.name});
    }
  }
  return std::optional<RecordField>();
}

absl::StatusOr<std::vector<std::byte>> MakeFreshRecord(
    Device* device, std::span<const LayerNeeds> layers,
    std::span<const std::vector<TensorView>> weights) {
  const StateLayout layout(layers);
  std::vector<std::byte> record(static_cast<size_t>(layout.record_bytes()));
  const auto at = [&](size_t layer, size_t f) { return record.data() + layout.offset(layer, f); };
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t f = 0; f < layers[layer].state.size(); ++f) {
      const Field& field = layers[layer].state[f];
      if (field.initial_weight.empty()) {
        FillConstant(field, at(layer, f));
      } else {
        FillFromWeight(device, field, layers[layer], weights[layer], at(layer, f));
      }
    }
  }
  if (const auto error = device->Finish()) return absl::UnavailableError(*error);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t f = 0; f < layers[layer].state.size(); ++f) {
      const Field& field = layers[layer].state[f];
      if (!field.initial_is_log || ExpInPlace(field, at(layer, f))) continue;
      return absl::InvalidArgumentError(absl::StrCat("block ", layer, ": ", field.initial_weight,
                                                     " holds a logarithm above 88, too great for ",
                                                     "the state ", field.name));
    }
  }
  return record;
}

std::array<uint8_t, 32> LayoutFingerprint(std::span<const LayerNeeds> layers) {
  const StateLayout layout(layers);
  Sha256 hash;
  hash.AddText("eddy-layout-1");
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t f = 0; f < layers[layer].state.size(); ++f) {
      const Field& field = layers[layer].state[f];
      if (field.transient) continue;
      hash.AddNumber(static_cast<int64_t>(layer));
      hash.AddText(field.name);
      hash.AddNumber(static_cast<int64_t>(field.dtype));
      for (int64_t dim : field.shape) hash.AddNumber(dim);
      hash.AddNumber(layout.offset(layer, f));
    }
    for (const Field& field : layers[layer].kv) {
      hash.AddNumber(static_cast<int64_t>(layer));
      hash.AddText("kv." + field.name);
      hash.AddNumber(static_cast<int64_t>(field.dtype));
      for (int64_t dim : field.shape) hash.AddNumber(dim);
      hash.AddNumber(layers[layer].kv_window);
    }
  }
  hash.AddNumber(layout.persistent_bytes());
  return hash.Finish();
}

}  // namespace eddy
