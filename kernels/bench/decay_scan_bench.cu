// Times prompts of the decay scan, token by token in float and in chunks. For every case: the
// median of several runs; the fewest bytes that must move (every operand, output and state once)
// and, in chunks, the operations of the algorithm with chunks of 64 rows, each as a rate. Peers:
// fla_peer.py beside this.
//
// Usage: decay_scan_bench [part of a name]
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels/bench/bench.cuh"
#include "kernels/rules/decay_scan/decay_scan_cuda.h"

namespace eddy::bench {
namespace {

struct Case {
  const char* name;
  DecayScanShape shape;
  bool channel_decay;
  int sequences, rows;  // of each
};

// Uniform numbers, a run of which is repeated.
float* Random(int64_t count, float low, float high) {
  constexpr int64_t kRun = 1 << 20;
  static std::mt19937 random(1);
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> run(kRun);
  for (float& x : run) x = draw(random);
  auto* data = Zeros(count);
  for (int64_t at = 0; at < count; at += kRun) {
    Check(cudaMemcpy(data + at, run.data(), std::min(kRun, count - at) * sizeof(float),
                     cudaMemcpyHostToDevice));
  }
  return data;
}

double Operations(const Case& c) {  // a multiplication and an addition count as two
  const double k = c.shape.key_dim, v = c.shape.value_dim, chunk = 64;
  return (4 * k * v + chunk * (k + v)) * c.shape.states * c.sequences * c.rows;
}

double Bytes(const Case& c) {
  const DecayScanShape& s = c.shape;
  const int64_t decays = c.channel_decay ? s.states * s.key_dim : s.states;
  const int64_t row =
      (s.query_heads + s.key_heads) * s.key_dim + 2 * s.states * s.value_dim + decays;
  return 4.0 * c.sequences * (c.rows * row + 2 * s.states * s.key_dim * s.value_dim);
}

void Run(const Case& c) {
  const DecayScanShape& s = c.shape;
  const int64_t rows = int64_t{c.sequences} * c.rows, size = s.states * s.key_dim * s.value_dim;
  std::vector<int32_t> starts, slots;
  for (int i = 0; i <= c.sequences; ++i) starts.push_back(i * c.rows);
  for (int i = 1; i <= c.sequences; ++i) slots.push_back(i);
  int32_t *device_starts = Upload(starts), *device_slots = Upload(slots);
  DecayScanCudaArgs args = {
      .shape = s,
      .q = Random(rows * s.query_heads * s.key_dim, -0.1f, 0.1f),
      .k = Random(rows * s.key_heads * s.key_dim, -0.1f, 0.1f),
      .v = Random(rows * s.states * s.value_dim, -1, 1),
      .query_stride = s.query_heads * s.key_dim,
      .key_stride = s.key_heads * s.key_dim,
      .value_stride = s.states * s.value_dim,
      .decay = Random(rows * s.states * (c.channel_decay ? s.key_dim : 1), 0.9f, 1),
      .channel_decay = c.channel_decay,
      .state = {.base = reinterpret_cast<std::byte*>(Zeros(size * (c.sequences + 1))),
                .stride = size * 4},
      .out = Zeros(rows * s.states * s.value_dim),
      .scratch = Zeros<std::byte>(rows * DecayChunkScratchBytesPerRow(s, c.channel_decay))};
  const auto time = [&] {
    return Time(2, [&](cudaStream_t stream, int) {
      DecayScanCuda({.rows = static_cast<int>(rows),
                     .sequences = c.sequences,
                     .max_rows_per_sequence = c.rows,
                     .row_start = device_starts,
                     .slots = device_slots,
                     .stream = stream},
                    args);
    });
  };
  const double chunks = time();
  void* const scratch = args.scratch;
  args.scratch = nullptr;
  const double tokens = rows <= 4096 ? time() : 0;  // long ones take long, and tell no more
  std::printf("%-30s %5d x %6d  chunks %9.2f us %6.0f GB/s %6.1f TFLOP/s   tokens %9.2f us\n",
              c.name, c.sequences, c.rows, chunks, Bytes(c) / chunks * 1e-3,
              Operations(c) / chunks * 1e-6, tokens);
  for (const void* data :
       {static_cast<const void*>(args.q), static_cast<const void*>(args.k),
        static_cast<const void*>(args.v), static_cast<const void*>(args.decay),
        static_cast<const void*>(args.state.base), static_cast<const void*>(args.out),
        static_cast<const void*>(scratch), static_cast<const void*>(device_starts),
        static_cast<const void*>(device_slots)}) {
    Check(cudaFree(const_cast<void*>(data)));
  }
}

constexpr DecayScanShape kGla = {4, 4, 4, 1, 256, 512}, kMamba2 = {64, 1, 1, 1, 128, 64},
                         kMlstm = {4, 4, 4, 1, 128, 256};

const Case kCases[] = {
    {"gla 4 x 256 x 512", kGla, true, 1, 4096},
    {"gla 4 x 256 x 512", kGla, true, 1, 16384},
    {"gla 4 x 256 x 512", kGla, true, 64, 2048},
    {"gla 4 x 256 x 512", kGla, true, 16, 256},
    {"gla 4 x 256 x 512", kGla, true, 1, 512},
    {"gla 4 x 256 x 512", kGla, true, 1, 64},
    {"gla 4 x 256 x 512", kGla, true, 1, 32},
    {"mamba2 64 x 128 x 64", kMamba2, false, 1, 4096},
    {"mamba2 64 x 128 x 64", kMamba2, false, 1, 16384},
    {"mamba2 64 x 128 x 64", kMamba2, false, 64, 2048},
    {"mamba2 64 x 128 x 64", kMamba2, false, 16, 256},
    {"mamba2 64 x 128 x 64", kMamba2, false, 1, 512},
    {"mamba2 64 x 128 x 64", kMamba2, false, 1, 64},
    {"mamba2 64 x 128 x 64", kMamba2, false, 1, 32},
    {"mlstm 4 x 128 x 256", kMlstm, false, 1, 4096},
};

}  // namespace
}  // namespace eddy::bench

int main(int argc, char** argv) {
  for (const auto& c : eddy::bench::kCases) {
    const std::string name = c.name;
    if (argc < 2 || name.find(argv[1]) != std::string::npos) eddy::bench::Run(c);
  }
  return 0;
}
