#include "kernels/cuda/device_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/compiled_for.h"
#include "kernels/cuda/cuda_layer.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/layer_types_cuda.h"
#include "kernels/ends/ends_cuda.h"

namespace eddy {
namespace {

// The oldest architecture that kernels can be compiled for: they copy asynchronously and multiply
// bfloat16.
constexpr int kLeastMajor = 8;
constexpr int kLogitRows = 1024;

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string NameOf(const cudaDeviceProp& card) {
  return std::string(card.name) + ", compute capability " + std::to_string(card.major) + "." +
         std::to_string(card.minor);
}

// What is wrong with the driver or the card; empty if nothing is.
std::string WhyNot(int ordinal) {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver found; one for CUDA " + VersionText(CUDART_VERSION) + " is needed";
  }
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver supports CUDA " + VersionText(driver) + ", at least " +
           VersionText(CUDART_VERSION) + " is needed";
  }
  if (counted != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(counted);
  if (ordinal >= count) {
    return "device_index is " + std::to_string(ordinal) + ", the machine has " +
           std::to_string(count) + (count == 1 ? " GPU" : " GPUs");
  }
  cudaDeviceProp card = {};
  const cudaError_t read = cudaGetDeviceProperties(&card, ordinal);
  if (read != cudaSuccess) return std::string("GPU: ") + cudaGetErrorString(read);
  const std::string name = NameOf(card);
  if (card.major < kLeastMajor) {
    return name + ", at least " + std::to_string(kLeastMajor) + ".0 is needed";
  }
  if (cudaSetDevice(ordinal) == cudaSuccess && KernelsCompiledFor().arch == 0) {
    return name + ", for which this build has neither machine code nor PTX";
  }
  return {};
}

// A recorded graph, and the errors it may make.
class GraphProgram : public Program {
 public:
  GraphProgram(cudaGraphExec_t graph, cudaStream_t stream, CudaErrors* errors)
      : graph_(graph), stream_(stream), errors_(errors) {}
  ~GraphProgram() override {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  void Run() override {
    if (graph_ != nullptr && errors_->ok()) {
      errors_->Check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch");
    }
  }

 private:
  const cudaGraphExec_t graph_;
  const cudaStream_t stream_;
  CudaErrors* const errors_;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const DeviceOptions& options) : options_(options) {
    Check(cudaSetDevice(options.ordinal), "cudaSetDevice");
    Check(cudaGetDeviceProperties(&card_, options.ordinal), "cudaGetDeviceProperties");
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    Check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "cudaEventCreate");
    if (!errors_.ok()) return;
    gemm_ = MakeCudaGemm(stream_);
    context_ = {.stream = stream_,
                .gemm = gemm_.get(),
                .matrices = options.matrices,
                .multiprocessors = card_.multiProcessorCount,
                .keep = [this](int64_t bytes) { return Keep(bytes); }};
  }
  ~CudaDevice() override {
    kept_.clear();
    gemm_.reset();
    if (done_ != nullptr) cudaEventDestroy(done_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  std::string backend() const override { return "cuda"; }
  std::string description() const override {
    // Said in the log before it takes its time.
    const std::string by_driver =
        KernelsCompiledFor().by_driver ? ", kernels compiled by the driver when first needed" : "";
    return NameOf(card_) + ", " + std::to_string(card_.totalGlobalMem >> 20) + " MiB, weights " +
           (options_.matrices == DType::kBF16 ? "bfloat16" : "float32") + by_driver;
  }
  std::string choices() const override { return DescribeGemm(gemm_.get()); }
  DeviceTraits traits() const override {
    return {.pending_updates = options_.pending_updates,
            .matrices = options_.matrices,
            .states = options_.states,
            .kv = options_.matrices,
            .logit_rows = kLogitRows,
            .records_steps = true};
  }
  Stream stream() const override { return stream_; }
  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    return static_cast<int64_t>(free);
  }

  Buffer Allocate(int64_t bytes) override {
    void* data = nullptr;
    // A launch that was refused before must not be lost with the error below.
    Check(cudaGetLastError(), "launch");
    // Too little memory is the caller's to tell, not a fault of the device.
    if (cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1))) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return {};
    }
    return {data, [](void* memory) { cudaFree(memory); }};
  }
  Buffer AllocateHost(int64_t bytes) override {
    void* data = nullptr;
    Check(cudaGetLastError(), "launch");
    if (cudaMallocHost(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1))) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return {};
    }
    return {data, [](void* memory) { cudaFreeHost(memory); }};
  }
  void Upload(void* to, std::span<const std::byte> from) override {
    Enqueue(to, from.data(), static_cast<int64_t>(from.size()), cudaMemcpyHostToDevice);
  }
  void Download(std::span<std::byte> to, const void* from) override {
    Enqueue(to.data(), from, static_cast<int64_t>(to.size()), cudaMemcpyDeviceToHost);
  }
  void Copy(void* to, const void* from, int64_t bytes) override {
    Enqueue(to, from, bytes, cudaMemcpyDeviceToDevice);
  }

  void Amend(const LayerType& type, const LayerSpec& spec, LayerNeeds* needs) const override {
    const CudaLayerType* const cuda = FindCudaLayerType(type.name);
    if (cuda == nullptr) return;  // Make will say so
    const CudaScratch scratch = cuda->scratch(spec, options_.matrices);
    needs->scratch_bytes = scratch.bytes;
    needs->scratch_bytes_per_row = scratch.bytes_per_row;
  }
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    const CudaLayerType* const cuda = FindCudaLayerType(type.name);
    return cuda == nullptr ? nullptr : cuda->make(spec, parts, context_);
  }
  std::unique_ptr<Ends> MakeEnds(const EndsSpec& spec, const EndsParts& parts,
                                 int max_rows) override {
    return MakeEndsCuda(spec, parts, max_rows, context_);
  }

  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture")) {
      work();
      Check(cudaStreamEndCapture(stream_, &graph), "capture of a step");
      if (errors_.ok()) Check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      if (errors_.ok()) Check(cudaGraphUpload(exec, stream_), "cudaGraphUpload");
      if (graph != nullptr) cudaGraphDestroy(graph);
    }
    return std::make_unique<GraphProgram>(exec, stream_, &errors_);
  }

  std::optional<std::string> Finish() override {
    // A launch that was refused shows here; nothing else may ask, or it would be lost.
    Check(cudaGetLastError(), "launch");
    if (const auto error = TakeGemmError(gemm_.get())) errors_.Fail(*error);
    if (errors_.ok()) Check(cudaEventRecord(done_, stream_), "cudaEventRecord");
    if (errors_.ok()) Check(cudaEventSynchronize(done_), "step");
    return errors_.first();
  }

 private:
  bool Check(cudaError_t code, const char* what) { return errors_.Check(code, what); }

  void Enqueue(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0 || !errors_.ok()) return;
    // Loading and the engine are different threads, and each has a device of its own. Every step
    // begins with a copy.
    Check(cudaSetDevice(options_.ordinal), "cudaSetDevice");
    Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_), "copy");
  }

  void* Keep(int64_t bytes) {
    kept_.push_back(Allocate(bytes));
    void* const data = kept_.back().data();
    if (data == nullptr) {
      errors_.Fail("no memory for " + std::to_string(bytes) + " bytes of a layer's tables");
      return nullptr;
    }
    Check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream_), "memset");
    return data;
  }

  const DeviceOptions options_;
  CudaErrors errors_;
  cudaDeviceProp card_ = {};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  CudaGemmPtr gemm_;
  CudaContext context_;
  std::vector<Buffer> kept_;
};

}  // namespace

std::unique_ptr<Device> MakeCudaDevice(const DeviceOptions& options, std::string* why_not) {
  *why_not = WhyNot(options.ordinal);
  if (!why_not->empty()) return nullptr;
  auto device = std::make_unique<CudaDevice>(options);
  if (auto error = device->Finish()) {
    *why_not = *std::move(error);
    return nullptr;
  }
  return device;
}

}  // namespace eddy
