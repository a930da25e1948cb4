#include "kernels/checked_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

// Of the greatest magnitude of a tensor, at least 1. float: sums in another order, through a
// recurrence of some hundred steps. bfloat16: inputs of products are rounded to 2^-8 of themselves,
// which a short chain of products and the recurrence enlarge.
constexpr double kFloatTolerance = 2e-4, kHalfTolerance = 4e-2;
// A state that is held as bfloat16 is rounded by up to 2^-8 of itself when it is written. The CPU
// starts from the same one, but what it makes of it stays float.
constexpr double kStateRounding = 0x1p-8;
// How much a layer enlarges what bfloat16 rounds depends on its weights and rows: gates that are
// exponentials, norms of next to nothing. So where that is not enough, the CPU runs it again with
// matrices moved by 2^-8 of themselves, at least as much as rounding moves inputs, and a few times
// the most that this changes is allowed besides. The most of several draws of moved matrices, since
// layers that normalise what they read are not continuous: of a first token a delta layer reads
// o = beta (k . q) v, of which RMSNorm leaves sign(k . q) times a unit vector; mLSTM divides by
// |u . q|. Where k . q is so near zero that rounding turns its sign, a draw, which moves it further
// than rounding does, turns it too, but only about every second to fourth time. So one draw often
// misses it, and 32 once in ten thousand times (0.75^32). What no draw comes near is a fault.
constexpr double kMoved = 4;

std::vector<float> Widened(const std::vector<std::byte>& bytes, DType type) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(SizeOf(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kBF16) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      values[i] = FromBF16(half);
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
  std::vector<float> before = {};  // what they were before the layer; bfloat16 only
  std::vector<float> moved = {};   // what becomes of them with matrices that were moved
  void Resize(int64_t count) {
    values.assign(static_cast<size_t>(count * Elements(real.shape)), 0.0f);
  }
  static FieldView View(const FieldView& real, std::vector<float>& values) {
    return {.base = reinterpret_cast<std::byte*>(values.data()),
            .stride = Elements(real.shape) * int64_t{sizeof(float)},
            .shape = real.shape};
  }
  float* at(int64_t index) { return values.data() + index * Elements(real.shape); }
  std::span<const float> Of(const std::vector<float>& all, int64_t index) const {
    const auto count = static_cast<size_t>(Elements(real.shape));
    return std::span<const float>(all).subspan(static_cast<size_t>(index) * count, count);
  }
};

// A tensor, or a row of one, as the device and the CPU have made it, and how far they differ.
struct Difference {
  std::string what = {};
  std::span<const float> want = {};
  std::function<std::span<const float>()> moved = {};  // the same of the last draw
  double greatest = 1, worst = 0, sway = 0;
  double rounding = 0;  // of the device's, as a share of the greatest
  // Numbers that are lost are lost in both; where, the executor tells.
  bool lost = false;

  void Measure(std::span<const float> got) {
    for (size_t i = 0; i < want.size(); ++i) {
      lost = lost || !std::isfinite(want[i]);
      greatest = std::max(greatest, std::abs(static_cast<double>(want[i])));
      const double distance = std::abs(static_cast<double>(got[i]) - want[i]);
      worst = std::isfinite(distance) ? std::max(worst, distance) : INFINITY;
    }
  }
  void AddDraw() {
    const std::span<const float> drawn = moved();
    for (size_t i = 0; i < want.size(); ++i) {
      sway = std::max(sway, std::abs(static_cast<double>(drawn[i]) - want[i]));
    }
  }
  double Tolerance(bool half) const {
    return ((half ? kHalfTolerance : kFloatTolerance) + rounding) * greatest + kMoved * sway;
  }
};

class CheckedLayer : public Layer {
 public:
  CheckedLayer(const Watch& watch, int draws, const LayerType& type, const LayerSpec& spec,
               const LayerNeeds& needs, const LayerParts& parts, std::unique_ptr<Layer> real,
               std::string name)
      : watch_(watch),
        draws_(draws),
        type_(type),
        spec_(spec),
        real_(std::move(real)),
        name_(std::move(name)) {
    for (size_t w = 0; w < parts.weights.size(); ++w) {
      const TensorView& weight = parts.weights[w];
      const int64_t bytes = Elements(weight.shape) * SizeOf(weight.dtype);
      // What states start from is read when a record is filled, not by the layer.
      const bool initial = std::any_of(
          needs.state.begin(), needs.state.end(),
          [&](const Field& field) { return field.initial_weight == needs.weights[w].name; });
      halves_.push_back(weight.dtype == DType::kBF16 && !initial);
      half_ = half_ || halves_.back();
      weights_.push_back(Widened(watch_.Fetch(weight.data, bytes), weight.dtype));
      shapes_.push_back(weight.shape);
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
    Load(step, x);
    RunCpu(weights_, &HostField::values, x.shape, &rows_);
    real_->Forward(step, x);
    FlushReal(step);
    Compare(x);
  }
  void Flush(const Step& step) override { real_->Flush(step); }

 private:
  void FlushReal(Step step) {
    step.rows = step.single_row_sequences = step.max_rows_per_sequence = 0;
    real_->Flush(step);
    watch_.Wait();
  }

  // Fetches what the layer starts from: the step, rows, state and pages.
  void Load(const Step& step, TensorView x) {
    starts_ = watch_.FetchAll(step.row_start, step.sequences + 1);
    positions_ = watch_.FetchAll(step.positions, step.sequences);
    slots_ = watch_.FetchAll(step.slots, step.sequences);
    host_slots_.clear();  // the same sequences in the host's pool
    for (int32_t i = 0; i < step.sequences; ++i) {
      host_slots_.push_back(slots_[static_cast<size_t>(i)] == kNoSlot ? kNoSlot : i + 1);
    }
    for (HostField& field : state_) LoadField(field, slots_, 1);
    lines_ = watch_.FetchAll(step.pages,
                             step.pages == nullptr ? 0 : int64_t{step.sequences} * step.max_pages);
    for (HostField& field : pages_) LoadField(field, lines_, 1);
    for (size_t i = 0; i < lines_.size(); ++i) {
      lines_[i] = lines_[i] == kNoPage ? kNoPage : static_cast<int32_t>(i + 1);
    }
    rows_ = watch_.FetchAll(x.as<const float>(), step.rows * spec_.d_model);
    if (half_) rows_before_ = rows_;
    step_ = step;
    step_.tokens = nullptr;
    step_.row_start = starts_.data();
    step_.slots = host_slots_.data();
    step_.positions = positions_.data();
    step_.pages = lines_.empty() ? nullptr : lines_.data();
    step_.readouts = nullptr;
    step_.stream = nullptr;
  }

  // From `values` and `rows` as they were loaded to what the layer makes of them.
  void RunCpu(std::vector<std::vector<float>>& weights, std::vector<float> HostField::*values,
              const std::array<int64_t, 4>& shape, std::vector<float>* rows) {
    std::vector<TensorView> views;
    for (size_t i = 0; i < weights.size(); ++i) {
      views.push_back({.data = weights[i].data(), .shape = shapes_[i]});
    }
    std::vector<FieldView> state, pages;
    for (HostField& field : state_) state.push_back(HostField::View(field.real, field.*values));
    for (HostField& field : pages_) pages.push_back(HostField::View(field.real, field.*values));
    const LayerNeeds needs = type_.needs(spec_, DeviceTraits{});
    scratch_.resize(
        static_cast<size_t>(needs.scratch_bytes + needs.scratch_bytes_per_row * step_.rows) /
            sizeof(float) +
        1);
    const std::unique_ptr<Layer> layer = type_.make_cpu(
        spec_, {.weights = views, .state = state, .kv = pages, .scratch = scratch_.data()});
    layer->Forward(step_, {.data = rows->data(), .shape = shape});
  }

  // The loaded step once more, with other moved matrices for each `draw`.
  void RunMoved(int draw, const std::array<int64_t, 4>& shape) {
    std::mt19937 random(static_cast<unsigned>(draw));
    std::vector<std::vector<float>> weights = weights_;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!halves_[i]) continue;
      for (float& value : weights[i]) value *= (random() & 1) == 0 ? 1 + 0x1p-8f : 1 - 0x1p-8f;
    }
    rows_moved_ = rows_before_;
    for (std::vector<HostField>* fields : {&state_, &pages_}) {
      for (HostField& field : *fields) field.moved = field.before;
    }
    RunCpu(weights, &HostField::moved, shape, &rows_moved_);
  }

  // Copies the records (or pages) `indices` of the device behind the first `before` of the host.
  void LoadField(HostField& field, const std::vector<int32_t>& indices, int64_t before) {
    field.Resize(std::ssize(indices) + before);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == 0) continue;
      const std::vector<float> values = FetchField(field.real, indices[i]);
      std::copy(values.begin(), values.end(), field.at(static_cast<int64_t>(i) + before));
    }
    if (half_) field.before = field.values;
  }
  std::vector<float> FetchField(const FieldView& field, int64_t index) const {
    const int64_t bytes = Elements(field.shape) * SizeOf(field.dtype);
    return Widened(watch_.Fetch(field.base + index * field.stride, bytes), field.dtype);
  }

  // Tells of the first tensor in which the device is further from the CPU than rounding may lead.
  void Compare(TensorView x) {
    std::vector<Difference> beyond;
    MeasureRows(watch_.FetchAll(x.as<const float>(), std::ssize(rows_)), &beyond);
    for (size_t f = 0; f < state_.size(); ++f) {
      const HostField& field = state_[f];
      for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i] == kNoSlot) continue;
        const int64_t index = static_cast<int64_t>(i) + 1;
        Difference state = {.what = "state " + names_[f] + " of slot " + std::to_string(slots_[i]),
                            .want = field.Of(field.values, index),
                            .moved = [&field, index] { return field.Of(field.moved, index); },
                            .rounding = field.real.dtype == DType::kBF16 ? kStateRounding : 0};
        state.Measure(FetchField(field.real, slots_[i]));
        if (Fails(state)) beyond.push_back(std::move(state));
      }
    }
    for (int draw = 1; half_ && draw <= draws_ && !beyond.empty(); ++draw) {
      RunMoved(draw, x.shape);
      for (Difference& difference : beyond) difference.AddDraw();
      std::erase_if(beyond, [this](const Difference& each) { return !Fails(each); });
    }
    if (!beyond.empty() && !watch_.fault->has_value()) Tell(beyond.front());
  }
  // The greatest value is that of all rows. How far rounding may lead each row says for itself, so
  // that where it may turn a sign in one, faults of the others are not hidden.
  void MeasureRows(const std::vector<float>& got, std::vector<Difference>* beyond) const {
    Difference all = {.want = rows_};
    all.Measure(got);
    if (!Fails(all)) return;
    const auto width = static_cast<size_t>(spec_.d_model);
    for (size_t r = 0; r < rows_.size() / width; ++r) {
      const auto of = [r, width](std::span<const float> rows) {
        return rows.subspan(r * width, width);
      };
      Difference row = {.what = "output of row " + std::to_string(r),
                        .want = of(rows_),
                        .moved = [this, of] { return of(rows_moved_); },
                        .greatest = all.greatest};
      row.Measure(of(got));
      if (Fails(row)) beyond->push_back(std::move(row));
    }
  }
  bool Fails(const Difference& difference) const {
    return !difference.lost && difference.worst > difference.Tolerance(half_);
  }
  void Tell(const Difference& difference) const {
    *watch_.fault = name_ + ": " + difference.what + " differs from the CPU's by " +
                    std::to_string(difference.worst) + ", its greatest value is " +
                    std::to_string(difference.greatest) +
                    (half_ ? ", rounding may make " + std::to_string(difference.Tolerance(half_))
                           : std::string());
  }

  const Watch watch_;
  const int draws_;
  const LayerType& type_;
  const LayerSpec spec_;
  const std::unique_ptr<Layer> real_;
  const std::string name_;
  std::vector<bool> halves_;  // of each weight: it is bfloat16, and products take it
  bool half_ = false;         // one of them is
  std::vector<std::vector<float>> weights_;
  std::vector<std::array<int64_t, 4>> shapes_;
  std::vector<HostField> state_, pages_;
  std::vector<std::string> names_;
  // Of the step that runs.
  Step step_;
  std::vector<int32_t> starts_, positions_, slots_, host_slots_, lines_;
  std::vector<float> rows_;         // after the layer, by the CPU
  std::vector<float> rows_before_;  // bfloat16 only
  std::vector<float> rows_moved_;   // of the last draw
  std::vector<float> scratch_;
};

class CheckedDevice : public Device {
 public:
  CheckedDevice(std::unique_ptr<Device> real, int draws) : real_(std::move(real)), draws_(draws) {}

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
    return std::make_unique<CheckedLayer>(Watch{.device = real_.get(), .fault = &fault_}, draws_,
                                          type, spec, type.needs(spec, traits()), parts,
                                          std::move(layer), name);
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
  const int draws_;
  std::optional<std::string> fault_;
  int blocks_ = 0;
};

}  // namespace

std::unique_ptr<Device> MakeCheckedDevice(std::unique_ptr<Device> real, int draws) {
  return std::make_unique<CheckedDevice>(std::move(real), draws);
}

}  // namespace eddy
