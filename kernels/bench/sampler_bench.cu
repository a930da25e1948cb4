// Run it without arguments on a machine with a GPU. Times the sampler: one tile of rows, replayed
// from a graph, over logits that rotate through more memory than the cache holds. The floor is one
// reading of the logits.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "kernels/ends/sampler/host_lists_cuda.h"
#include "kernels/ends/sampler/sampler_cuda.h"

namespace eddy {
namespace {

constexpr double kCopyBytesPerSecond = 4.25e12;  // of an H200, read and written
constexpr int64_t kPoolBytes = int64_t{256} << 20;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Half a million normal numbers, over and over: flat, or with few likely tokens, as models have.
std::vector<float> Logits(int64_t count, int vocab, bool peaked) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal(0, peaked ? 2.0f : 1.0f);
  std::vector<float> some(1 << 19), logits(static_cast<size_t>(count));
  for (float& logit : some) logit = normal(random);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = some[(i + i / some.size() * 977) % some.size()];
  if (!peaked) return logits;
  for (size_t row = 0; row + static_cast<size_t>(vocab) <= logits.size();
       row += static_cast<size_t>(vocab)) {
    for (int i = 0; i < 100; ++i) {
      logits[row + random() % static_cast<uint32_t>(vocab)] =
          18 - 1.5f * std::sqrt(static_cast<float>(i));
    }
  }
  return logits;
}

struct Load {
  const char* name;
  bool peaked = true;
  SamplingParams params;
  bool measured = false;
  int top = 0;
};

class Bench {
 public:
  Bench(int vocab, int rows)
      : vocab_(vocab), rows_(rows), lists_(vocab, rows), stage_(vocab, lists_.lists()) {
    Check(cudaStreamCreate(&stream_));
    context_.stream = stream_;
    Check(cudaDeviceGetAttribute(&context_.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    context_.keep = [](int64_t bytes) {
      void* memory = nullptr;
      Check(cudaMalloc(&memory, static_cast<size_t>(bytes)));
      return memory;
    };
    tiles_ = static_cast<int>(std::max<int64_t>(2, kPoolBytes / (int64_t{rows} * vocab * 4)));
    tiles_ = std::min(tiles_, 64);
    const size_t bytes =
        static_cast<size_t>(tiles_) * static_cast<size_t>(rows) * static_cast<size_t>(vocab) * 4;
    Check(cudaMalloc(reinterpret_cast<void**>(&logits_), bytes));
    Check(cudaMalloc(reinterpret_cast<void**>(&staged_),
                     static_cast<size_t>(rows) * sizeof(StagedRow)));
    sampler_ = SamplerCuda::Make(vocab, context_);
  }
  ~Bench() {
    cudaFree(logits_);
    cudaFree(staged_);
    cudaStreamDestroy(stream_);
  }

  void Fill(bool peaked) {
    const std::vector<float> logits = Logits(int64_t{tiles_} * rows_ * vocab_, vocab_, peaked);
    Check(cudaMemcpy(logits_, logits.data(), logits.size() * 4, cudaMemcpyHostToDevice));
  }

  // Median of the time of a tile, in microseconds.
  double Time(const Load& load) {
    std::vector<SamplingParams> params(static_cast<size_t>(rows_), load.params);
    std::vector<SampleRow> rows;
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].seed = i;
      rows.push_back(
          {.params = &params[i], .position = 17, .top = load.top, .measured = load.measured});
    }
    stage_.Stage(std::vector<int32_t>(rows.size()), rows);
    Check(cudaMemcpy(staged_, lists_.lists().rows.data(), rows.size() * sizeof(StagedRow),
                     cudaMemcpyHostToDevice));
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < tiles_; ++i) {
      sampler_->Run(rows_, logits_ + int64_t{i} * rows_ * vocab_, staged_, lists_.lists());
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t program = nullptr;
    Check(cudaStreamEndCapture(stream_, &graph));
    Check(cudaGraphInstantiate(&program, graph, 0));
    cudaEvent_t begin = nullptr, end = nullptr;
    Check(cudaEventCreate(&begin));
    Check(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < 23; ++i) {
      Check(cudaEventRecord(begin, stream_));
      Check(cudaGraphLaunch(program, stream_));
      Check(cudaEventRecord(end, stream_));
      Check(cudaEventSynchronize(end));
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, begin, end));
      if (i >= 3) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(program);
    cudaGraphDestroy(graph);
    return static_cast<double>(times[times.size() / 2]) * 1e3 / tiles_;
  }

 private:
  const int vocab_, rows_;
  HostLists lists_;
  SampleStage stage_;
  CudaContext context_;
  cudaStream_t stream_ = nullptr;
  int tiles_ = 0;
  float* logits_ = nullptr;
  StagedRow* staged_ = nullptr;
  std::unique_ptr<SamplerCuda> sampler_;
};

int Main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU\n");
    return 0;
  }
  const SamplingParams greedy = {.temperature = 0}, drawn = {.temperature = 0.8f};
  const SamplingParams nucleus = {.temperature = 0.8f, .top_p = 0.9f};
  const SamplingParams both = {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f};
  const std::vector<Load> loads = {
      {.name = "greatest", .params = greedy},
      {.name = "temperature", .params = drawn},
      {.name = "top_p 0.9", .params = nucleus},
      {.name = "k 50, p 0.9", .params = both},
      {.name = "greatest, measured", .params = greedy, .measured = true},
      {.name = "top_p, measured", .params = nucleus, .measured = true},
      {.name = "5 likeliest", .params = greedy, .measured = true, .top = 5},
      {.name = "flat, top_p 0.9", .peaked = false, .params = nucleus}};
  std::printf("microseconds (share of %.2f TB/s)\n%6s %5s", kCopyBytesPerSecond * 1e-12, "vocab",
              "rows");
  for (const Load& load : loads) std::printf(" %18s", load.name);
  std::printf("\n");
  for (int vocab : {32000, 152064}) {
    for (int rows : {1, 64, 256, 1024}) {
      Bench bench(vocab, rows);
      std::printf("%6d %5d", vocab, rows);
      for (size_t i = 0; i < loads.size(); ++i) {
        if (i == 0 || loads[i].peaked != loads[i - 1].peaked) bench.Fill(loads[i].peaked);
        const double us = bench.Time(loads[i]);
        const double share = 4.0 * rows * vocab / us * 1e6 / kCopyBytesPerSecond;
        std::printf("   %8.1f (%3.0f %%)", us, 100 * share);
      }
      std::printf("\n");
    }
  }
  return 0;
}

}  // namespace
}  // namespace eddy

int main() { return eddy::Main(); }
