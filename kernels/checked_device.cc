#include "kernels/checked_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

// Of the greatest magnitude of a tensor, at least 1. float: sums in another order, through a
// recurrence of some hundred steps. bfloat16: inputs of products are rounded to 2^-8 of themselves,
// which a short chain of products and the recurrence enlarge.
constexpr double kFloatTolerance = 2e-4, kHalfTolerance = 4e-2;
// How much a layer enlarges what bfloat16 rounds depends on its weights and rows: gates that are
// exponentials, norms of next to nothing. So the CPU also runs it with matrices moved by as much
// as rounding moves inputs, and a few times what that changes is allowed besides.
constexpr double kMoved = 4;

// Each element by 2^-8 of itself, up or down as bits of its place say that look random (the
// multiplication is Knuth's, The Art of Computer Programming 3, section 6.4).
std::vector<float> Moved(std::vector<float> values) {
  uint32_t place = 0;
  for (float& value : values) {
    value *= (++place * 2654435761u >> 16 & 1) == 0 ? 1 + 0x1p-8f : 1 - 0x1p-8f;
  }
  return values;
}

std::vector<float> Widened(const std::vector<std::byte>& bytes, DType type) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(SizeOf(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kBF16) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      const uint32_t bits = uint32_t{half} << 16;
      std::memcpy(&values[i], &bits, 4);
    } else {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    }
  }
  return values;
}

int64_t Elements(const std::array<int64_t, 4>& shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

// What the two versions share: the way to the device, and where faults are told.
struct Watch {
  Device* device = nullptr;
  std::optional<std::string>* fault = nullptr;

  std::vector<std::byte> Fetch(const void* from, int64_t bytes) const {
    std::vector<std::byte> to(static_cast<size_t>(bytes));
    if (bytes > 0) device->Download(to, from);
    Wait();
    return to;
  }
  template <typename T>
  std::vector<T> FetchAll(const T* from, int64_t count) const {
    const std::vector<std::byte> bytes = Fetch(from, count * static_cast<int64_t>(sizeof(T)));
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  void Wait() const {
    if (auto error = device->Finish(); error && !fault->has_value()) *fault = std::move(error);
  }
};

// A field of every sequence of a step (or page), on the host and as float.
struct HostField {
  FieldView real;  // on the device
  std::vector<float> values = {};
  std::vector<float> moved = {};  // what becomes of them with matrices that were moved
  void Resize(int64_t count) {
    values.assign(static_cast<size_t>(count * Elements(real.shape)), 0.0f);
  }
  static FieldView View(const FieldView& real, std::vector<float>& values) {
    return {.base = reinterpret_cast<std::byte*>(values.data()),
            .stride = Elements(real.shape) * int64_t{sizeof(float)},
            .shape = real.shape};
  }
  float* at(int64_t index) { return values.data() + index * Elements(real.shape); }
  std::vector<float> Of(const std::vector<float>& all, int64_t index) const {
    const auto begin = all.begin() + index * Elements(real.shape);
    return {begin, begin + Elements(real.shape)};
  }
};

class CheckedLayer : public Layer {
 public:
  CheckedLayer(const Watch& watch, const LayerType& type, const LayerSpec& spec,
               const LayerNeeds& needs, const LayerParts& parts, std::unique_ptr<Layer> real,
               std::string name)
      : watch_(watch), type_(type), spec_(spec), real_(std::move(real)), name_(std::move(name)) {
    for (const TensorView& weight : parts.weights) {
      const int64_t bytes = Elements(weight.shape) * SizeOf(weight.dtype);
      const bool half = weight.dtype == DType::kBF16;
      half_ = half_ || half;
      weights_.push_back(Widened(watch_.Fetch(weight.data, bytes), weight.dtype));
      moved_weights_.push_back(half ? Moved(weights_.back()) : std::vector<float>());
      views_.push_back({.data = weights_.back().data(), .shape = weight.shape});
      std::vector<float>& moved = half ? moved_weights_.back() : weights_.back();
      moved_views_.push_back({.data = moved.data(), .shape = weight.shape});
    }
    for (size_t f = 0; f < needs.state.size(); ++f) {
      if (needs.state[f].transient) continue;
      state_.push_back({.real = parts.state[f]});
      names_.push_back(needs.state[f].name);
    }
    for (const FieldView& field : parts.kv) pages_.push_back({.real = field});
  }

  void Forward(const Step& step, TensorView x) override {
    if (watch_.fault->has_value()) return;
    FlushReal(step);
    const Rows want = Expected(step, x);
    real_->Forward(step, x);
    FlushReal(step);
    const auto* const rows = x.as<const float>();
    Compare("output", watch_.FetchAll(rows, step.rows * spec_.d_model), want.right, want.moved);
    for (size_t f = 0; f < state_.size(); ++f) CompareState(f);
  }
  void Flush(const Step& step) override { real_->Flush(step); }

 private:
  void FlushReal(Step step) {
    step.rows = step.single_row_sequences = step.max_rows_per_sequence = 0;
    real_->Flush(step);
    watch_.Wait();
  }

  // What the CPU makes of the rows of a step; `moved` with matrices that were moved, if they are
  // bfloat16, else empty.
  struct Rows {
    std::vector<float> right = {}, moved = {};
  };

  // The rows after the layer by the CPU, whose state then is in state_.
  Rows Expected(const Step& step, TensorView x) {
    const std::vector<int32_t> starts = watch_.FetchAll(step.row_start, step.sequences + 1);
    const std::vector<int32_t> positions = watch_.FetchAll(step.positions, step.sequences);
    slots_ = watch_.FetchAll(step.slots, step.sequences);
    std::vector<int32_t> slots;  // the same sequences in the host's pool
    for (int32_t i = 0; i < step.sequences; ++i) {
      slots.push_back(slots_[static_cast<size_t>(i)] == kNoSlot ? kNoSlot : i + 1);
    }
    for (HostField& field : state_) Load(field, slots_, 1);
    std::vector<int32_t> lines = watch_.FetchAll(
        step.pages, step.pages == nullptr ? 0 : int64_t{step.sequences} * step.max_pages);
    for (HostField& field : pages_) Load(field, lines, 1);
    for (size_t i = 0; i < lines.size(); ++i) {
      lines[i] = lines[i] == kNoPage ? kNoPage : static_cast<int32_t>(i + 1);
    }
    Rows rows = {.right = watch_.FetchAll(x.as<const float>(), step.rows * spec_.d_model)};
    Step host = step;
    host.tokens = nullptr;
    host.row_start = starts.data();
    host.slots = slots.data();
    host.positions = positions.data();
    host.pages = lines.empty() ? nullptr : lines.data();
    host.readouts = nullptr;
    host.stream = nullptr;
    if (half_) {
      rows.moved = rows.right;
      for (std::vector<HostField>* fields : {&state_, &pages_}) {
        for (HostField& field : *fields) field.moved = field.values;
      }
      RunCpu(host, moved_views_, &HostField::moved, x.shape, &rows.moved);
    }
    RunCpu(host, views_, &HostField::values, x.shape, &rows.right);
    return rows;
  }

  void RunCpu(const Step& step, const std::vector<TensorView>& weights,
              std::vector<float> HostField::*values, const std::array<int64_t, 4>& shape,
              std::vector<float>* rows) {
    std::vector<FieldView> state, pages;
    for (HostField& field : state_) state.push_back(HostField::View(field.real, field.*values));
    for (HostField& field : pages_) pages.push_back(HostField::View(field.real, field.*values));
    const LayerNeeds needs = type_.needs(spec_, DeviceTraits{});
    scratch_.resize(
        static_cast<size_t>(needs.scratch_bytes + needs.scratch_bytes_per_row * step.rows) /
            sizeof(float) +
        1);
    const std::unique_ptr<Layer> layer = type_.make_cpu(
        spec_, {.weights = weights, .state = state, .kv = pages, .scratch = scratch_.data()});
    layer->Forward(step, {.data = rows->data(), .shape = shape});
  }

  // Copies the records (or pages) `indices` of the device behind the first `before` of the host.
  void Load(HostField& field, const std::vector<int32_t>& indices, int64_t before) {
    field.Resize(std::ssize(indices) + before);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == 0) continue;
      const std::vector<float> values = FetchField(field.real, indices[i]);
      std::copy(values.begin(), values.end(), field.at(static_cast<int64_t>(i) + before));
    }
  }
  std::vector<float> FetchField(const FieldView& field, int64_t index) const {
    const int64_t bytes = Elements(field.shape) * SizeOf(field.dtype);
    return Widened(watch_.Fetch(field.base + index * field.stride, bytes), field.dtype);
  }

  void CompareState(size_t f) {
    HostField& field = state_[f];
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] == kNoSlot) continue;
      const int64_t index = static_cast<int64_t>(i) + 1;
      Compare("state " + names_[f] + " of slot " + std::to_string(slots_[i]),
              FetchField(field.real, slots_[i]), field.Of(field.values, index),
              half_ ? field.Of(field.moved, index) : std::vector<float>());
    }
  }

  // Numbers that are lost are lost in both; where, the executor tells.
  void Compare(const std::string& what, const std::vector<float>& got,
               const std::vector<float>& want, const std::vector<float>& moved) {
    double greatest = 1, worst = 0, sway = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (!std::isfinite(want[i])) return;
      greatest = std::max(greatest, std::abs(static_cast<double>(want[i])));
      if (!moved.empty()) sway = std::max(sway, std::abs(static_cast<double>(moved[i]) - want[i]));
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const double distance = std::abs(static_cast<double>(got[i]) - want[i]);
      worst = std::isfinite(distance) ? std::max(worst, distance) : INFINITY;
    }
    const double tolerance = (half_ ? kHalfTolerance : kFloatTolerance) * greatest + kMoved * sway;
    if (worst <= tolerance || watch_.fault->has_value()) return;
    *watch_.fault = name_ + ": " + what + " differs from the CPU's by " + std::to_string(worst) +
                    ", its greatest value is " + std::to_string(greatest) +
                    (half_ ? ", rounding may make " + std::to_string(tolerance) : "");
  }

  const Watch watch_;
  const LayerType& type_;
  const LayerSpec spec_;
  const std::unique_ptr<Layer> real_;
  const std::string name_;
  bool half_ = false;
  std::vector<std::vector<float>> weights_, moved_weights_;
  std::vector<TensorView> views_, moved_views_;
  std::vector<HostField> state_, pages_;
  std::vector<std::string> names_;
  std::vector<int32_t> slots_;  // of the step that runs
  std::vector<float> scratch_;
};

class CheckedDevice : public Device {
 public:
  explicit CheckedDevice(std::unique_ptr<Device> real) : real_(std::move(real)) {}

  std::string backend() const override { return real_->backend(); }
  std::string description() const override { return real_->description() + ", checked by the CPU"; }
  std::string choices() const override { return real_->choices(); }
  DeviceTraits traits() const override {
    DeviceTraits traits = real_->traits();
    traits.records_steps = false;
    return traits;
  }
  Stream stream() const override { return real_->stream(); }
  int64_t free_bytes() const override { return real_->free_bytes(); }
  Buffer Allocate(int64_t bytes) override { return real_->Allocate(bytes); }
  Buffer AllocateHost(int64_t bytes) override { return real_->AllocateHost(bytes); }
  void Upload(void* to, std::span<const std::byte> from) override { real_->Upload(to, from); }
  void Download(std::span<std::byte> to, const void* from) override { real_->Download(to, from); }
  void Copy(void* to, const void* from, int64_t bytes) override { real_->Copy(to, from, bytes); }
  void Amend(const LayerType& type, const LayerSpec& spec, LayerNeeds* needs) const override {
    real_->Amend(type, spec, needs);
  }
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    std::unique_ptr<Layer> layer = real_->Make(type, spec, parts);
    if (layer == nullptr) return nullptr;
    const std::string name = "block " + std::to_string(blocks_++) + " (" + type.name + ")";
    return std::make_unique<CheckedLayer>(Watch{.device = real_.get(), .fault = &fault_}, type,
                                          spec, type.needs(spec, traits()), parts, std::move(layer),
                                          name);
  }
  std::unique_ptr<Ends> MakeEnds(const EndsSpec& spec, const EndsParts& parts,
                                 int max_rows) override {
    return real_->MakeEnds(spec, parts, max_rows);
  }
  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    return real_->Record(work);
  }
  std::optional<std::string> Finish() override {
    std::optional<std::string> error = real_->Finish();
    return fault_.has_value() ? fault_ : error;
  }

 private:
  const std::unique_ptr<Device> real_;
  std::optional<std::string> fault_;
  int blocks_ = 0;
};

}  // namespace

std::unique_ptr<Device> MakeCheckedDevice(std::unique_ptr<Device> real) {
  return std::make_unique<CheckedDevice>(std::move(real));
}

}  // namespace eddy
