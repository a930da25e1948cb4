// Times the learned scale of the write key over prompts: 8 heads of 128, where the clip never binds
// and where it always does, and in float, which goes token by token. A token is read and written
// once, so bytes bound it only where there are many chains; a long prompt is bound by the chain.
#include <cuda_bf16.h>

#include <cmath>
#include <random>
#include <string>

#include "kernels/bench/bench.cuh"
#include "kernels/rules/osdn_scale/osdn_scale_cuda.h"

namespace eddy::bench {
namespace {

constexpr int64_t kHeads = 8, kDim = 128;

template <typename T>
const T* Random(int64_t count, float low, float high) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<T> host;
  for (int64_t i = 0; i < count; ++i) host.push_back(static_cast<T>(uniform(random)));
  return Upload(host);
}

struct Form {
  const char* name;
  OsdnScaleOptions options;
};

template <typename T>
void Run(const Form& form, int sequences, int rows_of_each) {
  const int64_t rows = int64_t{sequences} * rows_of_each;
  std::vector<int32_t> row_start, slots;
  for (int i = 0; i <= sequences; ++i) row_start.push_back(i * rows_of_each);
  for (int i = 1; i <= sequences; ++i) slots.push_back(i);
  const Step step{.rows = static_cast<int>(rows),
                  .sequences = sequences,
                  .max_rows_per_sequence = rows_of_each,
                  .row_start = Upload(row_start),
                  .slots = Upload(slots)};
  const float unit = std::sqrt(3.0f / kDim);
  const int64_t record = kHeads * kDim;
  OsdnScaleCudaArgs args{
      .heads = kHeads,
      .value_heads = kHeads,
      .key_dim = kDim,
      .options = form.options,
      .type = sizeof(T) == 2 ? DType::kBF16 : DType::kF32,
      .k = Random<T>(rows * record, -unit, unit),
      .k_stride = record,
      .beta = Random<float>(rows * kHeads, 0, 1),
      .retention = Random<float>(rows * kHeads, 0.9f, 1.0f),
      .retention_stride = kHeads,
      .scale = {.base = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(
                    Random<float>(record * (sequences + 1), 0.8f, 1.2f))),
                .stride = record * 4},
      .w = Zeros<T>(rows * record)};
  const double us = Time(1, [&](cudaStream_t stream, int) {
    Step here = step;
    here.stream = stream;
    OsdnScaleCuda(here, args, 0);
  });
  std::printf("%-9s %-9s %3d x %6d  %10.2f us  %7.1f ns a token\n", form.name,
              sizeof(T) == 2 ? "bfloat16" : "float", sequences, rows_of_each, us,
              us * 1e3 / rows_of_each);
  for (const void* data :
       {args.k, static_cast<const void*>(args.beta), static_cast<const void*>(args.retention),
        static_cast<const void*>(args.scale.base), static_cast<const void*>(args.w),
        static_cast<const void*>(step.row_start), static_cast<const void*>(step.slots)}) {
    Check(cudaFree(const_cast<void*>(data)));
  }
}

void Main() {
  constexpr Form kForms[] = {
      {"wide clip", {.eta = 1, .clips = true, .clip_min = 0, .clip_max = 1e9f}},
      {"binding", {.eta = 0.003f, .clips = true, .clip_min = 0.6666667f, .clip_max = 1.5f}}};
  for (const Form& form : kForms) {
    Run<__nv_bfloat16>(form, 1, 16);
    Run<__nv_bfloat16>(form, 1, 2048);
    Run<__nv_bfloat16>(form, 1, 16384);
    Run<__nv_bfloat16>(form, 64, 512);
    Run<float>(form, 1, 2048);
  }
}

}  // namespace
}  // namespace eddy::bench

int main() { eddy::bench::Main(); }
