#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd.h"
#include "kernels/device.h"
#include "kernels/ends/ends_cpu.h"

namespace eddy {
namespace {

constexpr size_t kAlign = 256;

class FunctionProgram : public Program {
 public:
  explicit FunctionProgram(std::function<void()> work) : work_(std::move(work)) {}
  void Run() override { work_(); }

 private:
  const std::function<void()> work_;
};

// Everything is done when a call returns, so Finish has nothing to wait for and no error to tell.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& options)
      : threads_(options.threads > 0 ? options.threads
                                     : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))),
        states_(options.states),
        pending_updates_(options.pending_updates) {
    SetGemmThreads(threads_);
  }

  std::string backend() const override { return "cpu"; }
  std::string description() const override {
    return ProcessorName() + ", " + simd::Target() + ", " + std::to_string(threads_) +
           (threads_ == 1 ? " thread" : " threads");
  }
  // States are written in place, but for those that this would round at every token.
  DeviceTraits traits() const override {
    return {.pending_updates = states_ == DType::kBF16 ? pending_updates_ : 0, .states = states_};
  }
  int64_t free_bytes() const override { return AvailableMemory(); }

  Buffer Allocate(int64_t bytes) override {
    void* data = nullptr;
    if (posix_memalign(&data, kAlign, static_cast<size_t>(std::max<int64_t>(bytes, 1))) != 0) {
      return {};
    }
    return {data, [](void* memory) { std::free(memory); }};
  }
  Buffer AllocateHost(int64_t bytes) override { return Allocate(bytes); }
  void Upload(void* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void Download(std::span<std::byte> to, const void* from) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
  void Copy(void* to, const void* from, int64_t bytes) override {
    std::memmove(to, from, static_cast<size_t>(bytes));
  }
  std::unique_ptr<Layer> Make(const LayerType& type, const LayerSpec& spec,
                              const LayerParts& parts) override {
    return type.make_cpu(spec, parts);
  }
  std::unique_ptr<Ends> MakeEnds(const EndsSpec& spec, const EndsParts& parts,
                                 int max_rows) override {
    return MakeEndsCpu(spec, parts, max_rows);
  }
  std::unique_ptr<Program> Record(const std::function<void()>& work) override {
    return std::make_unique<FunctionProgram>(work);
  }
  std::optional<std::string> Finish() override { return std::nullopt; }

 private:
  const int threads_;
  const DType states_;
  const int pending_updates_;
};

}  // namespace

std::unique_ptr<Device> OpenCpuDevice(const DeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace eddy
