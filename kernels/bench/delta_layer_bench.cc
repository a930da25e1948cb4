// Times whole delta layers on the GPU, bfloat16 weights: decoding steps of several batches, as
// replays of a recorded graph over a whole number of the ring's periods, and one long prompt.
// Several layers with weights and states of their own run in turn, so that neither stays in the
// cache. A decoding layer cannot take less than reading its weights and half the traffic of its
// states at the speed of a copy: the floor.
// Usage: delta_layer_bench [milliseconds for each line] [prompts]: those alone
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/layers/delta/delta.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

constexpr double kCopyBytesPerSecond = 4.25e12;  // measured: device to device, read plus written
constexpr int kLayers = 8;
constexpr int kPeriod = 16;

using Params = std::vector<std::pair<std::string, LayerSpec::Value>>;

LayerSpec Spec(int64_t d_model, int64_t heads, int64_t dim, const Params& changes) {
  const std::monostate null;
  LayerSpec spec = {
      .type = "delta",
      .d_model = d_model,
      .norm_eps = 1e-5,
      .params = {{"heads", heads},          {"value_heads", heads},     {"key_dim", dim},
                 {"value_dim", dim},        {"decay", "head"},          {"decay_rank", null},
                 {"decay_bound", null},     {"query_norm", "l2"},       {"key_norm", "l2"},
                 {"qk_activation", "silu"}, {"conv_width", int64_t{4}}, {"step", "sigmoid"},
                 {"step_max", int64_t{1}},  {"step_bias", false},       {"step_eps", null},
                 {"gate", "silu"},          {"gate_rank", int64_t{0}},  {"initial_state", "zero"},
                 {"scale.gradient", null},  {"scale.eta", null},        {"scale.normalise", null},
                 {"scale.clip_min", null},  {"scale.clip_max", null},   {"scale.retention", null},
                 {"scale.gamma", null}}};
  for (const auto& [name, value] : changes) {
    for (auto& param : spec.params) {
      if (param.first == name) param.second = value;
    }
  }
  return spec;
}

// Layers with weights, records and scratch.
class Rig {
 public:
  Rig(Device& device, const LayerSpec& spec, int slots, int rows)
      : device_(device), d_model_(spec.d_model) {
    LayerNeeds needs = DeltaNeeds(spec, device.traits());
    device.Amend(DeltaType(), spec, &needs);
    const std::vector<LayerNeeds> all(kLayers, needs);
    const StateLayout layout(all);
    scratch_ = Allocate(needs.scratch_bytes + rows * needs.scratch_bytes_per_row);
    x_ = Allocate(int64_t{rows} * d_model_ * 4);
    Random(x_, DType::kF32, int64_t{rows} * d_model_, 1.0f);
    record_bytes_ = layout.record_bytes();
    pool_ = Allocate(record_bytes_ * (slots + 1));
    Check(cudaMemset(pool_, 0, static_cast<size_t>(record_bytes_ * (slots + 1))));
    std::vector<int32_t> host(static_cast<size_t>(slots));
    for (int i = 0; i < slots; ++i) host[static_cast<size_t>(i)] = i + 1;
    slots_ = Upload(host);
    single_starts_ = Starts(slots, 1);
    for (int layer = 0; layer < kLayers; ++layer) {
      AddLayer(spec, needs, layout, layer);
      FillRings(needs, layout, layer, slots);
    }
  }
  ~Rig() {
    for (void* memory : memory_) cudaFree(memory);
  }

  void Decode(int batch) {
    Run({.rows = batch,
         .sequences = batch,
         .single_row_sequences = batch,
         .max_rows_per_sequence = 1,
         .row_start = single_starts_});
  }
  // Where so many sequences begin that have so many rows each.
  int32_t* Starts(int sequences, int rows) {
    std::vector<int32_t> host;
    for (int i = 0; i <= sequences; ++i) host.push_back(rows * i);
    return Upload(host);
  }
  void Prompts(int prompts, int rows, const int32_t* starts) {
    Run({.rows = prompts * rows,
         .sequences = prompts,
         .max_rows_per_sequence = rows,
         .row_start = starts});
  }
  // Of one layer.
  double weight_bytes() const { return static_cast<double>(weight_bytes_) / kLayers; }
  double state_bytes() const { return state_bytes_; }

 private:
  static void Check(cudaError_t error) { EDDY_CHECK(error == cudaSuccess); }
  void* Allocate(int64_t bytes) {
    void* data = nullptr;
    Check(cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1))));
    memory_.push_back(data);
    return data;
  }
  int32_t* Upload(const std::vector<int32_t>& host) {
    void* const data = Allocate(std::ssize(host) * 4);
    Check(cudaMemcpy(data, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
    return static_cast<int32_t*>(data);
  }
  // Uniform in [-scale, scale].
  void Random(void* to, DType dtype, int64_t count, float scale) {
    constexpr int64_t kBlock = 1 << 20;
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<float> block(static_cast<size_t>(std::min(count, kBlock)));
    for (float& value : block) value = uniform(random_);
    std::vector<uint16_t> half;
    for (float value : block) {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      half.push_back(static_cast<uint16_t>(bits >> 16));
    }
    const void* const from = dtype == DType::kF32 ? static_cast<void*>(block.data()) : half.data();
    for (int64_t at = 0; at < count; at += kBlock) {
      const auto bytes = static_cast<size_t>(std::min(kBlock, count - at) * SizeOf(dtype));
      Check(cudaMemcpy(static_cast<std::byte*>(to) + at * SizeOf(dtype), from, bytes,
                       cudaMemcpyHostToDevice));
    }
  }

  void AddLayer(const LayerSpec& spec, const LayerNeeds& needs, const StateLayout& layout,
                int layer) {
    constexpr int64_t kAlign = 256;
    int64_t bytes = 0;
    std::vector<int64_t> offsets;
    for (const Field& field : needs.weights) {
      offsets.push_back(bytes);
      bytes += (FieldBytes(field) + kAlign - 1) / kAlign * kAlign;
    }
    weight_bytes_ += bytes;
    auto* const weights = static_cast<std::byte*>(Allocate(bytes));
    std::vector<TensorView> views;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const Field& field = needs.weights[i];
      views.push_back({weights + offsets[i], field.dtype, field.shape});
      const double in = field.shape[1] > 1 ? static_cast<double>(field.shape[1]) : 1.0;
      Random(views.back().data, field.dtype, FieldBytes(field) / SizeOf(field.dtype),
             static_cast<float>(1.7 / std::sqrt(in)));
    }
    std::vector<FieldView> fields;
    state_bytes_ = static_cast<double>(FieldBytes(needs.state[0]));
    for (size_t i = 0; i < needs.state.size(); ++i) {
      fields.push_back(
          {static_cast<std::byte*>(pool_) + layout.offset(static_cast<size_t>(layer), i),
           record_bytes_, needs.state[i].dtype, needs.state[i].shape});
    }
    layers_.push_back(
        device_.Make(DeltaType(), spec, {.weights = views, .state = fields, .scratch = scratch_}));
    EDDY_CHECK(layers_.back() != nullptr && !device_.Finish().has_value());
  }

  // Evenly from empty to full, as in a server whose sequences came at different times.
  void FillRings(const LayerNeeds& needs, const StateLayout& layout, int layer, int slots) {
    for (size_t i = 0; i < needs.state.size(); ++i) {
      if (needs.state[i].name != "ring_count") continue;
      std::vector<int32_t> counts(static_cast<size_t>(FieldBytes(needs.state[i]) / 4));
      for (int slot = 1; slot <= slots; ++slot) {
        std::fill(counts.begin(), counts.end(), slot % kPeriod);
        Check(cudaMemcpy(static_cast<std::byte*>(pool_) + slot * record_bytes_ +
                             layout.offset(static_cast<size_t>(layer), i),
                         counts.data(), counts.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
      }
    }
  }

  void Run(Step step) {
    step.slots = slots_;
    step.stream = device_.stream();
    for (const auto& layer : layers_) {
      layer->Forward(step, {.data = x_, .shape = {step.rows, d_model_, 1, 1}});
    }
  }

  Device& device_;
  const int64_t d_model_;
  std::mt19937 random_{7};
  std::vector<void*> memory_;
  void *scratch_ = nullptr, *x_ = nullptr, *pool_ = nullptr;
  int64_t record_bytes_ = 0, weight_bytes_ = 0;
  double state_bytes_ = 0;
  int32_t *slots_ = nullptr, *single_starts_ = nullptr;
  std::vector<std::unique_ptr<Layer>> layers_;
};

// Milliseconds of one layer: the median of many runs of `count` calls of `work`.
template <typename Work>
double Time(Device& device, int count, double budget_ms, Work work) {
  const auto stream = static_cast<cudaStream_t>(device.stream());
  cudaEvent_t begin = nullptr, end = nullptr;
  EDDY_CHECK(cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
  std::vector<float> times;
  double spent = 0;
  for (int run = 0; run < 3 || (spent < budget_ms && run < 200); ++run) {
    cudaEventRecord(begin, stream);
    for (int i = 0; i < count; ++i) work();
    cudaEventRecord(end, stream);
    EDDY_CHECK(!device.Finish().has_value());
    float ms = 0;
    EDDY_CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess);
    if (run > 0) times.push_back(ms / static_cast<float>(count * kLayers));
    spent += ms;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

struct What {
  double budget_ms;
  bool decodes;
};

void Bench(Device& device, const char* name, const LayerSpec& spec, What what) {
  const double budget_ms = what.budget_ms;
  for (int batch : {1, 16, 64, 256, 1024}) {
    if (!what.decodes) break;
    Rig rig(device, spec, batch, batch);
    rig.Decode(batch);  // kernels are loaded before they are recorded
    const auto program = device.Record([&] { rig.Decode(batch); });
    const double ms = Time(device, kPeriod, budget_ms, [&] { program->Run(); });
    const double bytes = rig.weight_bytes() + batch * rig.state_bytes() * (1 + 1.0 / kPeriod);
    std::printf("%-22s decode %6d  %9.2f us  floor %8.2f us\n", name, batch, ms * 1e3,
                bytes / kCopyBytesPerSecond * 1e6);
  }
  struct Prompts {
    int prompts;
    std::vector<int> rows;
  };
  for (const auto& [prompts, all_rows] :
       {Prompts{64, {2, 4, 8, 16, 32, 64, 128}},
        Prompts{1, {2, 4, 8, 16, 32, 64, 128, 2048, 16384, 131072}}}) {
    Rig rig(device, spec, prompts, prompts * all_rows.back());
    for (const int rows : all_rows) {
      const int32_t* const starts = rig.Starts(prompts, rows);
      const double ms = Time(device, 1, budget_ms, [&] { rig.Prompts(prompts, rows, starts); });
      std::printf("%-22s prompts %2d x %6d  %9.2f us  %8.2f ns a row\n", name, prompts, rows,
                  ms * 1e3, ms * 1e6 / (prompts * rows));
    }
  }
}

int Main(int argc, char** argv) {
  const What what = {.budget_ms = argc > 1 ? std::atof(argv[1]) : 100, .decodes = argc < 3};
  std::string why_not;
  const std::unique_ptr<Device> device = MakeCudaDevice({.matrices = DType::kBF16}, &why_not);
  if (device == nullptr) {
    std::printf("%s\n", why_not.c_str());
    return 1;
  }
  std::printf("%s; one layer of %d\n", device->description().c_str(), kLayers);
  Bench(*device, "gated delta 8x128", Spec(1024, 8, 128, {}), what);
  Bench(*device, "KDA 8x128",
        Spec(1024, 8, 128,
             {{"decay", "channel"},
              {"decay_rank", int64_t{128}},
              {"gate", "sigmoid"},
              {"gate_rank", int64_t{128}}}),
        what);
  Bench(*device, "OSDN 8x128",
        Spec(1024, 8, 128,
             {{"scale.gradient", "beta_aware"},
              {"scale.eta", 0.5},
              {"scale.normalise", false},
              {"scale.clip_min", 0.5},
              {"scale.clip_max", 1.5},
              {"scale.retention", "data"}}),
        what);
  return 0;
}

}  // namespace
}  // namespace eddy

int main(int argc, char** argv) { return eddy::Main(argc, argv); }
