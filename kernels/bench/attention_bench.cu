// Times the attention rule on the GPU (attention_bench, no options) with keys and values in pages
// at random places: decoding steps by the bytes of the keys and values they read, prompts by the
// operations of their two products (4 H d for each key a row reads). Whether what is timed is right
// is the business of tests/kernels/cuda/attention_test.cu.
#include <cuda_bf16.h>

#include <numeric>
#include <random>
#include <string>

#include "kernels/bench/bench.cuh"
#include "kernels/rules/attention/attention_cuda.h"

namespace eddy::bench {
namespace {

constexpr int kRowsPerPage = 64;

struct Case {
  AttentionShape shape = {.heads = 32, .kv_heads = 8, .head_dim = 128};
  DType type = DType::kBF16;
  int sequences = 1;
  int context = 0;  // positions behind each sequence
  int rows = 1;     // of each sequence
  int64_t window = 0;
  AttentionTiles tiles = AttentionTiles::kBest;
};

__global__ void FillKernel(float* floats, __nv_bfloat16* halves, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    // Some bits of a multiplicative hash: uniform in [-1, 1).
    const uint32_t bits = static_cast<uint32_t>(i * 0x9e3779b97f4a7c15ull >> 40);
    const float x = static_cast<float>(bits) / 8388608.0f - 1.0f;
    if (floats != nullptr) floats[i] = x;
    if (halves != nullptr) halves[i] = __float2bfloat16(x);
  }
}

// Microseconds.
double TimeCase(const Case& c) {
  const auto& [heads, kv_heads, d] = c.shape;
  const int64_t rows = static_cast<int64_t>(c.sequences) * c.rows;
  const int64_t max_pages = (c.context + c.rows + kRowsPerPage - 1) / kRowsPerPage;
  const int64_t pages = c.sequences * max_pages + 1, field = kRowsPerPage * kv_heads * d;
  const int64_t stride = (heads + 2 * kv_heads) * d;

  std::vector<int32_t> lines(static_cast<size_t>(pages - 1)), starts = {0}, slots, positions;
  std::iota(lines.begin(), lines.end(), 1);
  std::shuffle(lines.begin(), lines.end(), std::mt19937(1));
  for (int i = 0; i < c.sequences; ++i) {
    starts.push_back(starts.back() + c.rows);
    slots.push_back(i + 1);
    positions.push_back(c.context);
  }
  std::vector<void*> owned;
  const auto keep = [&](auto* data) { return owned.push_back(data), data; };
  auto* const pool = keep(Zeros<std::byte>(pages * 2 * field * SizeOf(c.type)));
  auto* const qkv = keep(Zeros<float>(rows * stride));
  auto* const out = keep(Zeros<float>(rows * heads * d));
  auto* const scratch = keep(Zeros<std::byte>(AttentionCudaScratchBytes(c.shape) +
                                              rows * AttentionCudaScratchBytesPerRow(c.shape)));
  auto* const frequencies = keep(Upload(RopeFrequencies(10000, d)));
  const bool floats = c.type == DType::kF32;
  FillKernel<<<1024, 256>>>(floats ? reinterpret_cast<float*>(pool) : nullptr,
                            floats ? nullptr : reinterpret_cast<__nv_bfloat16*>(pool),
                            pages * 2 * field);
  FillKernel<<<1024, 256>>>(qkv, nullptr, rows * stride);
  Check(cudaDeviceSynchronize());

  const auto view = [&](int64_t index) {
    return FieldView{.base = pool + index * field * SizeOf(c.type),
                     .stride = 2 * field * SizeOf(c.type),
                     .dtype = c.type,
                     .shape = {kRowsPerPage, kv_heads, d, 1}};
  };
  Step step = {.rows = static_cast<int>(rows),
               .sequences = c.sequences,
               .single_row_sequences = c.rows == 1 ? c.sequences : 0,
               .max_rows_per_sequence = c.rows,
               .row_start = keep(Upload(starts)),
               .slots = keep(Upload(slots)),
               .positions = keep(Upload(positions)),
               .pages = keep(Upload(lines)),
               .max_pages = static_cast<int>(max_pages)};
  const AttentionCudaArgs args = {.shape = c.shape,
                                  .window = c.window,
                                  .type = c.type,
                                  .frequencies = frequencies,
                                  .q = qkv,
                                  .k = qkv + heads * d,
                                  .v = qkv + (heads + kv_heads) * d,
                                  .qkv_stride = stride,
                                  .keys = view(0),
                                  .values = view(1),
                                  .out = out,
                                  .scratch = scratch,
                                  .tiles = c.tiles};
  const double us = Time(c.rows == 1 ? 4 : 1, [&](cudaStream_t stream, int) {
    step.stream = stream;
    AttentionCuda(step, args);
  });
  for (void* data : owned) Check(cudaFree(data));
  return us;
}

std::string NameOf(const Case& c) {
  return std::string(c.rows == 1 ? "decode " : "prompt ") +
         (c.type == DType::kF32 ? "f32" : "bf16") + " H " + std::to_string(c.shape.heads) + "/" +
         std::to_string(c.shape.kv_heads) + " d " + std::to_string(c.shape.head_dim) + " B " +
         std::to_string(c.sequences) + " past " + std::to_string(c.context) +
         (c.rows == 1 ? "" : " rows " + std::to_string(c.rows)) +
         (c.window == 0 ? "" : " window " + std::to_string(c.window)) +
         (c.tiles == AttentionTiles::kWarps        ? " warps"
          : c.tiles == AttentionTiles::kWarpgroups ? " warpgroups"
                                                   : "");
}

void Decode(const Case& c) {
  int64_t keys = c.context + 1;
  if (c.window > 0) keys = std::min(keys, c.window);
  const double bytes =
      2.0 * c.sequences * keys * c.shape.kv_heads * c.shape.head_dim * SizeOf(c.type);
  Line(NameOf(c).c_str(), TimeCase(c), bytes);
}

void Prompt(const Case& c) {
  double pairs = 0;
  for (int64_t t = c.context; t < c.context + c.rows; ++t) {
    pairs += c.window == 0 ? t + 1 : std::min<int64_t>(t + 1, c.window);
  }
  const double flops = 4.0 * pairs * c.sequences * c.shape.heads * c.shape.head_dim;
  const double us = TimeCase(c);
  std::printf("%-52s %9.2f us %8.1f GFLOP %6.1f TF/s\n", NameOf(c).c_str(), us, flops * 1e-9,
              flops / us * 1e-6);
}

}  // namespace
}  // namespace eddy::bench

int main() {
  using eddy::AttentionTiles;
  using eddy::DType;
  using eddy::bench::Decode;
  using eddy::bench::Prompt;
  Decode({.sequences = 64, .context = 4095});
  Decode({.sequences = 1, .context = 4095});
  Decode({.sequences = 1, .context = 131071});
  Decode({.sequences = 8, .context = 16383});
  Decode({.sequences = 256, .context = 1023});
  Decode({.sequences = 1024, .context = 199});
  Decode(
      {.shape = {.heads = 64, .kv_heads = 8, .head_dim = 128}, .sequences = 64, .context = 4095});
  Decode(
      {.shape = {.heads = 16, .kv_heads = 16, .head_dim = 64}, .sequences = 64, .context = 4095});
  Decode({.sequences = 64, .context = 16383, .window = 4096});
  Decode({.type = DType::kF32, .sequences = 64, .context = 4095});
  Decode({.shape = {.heads = 32, .kv_heads = 8, .head_dim = 96}, .sequences = 64, .context = 4095});
  Prompt({.rows = 16384});
  Prompt({.rows = 16384, .tiles = AttentionTiles::kWarps});
  Prompt({.sequences = 64, .rows = 256, .tiles = AttentionTiles::kWarpgroups});
  Prompt({.sequences = 8, .rows = 2048, .tiles = AttentionTiles::kWarps});
  Prompt({.sequences = 16, .rows = 1024, .tiles = AttentionTiles::kWarps});
  Prompt({.sequences = 16, .rows = 1024, .tiles = AttentionTiles::kWarpgroups});
  Prompt({.sequences = 8, .rows = 2048});
  Prompt({.sequences = 64, .rows = 256});
  Prompt({.context = 15872, .rows = 512});
  Prompt({.rows = 16384, .window = 2048});
  Prompt({.shape = {.heads = 16, .kv_heads = 16, .head_dim = 64}, .rows = 16384});
  Prompt({.type = DType::kF32, .rows = 4096});
}
