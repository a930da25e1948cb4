// Times a decoding step of the CUDA delta rule against the bytes it must move. A CUDA graph takes
// every pool through one whole period of the ring, so each figure holds its share of the flushes;
// the pools together are many times larger than the L2 cache. Rings are filled evenly from empty to
// full, as in a server whose sequences came at different times, or are all in phase. The last rows
// take turns with the layers of a pool of a whole model, which holds layer behind layer or record
// behind record: whether it matters that the records of a layer are far apart.
// Usage: delta_rule_bench [C [part of the names of rows [type of states; default: both]]]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/rules/delta_rule/delta_rule_cuda.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

constexpr double kCopyBytesPerSecond = 4.25e12;  // measured: device to device, read plus written
constexpr int64_t kPoolBytes = int64_t{1} << 30;
constexpr int kRounds = 15;

void Cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::abort();
}

enum class Pool { kOneLayer, kByLayer, kByRecord };

struct Work {
  const char* name;
  DeltaRuleShape shape;
  DeltaDecay decay;
  int batch;
  double target_ms;  // of C = 16, float32
  Pool pool = Pool::kOneLayer;
};

constexpr DeltaRuleShape kUsual = {.heads = 8, .value_heads = 8, .key_dim = 128, .value_dim = 128};
constexpr DeltaRuleShape kLarge = {.heads = 6, .value_heads = 6, .key_dim = 256, .value_dim = 512};
constexpr DeltaRuleShape kSmall = {.heads = 8, .value_heads = 8, .key_dim = 64, .value_dim = 64};
constexpr Work kWorks[] = {
    {"8 x 128 x 128 head", kUsual, DeltaDecay::kHead, 1, 0},
    {"8 x 128 x 128 head", kUsual, DeltaDecay::kHead, 16, 0.0065},
    {"8 x 128 x 128 head", kUsual, DeltaDecay::kHead, 64, 0.015},
    {"8 x 128 x 128 head", kUsual, DeltaDecay::kHead, 256, 0.042},
    {"8 x 128 x 128 head", kUsual, DeltaDecay::kHead, 1024, 0.175},
    {"8 x 128 x 128 none", kUsual, DeltaDecay::kNone, 256, 0.042},
    {"8 x 128 x 128 channel", kUsual, DeltaDecay::kChannel, 1024, 0.20},
    {"6 x 256 x 512 head", kLarge, DeltaDecay::kHead, 256, 0.22},
    {"8 x 64 x 64 head", kSmall, DeltaDecay::kHead, 256, 0},
    {"24 layers, by layer", kUsual, DeltaDecay::kHead, 64, 0, Pool::kByLayer},
    {"24 layers, by record", kUsual, DeltaDecay::kHead, 64, 0, Pool::kByRecord},
    {"24 layers, by layer", kUsual, DeltaDecay::kHead, 256, 0, Pool::kByLayer},
    {"24 layers, by record", kUsual, DeltaDecay::kHead, 256, 0, Pool::kByRecord},
    {"24 layers, by layer", kUsual, DeltaDecay::kHead, 1024, 0, Pool::kByLayer},
    {"24 layers, by record", kUsual, DeltaDecay::kHead, 1024, 0, Pool::kByRecord},
};
constexpr int kLayers = 24, kLayerSlots = 1025;

// `halves`: both halves of a float are numbers of bfloat16.
__global__ void Randomise(float* to, int64_t count, float scale, float offset, unsigned seed,
                          bool halves = false) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u ^ seed;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    to[i] = offset + scale * (static_cast<float>(x) / 4294967296.0f - 0.5f);
    if (halves) to[i] = __uint_as_float((__float_as_uint(to[i]) >> 16) * 0x10001u);
  }
}

__global__ void SetCounts(FieldView count, int64_t groups, int64_t value_heads, int slots,
                          int period, bool in_phase) {
  const int slot = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) + 1;
  if (slot >= slots) return;
  auto* counts = reinterpret_cast<int32_t*>(count.base + slot * count.stride);
  for (int64_t i = 0; i < groups * value_heads; ++i) counts[i] = in_phase ? 0 : slot % period;
}

// All that a work needs on the device.
class Bench {
 public:
  Bench(const Work& work, int pending_updates, DType states);
  ~Bench() {
    for (void* memory : allocated_) cudaFree(memory);
  }
  struct Times {
    double median, least;  // milliseconds of one step
  };
  Times Time(bool in_phase);
  // Of one step, by the formula in delta_rule_cuda.h.
  double Bytes() const;

 private:
  template <typename T>
  T* Allocate(int64_t count) {
    void* data = nullptr;
    Cuda(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(T)));
    allocated_.push_back(data);
    return static_cast<T*>(data);
  }
  void Place(const StateLayout& layout, size_t layer, std::byte* memory, int64_t stride);
  DeltaRows Inputs(int64_t width, float scale, float offset);

  const Work work_;
  const int period_;
  const DType states_;
  std::vector<void*> allocated_;
  std::vector<DeltaRuleCudaArgs> args_;  // of each pool
  std::vector<const int32_t*> slots_;    // of each pool, [batch]
  int most_slots_ = 0;
  DeltaRuleCudaArgs inputs_ = {};
};

// A layer as the usual model has it: with the windows of its convolutions.
LayerNeeds Needs(const Work& work, int period, DType states) {
  const DeltaRuleShape& shape = work.shape;
  LayerNeeds needs;
  needs.state = {{.name = "state",
                  .dtype = states,
                  .shape = {shape.value_heads, shape.key_dim, shape.value_dim, 1}}};
  if (work.pool != Pool::kOneLayer) {
    needs.state.push_back(
        {.name = "windows", .shape = {9, shape.value_heads * shape.key_dim, 1, 1}});
  }
  for (Field& field : DeltaRingFields(shape, work.decay, period)) needs.state.push_back(field);
  return needs;
}

Bench::Bench(const Work& work, int pending_updates, DType states)
    : work_(work), period_(pending_updates), states_(states) {
  const LayerNeeds needs = Needs(work, pending_updates, states);
  const StateLayout layer({&needs, 1});
  const auto& [heads, value_heads, key_dim, value_dim] = work.shape;
  inputs_ = {.shape = work.shape,
             .channel_decay = work.decay == DeltaDecay::kChannel,
             .pending_updates = pending_updates};
  inputs_.q = Inputs(heads * key_dim, 0.1f, 0);
  inputs_.k = Inputs(heads * key_dim, 0.1f, 0);
  inputs_.v = Inputs(value_heads * value_dim, 1, 0);
  inputs_.beta = Inputs(value_heads, 0.5f, 0.5f);
  if (work.decay != DeltaDecay::kNone) {
    inputs_.decay =
        Inputs(value_heads * (work.decay == DeltaDecay::kChannel ? key_dim : 1), 0.2f, 0.9f);
  }
  inputs_.out = const_cast<float*>(Inputs(value_heads * value_dim, 0, 0).data);

  // A pool is read again only after another one: a step may begin to read its state before the
  // kernel ahead has ended.
  const int64_t batch_bytes = layer.record_bytes() * work.batch;
  const bool whole = work.pool != Pool::kOneLayer;
  const int pools =
      whole ? kLayers : static_cast<int>(std::clamp<int64_t>(kPoolBytes / batch_bytes, 2, 256));
  most_slots_ = whole ? kLayerSlots : pools * work.batch + 1;
  const int64_t bytes = layer.record_bytes() * most_slots_ * (whole ? kLayers : 1);
  auto* const memory = Allocate<std::byte>(bytes);
  Randomise<<<1024, 256>>>(reinterpret_cast<float*>(memory), bytes / 4, 1, 0, 1,
                           states == DType::kBF16);
  std::vector<int32_t> numbers(static_cast<size_t>(most_slots_ - 1));
  std::iota(numbers.begin(), numbers.end(), 1);
  auto* const slots = Allocate<int32_t>(most_slots_);
  Cuda(cudaMemcpy(slots, numbers.data(), numbers.size() * 4, cudaMemcpyHostToDevice));
  const std::vector<LayerNeeds> all(kLayers, needs);
  const StateLayout record(all);
  for (int i = 0; i < pools; ++i) {
    slots_.push_back(whole ? slots : slots + i * work.batch);
    if (work.pool == Pool::kByRecord) {
      Place(record, static_cast<size_t>(i), memory, record.record_bytes());
    } else {
      Place(layer, 0, memory + (whole ? i * layer.record_bytes() * kLayerSlots : 0),
            layer.record_bytes());
    }
  }
}

DeltaRows Bench::Inputs(int64_t width, float scale, float offset) {
  const int64_t count = width * work_.batch;
  auto* const data = Allocate<float>(count);
  Randomise<<<256, 256>>>(data, count, scale, offset, static_cast<unsigned>(width));
  return {.data = data};
}

void Bench::Place(const StateLayout& layout, size_t layer, std::byte* memory, int64_t stride) {
  const LayerNeeds needs = Needs(work_, period_, states_);
  DeltaRuleCudaArgs args = inputs_;
  for (size_t f = 0; f < needs.state.size(); ++f) {
    const Field& field = needs.state[f];
    const FieldView view = {.base = memory + layout.offset(layer, f),
                            .stride = stride,
                            .dtype = field.dtype,
                            .shape = field.shape};
    if (field.name == "state") args.state = view;
    if (field.name == "ring_w") args.ring.w = view;
    if (field.name == "ring_n") args.ring.n = view;
    if (field.name == "ring_a") args.ring.a = view;
    if (field.name == "ring_count") args.ring.count = view;
  }
  args_.push_back(args);
}

double Bench::Bytes() const {
  const auto& [heads, value_heads, key_dim, value_dim] = work_.shape;
  const double state = static_cast<double>(SizeOf(states_) * key_dim * value_dim), c = period_;
  double pair = 4.0 * static_cast<double>(key_dim + value_dim);
  if (work_.decay == DeltaDecay::kHead) pair += 4;
  if (work_.decay == DeltaDecay::kChannel) pair += 4.0 * static_cast<double>(key_dim);
  const double head = state + state / c + (c - 1) / 2 * pair + (c - 1) / c * pair;
  return head * static_cast<double>(value_heads) * work_.batch;
}

Bench::Times Bench::Time(bool in_phase) {
  for (const DeltaRuleCudaArgs& args : args_) {
    if (period_ == 1) break;
    SetCounts<<<(most_slots_ + 127) / 128, 128>>>(args.ring.count, args.ring.count.shape[1],
                                                  work_.shape.value_heads, most_slots_, period_,
                                                  in_phase);
  }
  const auto pools = static_cast<int>(args_.size());
  cudaStream_t stream;
  Cuda(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < period_ * pools; ++i) {
    const auto pool = static_cast<size_t>(i % pools);
    DeltaRuleStepCuda({.rows = work_.batch,
                       .sequences = work_.batch,
                       .single_row_sequences = work_.batch,
                       .max_rows_per_sequence = 1,
                       .slots = slots_[pool],
                       .stream = stream},
                      args_[pool]);
  }
  Cuda(cudaStreamEndCapture(stream, &graph));
  Cuda(cudaGraphInstantiate(&replay, graph, 0));
  cudaEvent_t begin, end;
  Cuda(cudaEventCreate(&begin));
  Cuda(cudaEventCreate(&end));
  std::vector<float> times;
  for (int round = 0; round < kRounds + 2; ++round) {
    Cuda(cudaEventRecord(begin, stream));
    Cuda(cudaGraphLaunch(replay, stream));
    Cuda(cudaEventRecord(end, stream));
    Cuda(cudaEventSynchronize(end));
    float ms = 0;
    Cuda(cudaEventElapsedTime(&ms, begin, end));
    if (round >= 2) times.push_back(ms / static_cast<float>(period_ * pools));
  }
  Cuda(cudaGraphExecDestroy(replay));
  Cuda(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return {.median = times[times.size() / 2], .least = times[0]};
}

void TimeAll(int pending_updates, std::string_view named, DType states) {
  std::printf(
      "C = %-2d %-14s batch     MB | staggered ms (least)  GB/s  of copy | in phase ms (least) | "
      "target\n",
      pending_updates, states == DType::kBF16 ? "bfloat16" : "float32");
  for (const Work& work : kWorks) {
    if (std::string_view(work.name).find(named) == std::string_view::npos) continue;
    Bench bench(work, pending_updates, states);
    const double bytes = bench.Bytes();
    const Bench::Times staggered = bench.Time(/*in_phase=*/false);
    const Bench::Times in_phase = bench.Time(/*in_phase=*/true);
    const double rate = bytes / staggered.median * 1e3;
    std::printf("%-22s %5d %7.1f | %.4f (%.4f)  %5.0f  %3.0f %% | %.4f (%.4f) | %.4f\n", work.name,
                work.batch, bytes / 1e6, staggered.median, staggered.least, rate / 1e9,
                rate / kCopyBytesPerSecond * 100, in_phase.median, in_phase.least,
                states == DType::kF32 ? work.target_ms : 0);
  }
}

int Main(int argc, char** argv) {
  const int pending_updates = argc > 1 ? std::atoi(argv[1]) : 16;
  const std::string_view named = argc > 2 ? argv[2] : "", states = argc > 3 ? argv[3] : "";
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU\n");
    return 0;
  }
  if (states != "bfloat16") TimeAll(pending_updates, named, DType::kF32);
  if (states != "float32") TimeAll(pending_updates, named, DType::kBF16);
  return 0;
}

}  // namespace
}  // namespace eddy

int main(int argc, char** argv) { return eddy::Main(argc, argv); }
