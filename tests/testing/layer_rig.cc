#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/check.h"
#include "kernels/layer_types.h"
#include "tests/testing/allocation_count.h"
#include "tests/testing/layer_conformance.h"

namespace eddy::testing {
namespace {

constexpr std::byte kCanary{0xA5};

const LayerType& TypeOf(const LayerSpec& spec) {
  const LayerType* type = FindLayerType(spec.type);
  EDDY_CHECK(type != nullptr);
  return *type;
}

int64_t Elements(const Field& field) { return FieldBytes(field) / SizeOf(field.dtype); }

bool EndsWith(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

Weights RandomWeights(const LayerSpec& spec, uint32_t seed) {
  std::mt19937 random(seed);
  Weights weights;
  for (const Field& field : TypeOf(spec).needs(spec, DeviceTraits{}).weights) {
    const bool norm = EndsWith(field.name, "norm.weight");
    const bool matrix = field.shape[1] > 1;
    const auto fan_in = static_cast<float>(matrix ? field.shape[1] : 4);
    std::normal_distribution<float> normal(norm ? 1.0f : 0.0f,
                                           norm ? 0.1f : 1.0f / std::sqrt(fan_in));
    std::vector<float>& values = weights[field.name];
    values.resize(static_cast<size_t>(Elements(field)));
    for (float& value : values) value = normal(random);
  }
  return weights;
}

std::vector<float> RandomRows(int64_t rows, int64_t d_model, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * d_model));
  for (float& value : x) value = normal(random);
  return x;
}

LayerRig::LayerRig(Device& device, const LayerSpec& spec, const Weights& weights, int32_t slots,
                   int64_t gap)
    : device_(device),
      spec_(spec),
      type_(TypeOf(spec)),
      needs_(type_.needs(spec, device.traits())),
      layout_(std::span(&needs_, 1)),
      stride_(layout_.record_bytes() + gap),
      fresh_(static_cast<size_t>(layout_.record_bytes())) {
  for (const Field& field : needs_.weights) {
    EDDY_CHECK(field.dtype == DType::kF32);
    const std::vector<float>& values = weights.at(field.name);
    EDDY_CHECK(static_cast<int64_t>(values.size()) == Elements(field));
    weight_buffers_.push_back(device.Allocate(FieldBytes(field)));
    device.Upload(weight_buffers_.back().data(), std::as_bytes(std::span(values)));
    weights_.push_back({.data = weight_buffers_.back().data(), .shape = field.shape});
  }
  pool_ = device.Allocate(std::max<int64_t>(stride_ * (slots + 1), 1));
  EDDY_CHECK(static_cast<bool>(pool_));
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    const Field& field = needs_.state[f];
    std::vector<float> values(static_cast<size_t>(Elements(field)), field.initial);
    if (!field.initial_weight.empty()) values = weights.at(field.initial_weight);
    std::memcpy(fresh_.data() + layout_.offset(0, f), values.data(), values.size() * 4);
  }
  // Canaries where a small test looks for them; a pool of gigabytes stays untouched.
  if (stride_ * (slots + 1) < (64 << 20)) {
    const std::vector<std::byte> canaries(static_cast<size_t>(stride_ * (slots + 1)), kCanary);
    if (!canaries.empty()) device.Upload(pool_.data(), canaries);
  }
  Reserve(512);
}

LayerRig::~LayerRig() = default;

void LayerRig::Reserve(int64_t rows) {
  const int64_t scratch = needs_.scratch_bytes + rows * needs_.scratch_bytes_per_row;
  scratch_ = device_.Allocate(scratch);
  // A layer must not rely on what an earlier one left there.
  device_.Upload(scratch_.data(),
                 std::vector<std::byte>(static_cast<size_t>(scratch), std::byte{0xFF}));
  x_ = device_.Allocate(rows * spec_.d_model * 4);
  arrays_ = device_.Allocate((3 * rows + 1) * 4);
  std::vector<FieldView> fields;
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    fields.push_back({.base = At(0) + layout_.offset(0, f),
                      .stride = stride_,
                      .dtype = needs_.state[f].dtype,
                      .shape = needs_.state[f].shape});
  }
  layer_ = device_.Make(type_, spec_,
                        {.weights = weights_, .state = fields, .scratch = scratch_.data()});
  EDDY_CHECK(layer_ != nullptr);
}

void LayerRig::Fill(int32_t slot) {
  if (!fresh_.empty()) device_.Upload(At(slot), fresh_);
}

void LayerRig::Poison(int32_t slot) {
  const std::vector<std::byte> poison(fresh_.size(), std::byte{0xFF});
  if (!poison.empty()) device_.Upload(At(slot), poison);
}

std::vector<float> LayerRig::Run(const std::vector<Feed>& feeds) {
  std::vector<float> x;
  std::vector<int32_t> starts = {0}, slots, positions(feeds.size());
  int single = 0, most = 0;
  for (const Feed& feed : feeds) {
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(feed.x.size()) / spec_.d_model);
    x.insert(x.end(), feed.x.begin(), feed.x.end());
    starts.push_back(starts.back() + rows);
    slots.push_back(feed.slot);
    most = std::max(most, rows);
    if (rows == 1 && single + 1 == static_cast<int>(slots.size())) ++single;
  }
  auto* arrays = static_cast<int32_t*>(arrays_.data());
  int32_t* const device_starts = arrays;
  int32_t* const device_slots = device_starts + starts.size();
  int32_t* const device_positions = device_slots + slots.size();
  device_.Upload(device_starts, std::as_bytes(std::span(starts)));
  device_.Upload(device_slots, std::as_bytes(std::span(slots)));
  device_.Upload(device_positions, std::as_bytes(std::span(positions)));
  device_.Upload(x_.data(), std::as_bytes(std::span(x)));
  const Step step{.rows = starts.back(),
                  .sequences = static_cast<int>(feeds.size()),
                  .single_row_sequences = single,
                  .max_rows_per_sequence = most,
                  .row_start = device_starts,
                  .slots = device_slots,
                  .positions = device_positions};
  const int64_t before = AllocationCount();
  layer_->Forward(step, {.data = x_.data(), .shape = {step.rows, spec_.d_model, 1, 1}});
  allocations_ = AllocationCount() - before;
  std::vector<float> out(x.size());
  device_.Download(std::as_writable_bytes(std::span(out)), x_.data());
  EDDY_CHECK(!device_.Finish().has_value());
  return out;
}

std::vector<std::byte> LayerRig::Record(int32_t slot) {
  auto* arrays = static_cast<int32_t*>(arrays_.data());
  const std::vector<int32_t> values = {0, 0, slot, 0};
  device_.Upload(arrays, std::as_bytes(std::span(values)));
  layer_->Flush({.sequences = 1, .row_start = arrays, .slots = arrays + 2, .positions = arrays});
  std::vector<std::byte> record(static_cast<size_t>(layout_.persistent_bytes()));
  device_.Download(record, At(slot));
  EDDY_CHECK(!device_.Finish().has_value());
  return record;
}

void LayerRig::SetRecord(int32_t slot, const std::vector<std::byte>& record) {
  Fill(slot);
  device_.Upload(At(slot), record);
}

std::vector<std::byte> LayerRig::Record0AndGaps(int32_t slots) {
  std::vector<std::byte> bytes(fresh_.size());
  device_.Download(bytes, At(0));
  const size_t gap = static_cast<size_t>(stride_) - fresh_.size();
  for (int32_t slot = 0; slot <= slots; ++slot) {
    std::vector<std::byte> between(gap);
    device_.Download(between, At(slot) + fresh_.size());
    bytes.insert(bytes.end(), between.begin(), between.end());
  }
  EDDY_CHECK(!device_.Finish().has_value());
  return bytes;
}

std::vector<float> LayerRig::StateField(int32_t slot, const std::string& name) {
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    if (needs_.state[f].name != name) continue;
    const std::vector<std::byte> record = Record(slot);
    std::vector<float> values(static_cast<size_t>(Elements(needs_.state[f])));
    std::memcpy(values.data(), record.data() + layout_.offset(0, f), values.size() * 4);
    return values;
  }
  EDDY_CHECK(false && "no such field");
  return {};
}

}  // namespace eddy::testing
