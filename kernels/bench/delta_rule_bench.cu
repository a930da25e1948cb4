// Times a decoding step of the CUDA delta rule against the bytes it must move. A CUDA graph takes
// every pool through one whole period of the ring, so each figure holds its share of the flushes;
// the pools together are many times larger than the L2 cache. Rings are filled evenly from empty to
// full, as in a server whose sequences came at different times, or are all in phase.
// Usage: delta_rule_bench [C]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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

struct Work {
  const char* name;
  DeltaRuleShape shape;
  DeltaDecay decay;
  int batch;
  double target_ms;  // of C = 16
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
};

__global__ void Randomise(float* to, int64_t count, float scale, float offset, unsigned seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u ^ seed;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    to[i] = offset + scale * (static_cast<float>(x) / 4294967296.0f - 0.5f);
  }
}

__global__ void SetCounts(FieldView count, int64_t groups, int64_t value_heads, int slots,
                          int period, bool in_phase) {
  const int slot = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) + 1;
  if (slot >= slots) return;
  auto* counts = reinterpret_cast<int32_t*>(count.base + slot * count.stride);
  for (int64_t i = 0; i < groups * value_heads; ++i) counts[i] = in_phase ? 0 : slot % period;
}

// All that a work needs on the device; never freed but at the end of the process.
class Bench {
 public:
  Bench(const Work& work, int pending_updates);
  struct Times {
    double median, least;  // milliseconds of one step
  };
  Times Time(bool in_phase);
  // Of one step, by the formula in delta_rule_cuda.h.
  double Bytes() const;

 private:
  DeltaRuleCudaArgs Place(std::byte* memory);
  DeltaRows Inputs(int64_t width, float scale, float offset);

  const Work work_;
  const int period_;
  int64_t stride_ = 0;
  int pools_ = 1;
  int slots_ = 0;
  std::byte* memory_ = nullptr;
  DeltaRuleCudaArgs args_ = {};
  int32_t* slot_of_ = nullptr;  // [pools, batch]
};

Bench::Bench(const Work& work, int pending_updates) : work_(work), period_(pending_updates) {
  Place(nullptr);
  const int64_t batch_bytes = stride_ * work.batch;
  pools_ = static_cast<int>(std::clamp<int64_t>(kPoolBytes / batch_bytes, 1, 256));
  slots_ = pools_ * work.batch + 1;
  Cuda(cudaMalloc(reinterpret_cast<void**>(&memory_), static_cast<size_t>(slots_ * stride_)));
  Randomise<<<1024, 256>>>(reinterpret_cast<float*>(memory_), slots_ * stride_ / 4, 1, 0, 1);
  args_ = Place(memory_);
  const auto& [heads, value_heads, key_dim, value_dim] = work.shape;
  args_.q = Inputs(heads * key_dim, 0.1f, 0);
  args_.k = Inputs(heads * key_dim, 0.1f, 0);
  args_.v = Inputs(value_heads * value_dim, 1, 0);
  args_.beta = Inputs(value_heads, 0.5f, 0.5f);
  if (work.decay != DeltaDecay::kNone) {
    args_.decay =
        Inputs(value_heads * (work.decay == DeltaDecay::kChannel ? key_dim : 1), 0.2f, 0.9f);
  }
  args_.out = const_cast<float*>(Inputs(value_heads * value_dim, 0, 0).data);
  std::vector<int32_t> slots(static_cast<size_t>(slots_ - 1));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i) + 1;
  Cuda(cudaMalloc(reinterpret_cast<void**>(&slot_of_), slots.size() * 4));
  Cuda(cudaMemcpy(slot_of_, slots.data(), slots.size() * 4, cudaMemcpyHostToDevice));
}

DeltaRows Bench::Inputs(int64_t width, float scale, float offset) {
  float* data = nullptr;
  const int64_t count = width * work_.batch;
  Cuda(cudaMalloc(reinterpret_cast<void**>(&data), static_cast<size_t>(count) * 4));
  Randomise<<<256, 256>>>(data, count, scale, offset, static_cast<unsigned>(width));
  return {.data = data};
}

DeltaRuleCudaArgs Bench::Place(std::byte* memory) {
  std::vector<Field> fields = {
      {.name = "state",
       .shape = {work_.shape.value_heads, work_.shape.key_dim, work_.shape.value_dim, 1}}};
  for (Field& field : DeltaRingFields(work_.shape, work_.decay, period_)) fields.push_back(field);
  DeltaRuleCudaArgs args = {.shape = work_.shape,
                            .channel_decay = work_.decay == DeltaDecay::kChannel,
                            .pending_updates = period_};
  int64_t at = 0;
  for (const Field& field : fields) {
    const FieldView view = {.base = memory + at, .shape = field.shape};
    if (field.name == "state") args.state = view;
    if (field.name == "ring_w") args.ring.w = view;
    if (field.name == "ring_n") args.ring.n = view;
    if (field.name == "ring_a") args.ring.a = view;
    if (field.name == "ring_count") args.ring.count = view;
    at += (FieldBytes(field) + StateLayout::kAlign - 1) / StateLayout::kAlign * StateLayout::kAlign;
  }
  stride_ = at;
  for (FieldView* view :
       {&args.state, &args.ring.w, &args.ring.n, &args.ring.a, &args.ring.count}) {
    view->stride = stride_;
  }
  return args;
}

double Bench::Bytes() const {
  const auto& [heads, value_heads, key_dim, value_dim] = work_.shape;
  const double state = 4.0 * static_cast<double>(key_dim * value_dim), c = period_;
  double pair = 4.0 * static_cast<double>(key_dim + value_dim);
  if (work_.decay == DeltaDecay::kHead) pair += 4;
  if (work_.decay == DeltaDecay::kChannel) pair += 4.0 * static_cast<double>(key_dim);
  const double head = state + state / c + (c - 1) / 2 * pair + (c - 1) / c * pair;
  return head * static_cast<double>(value_heads) * work_.batch;
}

Bench::Times Bench::Time(bool in_phase) {
  if (period_ > 1) {
    SetCounts<<<(slots_ + 127) / 128, 128>>>(args_.ring.count, args_.ring.count.shape[1],
                                             work_.shape.value_heads, slots_, period_, in_phase);
  }
  cudaStream_t stream;
  Cuda(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < period_ * pools_; ++i) {
    DeltaRuleStepCuda({.rows = work_.batch,
                       .sequences = work_.batch,
                       .single_row_sequences = work_.batch,
                       .max_rows_per_sequence = 1,
                       .slots = slot_of_ + i % pools_ * work_.batch,
                       .stream = stream},
                      args_);
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
    if (round >= 2) times.push_back(ms / static_cast<float>(period_ * pools_));
  }
  Cuda(cudaGraphExecDestroy(replay));
  Cuda(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return {.median = times[times.size() / 2], .least = times[0]};
}

int Main(int argc, char** argv) {
  const int pending_updates = argc > 1 ? std::atoi(argv[1]) : 16;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("there is no GPU\n");
    return 0;
  }
  std::printf(
      "C = %-19d batch     MB | staggered ms (least)  GB/s  of copy | in phase ms (least) | "
      "target\n",
      pending_updates);
  for (const Work& work : kWorks) {
    Bench bench(work, pending_updates);
    const double bytes = bench.Bytes();
    const Bench::Times staggered = bench.Time(/*in_phase=*/false);
    const Bench::Times in_phase = bench.Time(/*in_phase=*/true);
    const double rate = bytes / staggered.median * 1e3;
    std::printf("%-22s %5d %7.1f | %.4f (%.4f)  %5.0f  %3.0f %% | %.4f (%.4f) | %.4f\n", work.name,
                work.batch, bytes / 1e6, staggered.median, staggered.least, rate / 1e9,
                rate / kCopyBytesPerSecond * 100, in_phase.median, in_phase.least, work.target_ms);
  }
  return 0;
}

}  // namespace
}  // namespace eddy

int main(int argc, char** argv) { return eddy::Main(argc, argv); }
