// Embedding copies a row of the table a block. The head's norm has a block a row, so that a row is
// summed in one order whatever its company; then comes one product for all rows, and the sampler.
// All three are bound by memory, the product for few rows by the head's weights.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ends/ends_cuda.h"
#include "kernels/ends/sampler/host_lists_cuda.h"
#include "kernels/ends/sampler/sampler_cuda.h"

namespace eddy {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void Store(float x, float* y) { *y = x; }
__device__ void Store(float x, __nv_bfloat16* y) { *y = __float2bfloat16_rn(x); }

// grid: rows. x[r] = table[tokens[r]].
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const int32_t* tokens, const T* table, int64_t width, float* x) {
  AllowNext();
  const T* const from = table + tokens[blockIdx.x] * width;
  float* const to = x + blockIdx.x * width;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kThreads) to[i] = ToFloat(from[i]);
}

struct NormRowsArgs {
  const StagedRow* staged;  // [count], in the host's memory
  StagedRow* rows;          // the same for the sampler
  const float *x, *weight;
  int64_t width;
  float eps;
  void* y;
};

// grid: rows. y[i] = x[staged[i].row] / sqrt(mean(x^2) + eps) * weight.
template <typename Y>
__global__ void __launch_bounds__(kThreads)
    NormRowsKernel(const __grid_constant__ NormRowsArgs args) {
  constexpr int kWords = sizeof(StagedRow) / sizeof(int);
  __shared__ float parts[kWarps];
  __shared__ StagedRow row;
  AllowNext();
  const bool copies = threadIdx.x < kWords;
  int word = 0;
  if (copies) {
    word = reinterpret_cast<const int*>(args.staged + blockIdx.x)[threadIdx.x];
    reinterpret_cast<int*>(&row)[threadIdx.x] = word;
  }
  __syncthreads();
  WaitForPrevious();
  if (copies) reinterpret_cast<int*>(args.rows + blockIdx.x)[threadIdx.x] = word;
  const int64_t width = args.width;
  const float* const from = args.x + row.row * width;
  Y* const to = static_cast<Y*>(args.y) + blockIdx.x * width;
  float sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += from[i] * from[i];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += parts[i];
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + args.eps);
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    Store(from[i] * scale * args.weight[i], &to[i]);
  }
}

__global__ void __launch_bounds__(kThreads) SoftcapKernel(float cap, int64_t count, float* logits) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    logits[i] = cap * tanhf(logits[i] / cap);
  }
}

// On the device, for as long as it lives.
struct Workspace {
  StagedRow* rows = nullptr;  // [max_rows], copies of those in the lists
  void* normed = nullptr;     // [max_rows, d_model], of the matrices' type
};

class EndsCuda : public Ends {
 public:
  struct Parts {
    HostLists lists;
    Workspace workspace;
    std::unique_ptr<SamplerCuda> sampler;
  };
  EndsCuda(const EndsSpec& spec, const EndsParts& weights, const CudaContext& context, Parts parts)
      : spec_(spec),
        weights_(weights),
        context_(context),
        parts_(std::move(parts)),
        stage_(spec.vocab, parts_.lists.lists()) {
    // Else it would be done while serving, when many rows first want logits.
    PrepareProduct(context.gemm, {.in = spec.d_model,
                                  .out = spec.vocab,
                                  .type = weights.head.dtype,
                                  .w = weights.head.data});
  }

  void Embed(const Step& step, TensorView x) override {
    if (step.rows == 0) return;
    const auto grid = static_cast<unsigned>(step.rows);
    auto* const stream = static_cast<cudaStream_t>(step.stream);
    if (weights_.embedding.dtype == DType::kBF16) {
      EmbedKernel<<<grid, kThreads, 0, stream>>>(
          step.tokens, weights_.embedding.as<const __nv_bfloat16>(), spec_.d_model, x.as<float>());
    } else {
      EmbedKernel<<<grid, kThreads, 0, stream>>>(step.tokens, weights_.embedding.as<const float>(),
                                                 spec_.d_model, x.as<float>());
    }
  }

  int Stage(std::span<const int32_t> rows, std::span<const SampleRow> samples) override {
    return stage_.Stage(rows, samples);
  }

  void Run(int count, TensorView x, TensorView logits) override {
    const SampleLists& lists = parts_.lists.lists();
    EDDY_CHECK(count >= stage_.staged() && static_cast<size_t>(count) <= lists.rows.size());
    if (count == 0) return;
    Head(count, x, logits.as<float>());
    parts_.sampler->Run(count, logits.as<float>(), parts_.workspace.rows, lists);
  }

  void Collect(std::span<SampleResult> results) override { stage_.Collect(results); }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(context_.stream); }

  void Head(int count, TensorView x, float* logits) {
    void* const normed = parts_.workspace.normed;
    const NormRowsArgs args = {.staged = parts_.lists.lists().rows.data(),
                               .rows = parts_.workspace.rows,
                               .x = x.as<const float>(),
                               .weight = weights_.final_norm.as<const float>(),
                               .width = spec_.d_model,
                               .eps = static_cast<float>(spec_.norm_eps),
                               .y = normed};
    const bool half = weights_.head.dtype == DType::kBF16;
    LaunchDependent(stream(), {.grid = dim3(static_cast<unsigned>(count)), .threads = kThreads},
                    half ? NormRowsKernel<__nv_bfloat16> : NormRowsKernel<float>, args);
    RunProduct(context_.gemm, {.rows = count,
                               .in = spec_.d_model,
                               .out = spec_.vocab,
                               .fixed_rows = count,
                               .type = weights_.head.dtype,
                               .x = normed,
                               .w = weights_.head.data,
                               .y = logits});
    if (spec_.logit_softcap == 0) return;
    const int64_t size = count * spec_.vocab;
    const auto blocks = static_cast<unsigned>(
        std::min<int64_t>((size + kThreads - 1) / kThreads, 8 * context_.multiprocessors));
    SoftcapKernel<<<blocks, kThreads, 0, stream()>>>(static_cast<float>(spec_.logit_softcap), size,
                                                     logits);
  }

  const EndsSpec spec_;
  const EndsParts weights_;
  const CudaContext context_;
  const Parts parts_;
  SampleStage stage_;
};

}  // namespace

std::unique_ptr<Ends> MakeEndsCuda(const EndsSpec& spec, const EndsParts& parts, int max_rows,
                                   const CudaContext& context) {
  HostLists lists(spec.vocab, max_rows);
  Workspace workspace;
  workspace.rows =
      static_cast<StagedRow*>(context.keep(max_rows * static_cast<int64_t>(sizeof(StagedRow))));
  workspace.normed = context.keep(max_rows * spec.d_model * SizeOf(parts.head.dtype));
  std::unique_ptr<SamplerCuda> sampler = SamplerCuda::Make(spec.vocab, context);
  if (!lists || workspace.rows == nullptr || workspace.normed == nullptr || sampler == nullptr) {
    return nullptr;
  }
  return std::make_unique<EndsCuda>(
      spec, parts, context,
      EndsCuda::Parts{
          .lists = std::move(lists), .workspace = workspace, .sampler = std::move(sampler)});
}

}  // namespace eddy
