#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/layer_types.h"
#include "tests/testing/allocation_count.h"
#include "tests/testing/layer_conformance.h"

namespace eddy::testing {
namespace {

constexpr std::byte kCanary{0xA5};

const LayerType& TypeOf(const LayerSpec& spec, const LayerType* type) {
  if (type == nullptr) type = FindLayerType(spec.type);
  EDDY_CHECK(type != nullptr);
  return *type;
}

int64_t Aligned(int64_t bytes) {
  return (bytes + StateLayout::kAlign - 1) / StateLayout::kAlign * StateLayout::kAlign;
}

int64_t Elements(const Field& field) { return FieldBytes(field) / SizeOf(field.dtype); }

void Finish(Device& device) {
  const std::optional<std::string> error = device.Finish();
  if (error) std::fprintf(stderr, "%s\n", error->c_str());
  EDDY_CHECK(!error.has_value());
}

LayerNeeds NeedsOn(const Device& device, const LayerType& type, const LayerSpec& spec) {
  LayerNeeds needs = type.needs(spec, device.traits());
  device.Amend(type, spec, &needs);
  return needs;
}

bool EndsWith(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// The numbers of a field, as its type holds them; whole numbers must be zero.
std::vector<std::byte> BytesOf(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(SizeOf(dtype)));
  if (dtype == DType::kBF16) {
    ToBF16(values.data(), std::ssize(values), reinterpret_cast<uint16_t*>(bytes.data()));
  } else if (!values.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

std::vector<float> NumbersOf(const Field& field, const std::byte* bytes) {
  std::vector<float> values(static_cast<size_t>(Elements(field)));
  if (field.dtype == DType::kBF16) {
    FromBF16(reinterpret_cast<const uint16_t*>(bytes), std::ssize(values), values.data());
  } else {
    std::memcpy(values.data(), bytes, values.size() * sizeof(float));
  }
  return values;
}

}  // namespace

float RoundToBF16(float value) { return FromBF16(ToBF16(value)); }

Weights RandomWeights(const LayerSpec& spec, uint32_t seed, const LayerType* type) {
  std::mt19937 random(seed);
  Weights weights;
  for (const Field& field : TypeOf(spec, type).needs(spec, DeviceTraits{}).weights) {
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
                   int64_t gap, int64_t rows_per_page, const LayerType* type)
    : device_(device),
      spec_(spec),
      type_(TypeOf(spec, type)),
      needs_(NeedsOn(device, type_, spec)),
      layout_(std::span(&needs_, 1)),
      slots_(slots),
      rows_per_page_(rows_per_page),
      stride_(needs_.state.empty() ? 0 : layout_.record_bytes() + gap),
      page_stride_(gap),
      fresh_(static_cast<size_t>(layout_.record_bytes())) {
  // Placed as the engine places them, so that what a layer makes of neighbours is the same in each
  // rig.
  int64_t bytes = 0;
  for (const Field& field : needs_.weights) bytes += Aligned(FieldBytes(field));
  weight_buffer_ = device.Allocate(bytes);
  auto* at = static_cast<std::byte*>(weight_buffer_.data());
  for (const Field& field : needs_.weights) {
    const std::vector<float>& values = weights.at(field.name);
    EDDY_CHECK(static_cast<int64_t>(values.size()) == Elements(field));
    device.Upload(at, BytesOf(values, field.dtype));
    weights_.push_back({.data = at, .dtype = field.dtype, .shape = field.shape});
    at += Aligned(FieldBytes(field));
  }
  pool_ = device.Allocate(std::max<int64_t>(stride_ * (slots + 1), 1));
  EDDY_CHECK(static_cast<bool>(pool_));
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    const Field& field = needs_.state[f];
    std::vector<float> values(static_cast<size_t>(Elements(field)), field.initial);
    if (!field.initial_weight.empty()) values = weights.at(field.initial_weight);
    for (float& value : values) value = field.initial_is_log ? std::exp(value) : value;
    const std::vector<std::byte> initial = BytesOf(values, field.dtype);
    std::memcpy(fresh_.data() + layout_.offset(0, f), initial.data(), initial.size());
  }
  // Canaries where a small test looks for them; a pool of gigabytes stays untouched.
  if (stride_ * (slots + 1) < (64 << 20)) {
    const std::vector<std::byte> canaries(static_cast<size_t>(stride_ * (slots + 1)), kCanary);
    if (!canaries.empty()) device.Upload(pool_.data(), canaries);
  }
  MakePages();
  Reserve(512);
}

void LayerRig::MakePages() {
  for (const Field& field : needs_.kv) {
    kv_offsets_.push_back(page_bytes_);
    page_bytes_ += rows_per_page_ * FieldBytes(field);
    token_bytes_ += FieldBytes(field);
  }
  if (needs_.kv.empty()) return;
  page_stride_ += page_bytes_;
  const int64_t bytes = page_stride_ * (1 + slots_ * pages_per_slot());
  page_pool_ = device_.Allocate(bytes);
  EDDY_CHECK(static_cast<bool>(page_pool_));
  if (bytes >= (64 << 20)) return;
  device_.Upload(page_pool_.data(), std::vector<std::byte>(static_cast<size_t>(bytes), kCanary));
}

LayerRig::~LayerRig() = default;

void LayerRig::Reserve(int64_t rows) {
  const int64_t scratch = needs_.scratch_bytes + rows * needs_.scratch_bytes_per_row;
  scratch_ = device_.Allocate(scratch);
  // A layer must not rely on what an earlier one left there.
  device_.Upload(scratch_.data(),
                 std::vector<std::byte>(static_cast<size_t>(scratch), std::byte{0xFF}));
  x_ = device_.Allocate(rows * spec_.d_model * 4);
  readout_buffer_ = device_.Allocate((1 + rows * std::ssize(needs_.readouts)) * 4);
  arrays_ = device_.Allocate((3 * rows + 1 + 16 * pages_per_slot()) * 4);
  std::vector<FieldView> fields;
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    fields.push_back({.base = At(0) + layout_.offset(0, f),
                      .stride = stride_,
                      .dtype = needs_.state[f].dtype,
                      .shape = needs_.state[f].shape});
  }
  std::vector<FieldView> kv;
  for (size_t f = 0; f < needs_.kv.size(); ++f) {
    const auto& shape = needs_.kv[f].shape;
    kv.push_back({.base = PageAt(0) + kv_offsets_[f],
                  .stride = page_stride_,
                  .dtype = needs_.kv[f].dtype,
                  .shape = {rows_per_page_, shape[0], shape[1], shape[2]}});
  }
  layer_ = device_.Make(
      type_, spec_, {.weights = weights_, .state = fields, .kv = kv, .scratch = scratch_.data()});
  EDDY_CHECK(layer_ != nullptr);
}

void LayerRig::Fill(int32_t slot) {
  if (!fresh_.empty()) device_.Upload(At(slot), fresh_);
  positions_[slot] = 0;
}

void LayerRig::Poison(int32_t slot) {
  const std::vector<std::byte> poison(fresh_.size(), std::byte{0xFF});
  if (!poison.empty()) device_.Upload(At(slot), poison);
  PoisonPages(slot);
}

void LayerRig::PoisonPages(int32_t slot) {
  const std::vector<std::byte> page(static_cast<size_t>(page_bytes_), std::byte{0xFF});
  for (int64_t i = 0; i < pages_per_slot() && !page.empty(); ++i) {
    device_.Upload(PageAt(PageOf(slot, i)), page);
  }
}

int LayerRig::parts() const {
  const auto kept = std::count_if(needs_.state.begin(), needs_.state.end(),
                                  [](const Field& field) { return !field.transient; });
  return static_cast<int>(kept) + (needs_.kv.empty() ? 0 : 1);
}

void LayerRig::Lose(int32_t slot, int part) {
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    if (needs_.state[f].transient || part-- != 0) continue;
    const auto bytes = static_cast<size_t>(FieldBytes(needs_.state[f]));
    device_.Upload(At(slot) + layout_.offset(0, f), std::vector<std::byte>(bytes, std::byte{0xFF}));
    return;
  }
  EDDY_CHECK(part == 0 && page_bytes_ > 0);
  PoisonPages(slot);
}

std::vector<float> LayerRig::Run(const std::vector<Feed>& feeds) {
  std::vector<float> x;
  std::vector<int32_t> starts = {0}, slots, positions, pages;
  int single = 0, most = 0;
  for (const Feed& feed : feeds) {
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(feed.x.size()) / spec_.d_model);
    x.insert(x.end(), feed.x.begin(), feed.x.end());
    starts.push_back(starts.back() + rows);
    slots.push_back(feed.slot);
    int64_t& position = positions_[feed.slot];
    positions.push_back(static_cast<int32_t>(position));
    // Positions of nobody are nobody's to count.
    if (feed.slot != kNoSlot) position += rows;
    EDDY_CHECK(position <= kMaxPositions || needs_.kv.empty());
    for (int64_t i = 0; i < pages_per_slot(); ++i) pages.push_back(PageOf(feed.slot, i));
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
  int32_t* const device_pages = device_positions + positions.size();
  EDDY_CHECK(feeds.size() <= 16);  // Reserve
  device_.Upload(device_pages, std::as_bytes(std::span(pages)));
  device_.Upload(x_.data(), std::as_bytes(std::span(x)));
  const Step step{.rows = starts.back(),
                  .sequences = static_cast<int>(feeds.size()),
                  .single_row_sequences = single,
                  .max_rows_per_sequence = most,
                  .row_start = device_starts,
                  .slots = device_slots,
                  .positions = device_positions,
                  .pages = device_pages,
                  .max_pages = static_cast<int>(pages_per_slot()),
                  .readouts = asks_ ? static_cast<float*>(readout_buffer_.data()) : nullptr,
                  .stream = device_.stream()};
  const int64_t before = AllocationCount();
  layer_->Forward(step, {.data = x_.data(), .shape = {step.rows, spec_.d_model, 1, 1}});
  allocations_ = AllocationCount() - before;
  std::vector<float> out(x.size());
  device_.Download(std::as_writable_bytes(std::span(out)), x_.data());
  const auto rows = static_cast<size_t>(step.rows);
  std::vector<float> told(asks_ ? needs_.readouts.size() * rows : 0);
  if (!told.empty()) {
    device_.Download(std::as_writable_bytes(std::span(told)), readout_buffer_.data());
  }
  Finish(device_);
  for (size_t i = 0; i * rows < told.size(); ++i) {
    const auto begin = told.begin() + static_cast<std::ptrdiff_t>(i * rows);
    readouts_[needs_.readouts[i]].assign(begin, begin + step.rows);
  }
  return out;
}

template <typename Copy>
void LayerRig::ForEachToken(int32_t slot, int64_t positions, Copy copy) {
  for (size_t f = 0; f < needs_.kv.size(); ++f) {
    const int64_t bytes = FieldBytes(needs_.kv[f]);
    for (int64_t t = 0; t < positions; ++t) {
      copy(PageAt(PageOf(slot, t / rows_per_page_)) + kv_offsets_[f] + t % rows_per_page_ * bytes,
           static_cast<size_t>(bytes));
    }
  }
}

std::vector<std::byte> LayerRig::Record(int32_t slot) {
  auto* arrays = static_cast<int32_t*>(arrays_.data());
  const std::vector<int32_t> values = {0, 0, slot, 0};
  device_.Upload(arrays, std::as_bytes(std::span(values)));
  layer_->Flush({.sequences = 1,
                 .row_start = arrays,
                 .slots = arrays + 2,
                 .positions = arrays,
                 .stream = device_.stream()});
  auto at = static_cast<size_t>(layout_.persistent_bytes());
  std::vector<std::byte> record(at + static_cast<size_t>(positions_[slot] * token_bytes_));
  device_.Download(std::span(record).first(at), At(slot));
  ForEachToken(slot, positions_[slot], [&](const std::byte* token, size_t bytes) {
    device_.Download(std::span(record).subspan(at, bytes), token);
    at += bytes;
  });
  Finish(device_);
  return record;
}

void LayerRig::SetRecord(int32_t slot, const std::vector<std::byte>& record) {
  Fill(slot);
  auto at = static_cast<size_t>(layout_.persistent_bytes());
  device_.Upload(At(slot), std::span(record).first(at));
  if (token_bytes_ == 0) return;
  positions_[slot] = static_cast<int64_t>(record.size() - at) / token_bytes_;
  ForEachToken(slot, positions_[slot], [&](std::byte* token, size_t bytes) {
    device_.Upload(token, std::span(record).subspan(at, bytes));
    at += bytes;
  });
}

std::vector<float> LayerRig::Numbers(const std::vector<std::byte>& record) const {
  std::vector<float> all;
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    if (needs_.state[f].transient) continue;
    const auto values = NumbersOf(needs_.state[f], record.data() + layout_.offset(0, f));
    all.insert(all.end(), values.begin(), values.end());
  }
  // Keys and values, of which the laws compare only float ones as numbers.
  const auto at = static_cast<size_t>(layout_.persistent_bytes());
  const size_t count = (record.size() - at) / sizeof(float);
  all.resize(all.size() + count);
  if (count > 0) std::memcpy(&all[all.size() - count], &record[at], count * sizeof(float));
  return all;
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
  for (int32_t page = 0; page <= slots * pages_per_slot() && page_bytes_ > 0; ++page) {
    // Of page 0 all, of the others what lies behind them.
    const int64_t from = page == kNoPage ? 0 : page_bytes_;
    std::vector<std::byte> part(static_cast<size_t>(page_stride_ - from));
    device_.Download(part, PageAt(page) + from);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  Finish(device_);
  return bytes;
}

std::vector<float> LayerRig::StateField(int32_t slot, const std::string& name) {
  for (size_t f = 0; f < needs_.state.size(); ++f) {
    if (needs_.state[f].name != name) continue;
    return NumbersOf(needs_.state[f], Record(slot).data() + layout_.offset(0, f));
  }
  EDDY_CHECK(false && "no such field");
  return {};
}

}  // namespace eddy::testing
