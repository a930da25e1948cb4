// Times the products of a model of 400 M parameters (d 1024, 24 layers, MLP 2816, vocabulary 32000,
// bfloat16) as one step asks for them, by number of decoding rows: each product alone, and all of a
// step in order. "fixed" is RunProduct with all rows fixed; "cuBLASLt" its first choice for the
// same products, which knows no gate, so that gate and up are one product there. A graph of many
// products is replayed; weights are those of 24 layers, far more than the cache holds. Then the
// same of prompts, whose rows need no fixed order.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_lt.h"

namespace eddy {
namespace {

constexpr int64_t kLayers = 24, kWidth = 1024, kInner = 2816, kVocab = 32000;
constexpr int64_t kMixer = 4 * kWidth + 16;  // queries, keys, values, output gate, two head gates
constexpr int64_t kMostRows = 1024, kPromptRows = 32768;
constexpr int64_t kLayerWeights = (kMixer + kWidth + 3 * kInner) * kWidth;
constexpr int kRepeats = 9;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T* Allocate(int64_t size) {
  void* data = nullptr;
  Check(cudaMalloc(&data, static_cast<size_t>(size) * sizeof(T)));
  return static_cast<T*>(data);
}

struct Buffers {
  uint16_t* weights = Allocate<uint16_t>(kLayers * kLayerWeights + kVocab * kWidth);
  uint16_t* normed = Allocate<uint16_t>(kPromptRows * kInner);
  uint16_t* inner = Allocate<uint16_t>(kPromptRows * kInner * 2);
  uint16_t* room = Allocate<uint16_t>(kPromptRows * kInner * 2);
  float* x = Allocate<float>(kPromptRows * kWidth);
  float* y = Allocate<float>(std::max(kMostRows * kVocab, kPromptRows* kMixer));
  float* norm = Allocate<float>(kWidth);
};

// Random halves near one in size, so that no product is a zero or overflows.
void Fill(void* to, int64_t bytes) {
  std::mt19937 random(std::random_device{}());
  std::vector<uint16_t> block(1 << 20);
  for (uint16_t& half : block) {
    half = static_cast<uint16_t>(0x3c00u | (random() & 0x80ffu));
  }
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(block.size()) * 2) {
    const int64_t size = std::min<int64_t>(bytes - at, static_cast<int64_t>(block.size()) * 2);
    Check(cudaMemcpy(static_cast<char*>(to) + at, block.data(), static_cast<size_t>(size),
                     cudaMemcpyHostToDevice));
  }
}

// Median microseconds of one replay of what `work` enqueues.
double Microseconds(cudaStream_t stream, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<double> times;
  for (int i = 0; i < kRepeats + 2; ++i) {
    Check(cudaEventRecord(begin, stream));
    Check(cudaGraphLaunch(exec, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaStreamSynchronize(stream));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms * 1000.0);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times[times.size() / 2];
}

enum Kind { kMixerIn, kMixerOut, kMlpIn, kMlpOut, kHead, kKinds };
constexpr const char* kNames[kKinds] = {"mixer in", "mixer out", "mlp in", "mlp out", "head"};

class Bench {
 public:
  explicit Bench(cudaStream_t stream) : stream_(stream), gemm_(MakeCudaGemm(stream)), lt_(stream) {
    Fill(b_.weights, (kLayers * kLayerWeights + kVocab * kWidth) * 2);
    Fill(b_.normed, kPromptRows * kInner * 2);
    Fill(b_.inner, kPromptRows * kInner * 4);
    Fill(b_.x, kPromptRows * kWidth * 4);
    Fill(b_.norm, kWidth * 4);
    for (const Kind kind : {kMixerIn, kMixerOut, kMlpIn, kMlpOut, kHead}) {
      CudaProduct product = Product(kind, 1, 1, /*own=*/true, /*norm=*/false);
      PrepareProduct(gemm_.get(), product);
    }
  }

  void Rows(int64_t rows, bool norm) {
    double alone[2][kKinds], step[2];
    for (int own = 0; own < 2; ++own) {
      if (own == 0 && norm) continue;
      for (int kind = 0; kind < kKinds; ++kind) {
        alone[own][kind] =
            Microseconds(stream_,
                         [&] {
                           for (int64_t layer = 0; layer < kLayers; ++layer) {
                             Run(static_cast<Kind>(kind), layer, rows, own == 1, norm);
                           }
                         }) /
            static_cast<double>(kLayers);
      }
      step[own] = Microseconds(stream_, [&] {
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          for (const Kind kind : {kMixerIn, kMixerOut, kMlpIn, kMlpOut}) {
            Run(kind, layer, rows, own == 1, norm);
          }
        }
        Run(kHead, 0, rows, own == 1, norm);
      });
      std::printf("%5lld rows %s", static_cast<long long>(rows),
                  own == 0 ? "cuBLASLt    "
                  : norm   ? "fixed + norm"
                           : "fixed       ");
      for (int kind = 0; kind < kKinds; ++kind) {
        std::printf("  %s %6.2f", kNames[kind], alone[own][kind]);
      }
      const double flops = 2.0 * static_cast<double>(rows) *
                           static_cast<double>(kLayers * kLayerWeights + kVocab * kWidth);
      std::printf("  step %7.1f us, %.0f TF/s\n", step[own], flops / step[own] * 1e-6);
      std::fflush(stdout);
    }
  }

  // The products of a layer with so many rows of prompts, of which none is fixed: microseconds and
  // TFLOP/s.
  void Prompt(int64_t rows) {
    constexpr int kRounds = 4;
    const auto line = [&](const char* name, double in, double out, const auto& work) {
      const double us = Microseconds(stream_,
                                     [&] {
                                       for (int64_t layer = 0; layer < kRounds; ++layer)
                                         work(layer);
                                     }) /
                        kRounds;
      std::printf("%6lld rows of prompts  %-24s %8.1f us  %5.0f TF/s\n",
                  static_cast<long long>(rows), name, us,
                  2.0 * static_cast<double>(rows) * in * out / us * 1e-6);
    };
    const auto free = [&](Kind kind, int64_t layer) {
      CudaProduct product = Product(kind, layer, rows, /*own=*/true, /*norm=*/false);
      product.fixed_rows = 0;
      if (kind == kMixerIn) product.y_type = DType::kBF16;
      RunProduct(gemm_.get(), product);
    };
    line("mixer in", kWidth, kMixer, [&](int64_t layer) { free(kMixerIn, layer); });
    line("mixer out", kWidth, kWidth, [&](int64_t layer) { free(kMixerOut, layer); });
    line("gate and up", kWidth, 2 * kInner, [&](int64_t layer) { free(kMlpIn, layer); });
    line("mlp out", kInner, kWidth, [&](int64_t layer) { free(kMlpOut, layer); });
  }

  // Each product of a step once, for a profiler.
  void Once(int64_t rows) {
    for (const Kind kind : {kMixerIn, kMixerOut, kMlpIn, kMlpOut, kHead}) {
      Run(kind, 1, rows, /*own=*/true, /*norm=*/rows <= 8);
    }
  }

  void Finish() {
    for (const auto& error : {TakeGemmError(gemm_.get()), lt_.TakeError()}) {
      if (error) std::printf("error: %s\n", error->c_str());
    }
    Check(cudaDeviceSynchronize());
  }

 private:
  void Run(Kind kind, int64_t layer, int64_t rows, bool own, bool norm) {
    const CudaProduct product = Product(kind, layer, rows, own, norm);
    if (own) return RunProduct(gemm_.get(), product);
    lt_.Run(product);
  }

  CudaProduct Product(Kind kind, int64_t layer, int64_t rows, bool own, bool norm) {
    const uint16_t* w = b_.weights + layer * kLayerWeights;
    CudaProduct p = {
        .rows = rows, .in = kWidth, .fixed_rows = rows, .type = DType::kBF16, .x = b_.normed};
    switch (kind) {
      case kMixerIn:
        p.out = kMixer;
        p.w = w;
        p.y = b_.y;
        break;
      case kMixerOut:
        p.out = kWidth;
        p.w = w + kMixer * kWidth;
        p.y = b_.x;
        p.accumulate = true;
        break;
      case kMlpIn:
        p.out = own ? kInner : 2 * kInner;
        p.gate = own ? w + (kMixer + kWidth) * kWidth : nullptr;
        p.w = w + (kMixer + kWidth + (own ? kInner : 0)) * kWidth;
        p.gate_room = b_.room;
        p.y = b_.inner;
        p.y_type = DType::kBF16;
        break;
      case kMlpOut:
        p.in = kInner;
        p.out = kWidth;
        p.x = b_.inner;
        p.w = w + (kMixer + kWidth + 2 * kInner) * kWidth;
        p.y = b_.x;
        p.accumulate = true;
        break;
      default:
        p.out = kVocab;
        p.w = b_.weights + (layer == 0 ? kLayers * kLayerWeights : layer * kLayerWeights / 2);
        p.y = b_.y;
    }
    if (norm && kind != kMixerOut && kind != kMlpOut) {
      p.x = b_.x;
      p.norm = b_.norm;
      p.norm_eps = 1e-5f;
      p.normed = b_.normed;
    }
    p.x_stride = p.in;
    p.y_stride = p.out;
    return p;
  }

  const cudaStream_t stream_;
  const Buffers b_;
  CudaGemmPtr gemm_;
  GemmLt lt_;
};

}  // namespace
}  // namespace eddy

// gemm_bench [once | prompt | rows...]
int main(int argc, char** argv) {
  cudaStream_t stream = nullptr;
  eddy::Check(cudaStreamCreate(&stream));
  eddy::Bench bench(stream);
  const std::string what = argc == 2 ? argv[1] : "";
  std::vector<int64_t> numbers;
  for (int i = 1; i < argc; ++i) numbers.push_back(std::atoll(argv[i]));
  if (what == "once") {
    for (const int64_t rows : {1, 64, 256, 1024}) bench.Once(rows);
    bench.Finish();
    return 0;
  }
  if (numbers.empty()) numbers = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  for (const int64_t rows : numbers) {
    if (what == "prompt") break;
    bench.Rows(rows, /*norm=*/false);
    bench.Rows(rows, /*norm=*/true);
  }
  for (const int64_t rows : {1024, 2048, 8192, 32768}) bench.Prompt(rows);
  bench.Finish();
  return 0;
}
