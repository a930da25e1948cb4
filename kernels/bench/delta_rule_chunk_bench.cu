// Times the chunk form of the delta rule. For every case: the median of several runs; the fewest
// bytes that must move (every operand, output and state once) and the operations of the algorithm
// with chunks of 64 rows, each as a rate. Peers: fla_peer.py beside this.
//
// Usage: delta_rule_chunk_bench [name]   only the cases whose name begins so
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/rules/delta_rule/delta_rule_chunk_cuda.h"

namespace eddy {
namespace {

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

__device__ float Noise(uint64_t i, uint64_t seed) {  // in [-1, 1)
  uint64_t x = (i + seed * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 29;
  return static_cast<float>(x >> 40) * (2.0f / (1 << 24)) - 1.0f;
}

// to[i] = center + spread * noise
template <typename T>
__global__ void Fill(T* to, int64_t count, float center, float spread, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count;
       i += gridDim.x * int64_t{256}) {
    to[i] = static_cast<T>(center + spread * Noise(i, seed));
  }
}

template <typename T>
T* Random(int64_t count, float center, float spread) {
  static uint64_t seed = 1;
  T* data = nullptr;
  Check(cudaMalloc(&data, count * sizeof(T)));
  Fill<<<2048, 256>>>(data, count, center, spread, ++seed);
  return data;
}

struct Case {
  const char* name;
  int sequences, rows;  // of each
  DeltaRuleShape shape = {.heads = 8, .value_heads = 8, .key_dim = 128, .value_dim = 128};
  DeltaDecay decay = DeltaDecay::kHead;
  bool has_w = false;
  bool raw_keys = false;  // Kaczmarz
};

double Operations(const Case& c) {  // a multiplication and an addition count as two
  const double k = c.shape.key_dim, v = c.shape.value_dim, chunk = 64;
  const double per_row = 6 * k * v + chunk * (6 * k + 4 * v) + chunk * chunk / 3;
  return per_row * c.shape.value_heads * c.sequences * c.rows;
}

double Bytes(const Case& c) {
  const double h = c.shape.heads, hv = c.shape.value_heads;
  const double k = c.shape.key_dim, v = c.shape.value_dim;
  double per_row = 2 * 2 * h * k + 2 * 2 * hv * v + 4 * hv;
  if (c.has_w) per_row += 2 * hv * k;
  if (c.decay == DeltaDecay::kHead) per_row += 4 * hv;
  if (c.decay == DeltaDecay::kChannel) per_row += 4 * hv * k;
  return c.sequences * (c.rows * per_row + 2 * 4 * hv * k * v);
}

float Median(const Step& step, const DeltaChunkArgs& args) {
  constexpr int kRuns = 15;
  const auto stream = static_cast<cudaStream_t>(step.stream);
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRuns + 2; ++i) {
    Check(cudaEventRecord(begin, stream));
    DeltaRuleChunkCuda(step, args);
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

void Run(const Case& c) {
  const auto& [heads, value_heads, key_dim, value_dim] = c.shape;
  const int64_t rows = int64_t{c.sequences} * c.rows;
  const float unit = std::sqrt(3.0f / static_cast<float>(key_dim));  // |k| is near one
  const float key = c.raw_keys ? 4 * unit : unit;
  const bool vector = c.decay == DeltaDecay::kChannel;
  std::vector<int32_t> row_start, slots;
  for (int i = 0; i <= c.sequences; ++i) row_start.push_back(i * c.rows);
  for (int i = 1; i <= c.sequences; ++i) slots.push_back(i);
  auto* starts = Random<int32_t>(c.sequences + 1, 0, 0);
  auto* places = Random<int32_t>(c.sequences, 0, 0);
  Check(cudaMemcpy(starts, row_start.data(), row_start.size() * 4, cudaMemcpyHostToDevice));
  Check(cudaMemcpy(places, slots.data(), slots.size() * 4, cudaMemcpyHostToDevice));
  const int64_t record = value_heads * key_dim * value_dim;
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreate(&stream));
  const Step step{.rows = static_cast<int>(rows),
                  .sequences = c.sequences,
                  .max_rows_per_sequence = c.rows,
                  .row_start = starts,
                  .slots = places,
                  .stream = stream};
  DeltaChunkArgs args{
      .shape = c.shape,
      .q = Random<__nv_bfloat16>(rows * heads * key_dim, 0, unit / std::sqrt(float(key_dim))),
      .k = Random<__nv_bfloat16>(rows * heads * key_dim, 0, key),
      .v = Random<__nv_bfloat16>(rows * value_heads * value_dim, 0, 1.7f),
      .beta = c.raw_keys ? Random<float>(rows * value_heads, 0.5f / 16, 0.4f / 16)
                         : Random<float>(rows * value_heads, 0.5f, 0.4f),
      .decay = c.decay,
      .log_decay = Random<float>(rows * value_heads * (vector ? key_dim : 1), -0.05f, 0.05f),
      .state = {.base = reinterpret_cast<std::byte*>(
                    Random<float>(record * (c.sequences + 1), 0, 0.5f)),
                .stride = record * 4},
      .out = Random<__nv_bfloat16>(rows * value_heads * value_dim, 0, 0),
      .scratch = Random<uint32_t>(rows * DeltaChunkScratchBytesPerRow(c.shape, c.decay) / 4, 0, 0)};
  if (c.has_w) args.w = Random<__nv_bfloat16>(rows * value_heads * key_dim, 0, unit);
  Check(cudaDeviceSynchronize());
  const float ms = Median(step, args);
  std::printf("%-34s %8.3f ms  %7.1f ns/row  %6.0f GB/s  %6.1f TFLOP/s\n", c.name, ms,
              ms * 1e6 / static_cast<double>(rows), Bytes(c) / ms * 1e-6,
              Operations(c) / ms * 1e-9);
  for (const void* data :
       {args.q, args.k, args.w, args.v, static_cast<const void*>(args.beta),
        static_cast<const void*>(args.log_decay), static_cast<const void*>(args.state.base),
        static_cast<const void*>(args.out), static_cast<const void*>(args.scratch),
        static_cast<const void*>(starts), static_cast<const void*>(places)}) {
    Check(cudaFree(const_cast<void*>(data)));
  }
  Check(cudaStreamDestroy(stream));
}

constexpr auto kNone = DeltaDecay::kNone, kScalar = DeltaDecay::kHead,
               kVector = DeltaDecay::kChannel;
constexpr DeltaRuleShape kEight = {8, 8, 128, 128};

const Case kCases[] = {
    {"GDN 131072", 1, 131072},
    {"GDN 16384", 1, 16384},
    {"GDN 4096", 1, 4096},
    {"GDN 2048", 1, 2048},
    {"GDN 512", 1, 512},
    {"GDN 64 x 2048", 64, 2048},
    {"GDN 512 x 64", 512, 64},
    {"GDN 16384, 6 heads 256 x 512", 1, 16384, {6, 6, 256, 512}},
    {"DeltaNet 131072", 1, 131072, kEight, kNone},
    {"Kaczmarz 131072", 1, 131072, kEight, kScalar, false, true},
    {"OSDN-GDN 131072", 1, 131072, kEight, kScalar, true},
    {"KDA 131072", 1, 131072, kEight, kVector},
    {"KDA 16384", 1, 16384, kEight, kVector},
    {"KDA 64 x 2048", 64, 2048, kEight, kVector},
};

}  // namespace
}  // namespace eddy

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here\n");
    return 1;
  }
  for (const eddy::Case& c : eddy::kCases) {
    if (argc < 2 || std::string(c.name).rfind(argv[1], 0) == 0) eddy::Run(c);
  }
  return 0;
}
