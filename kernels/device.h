// A place where tensors live and layers run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/layer.h"
#include "kernels/sampling.h"

namespace eddy {

// A piece of memory, freed when dropped.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, std::function<void(void*)> free) : data_(data, std::move(free)) {}
  void* data() const { return data_.get(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::unique_ptr<void, std::function<void(void*)>> data_{nullptr, [](void*) {}};
};

// Work that was recorded once and can be run again with what its buffers hold then.
class Program {
 public:
  virtual ~Program() = default;
  virtual void Run() = 0;
};

// The fixed parts of a model: what stands before its layers and behind them.
struct EndsSpec {
  int64_t d_model = 0;
  int64_t vocab = 0;
  double norm_eps = 0;
  double logit_softcap = 0;  // 0: none; else cap * tanh(logit / cap)
};

struct EndsParts {
  TensorView embedding;   // [vocab, d_model]
  TensorView final_norm;  // [d_model]
  TensorView head;        // [vocab, d_model]; the embedding when tied
};

// Embedding, head and sampler. Engine thread only; enqueues on the device's stream.
class Ends {
 public:
  virtual ~Ends() = default;
  // x[r] = embedding[step.tokens[r]] for all rows of the step; x [rows, d_model].
  virtual void Embed(const Step& step, TensorView x) = 0;
  // Head and sampler go tile by tile: Stage, Run, Device::Finish, Collect. Nothing in Run depends
  // on what was staged, so that it can be recorded once for each `count` and run again.

  // Says which rows of x the next Run takes and what it does with each of them. Takes as many from
  // the front as there is room for, at least one if there are any, and returns how many. Host work
  // only; not while a Run is in flight. What the samples point to stays valid until Collect.
  // REQUIRES: rows.size() == samples.size(), no more than `max_rows` of MakeEnds.
  virtual int Stage(std::span<const int32_t> rows, std::span<const SampleRow> samples) = 0;
  // logits[i] = head . RMSNorm(x[rows[i]]), and what the samples ask of it. x [*, d_model]; logits
  // [count, vocab] fp32 is room to work in. `count` is at least what was staged and at most
  // max_rows; of the rows in between nothing is told.
  virtual void Run(int count, TensorView x, TensorView logits) = 0;
  // The results of the staged rows, after Device::Finish. Host work only.
  virtual void Collect(std::span<SampleResult> results) = 0;
};

// All work of a device is ordered on one stream. Engine thread only, and loading before that. It
// has no way to report an error but Finish: a failed call makes all later ones do nothing.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string backend() const = 0;      // "cpu", "cuda"
  virtual std::string description() const = 0;  // for the log and ModelService
  // What it chose while loading, a line each, for the log; nothing on the CPU.
  virtual std::string choices() const { return {}; }
  virtual DeviceTraits traits() const = 0;
  virtual Stream stream() const { return nullptr; }  // what Step::stream has to be
  virtual int64_t free_bytes() const = 0;
  // Both only while loading, and empty when memory is short. Aligned to 256 bytes, contents
  // undefined. Host memory is page-locked, so that the device copies from and to it without
  // waiting.
  virtual Buffer Allocate(int64_t bytes) = 0;
  virtual Buffer AllocateHost(int64_t bytes) = 0;
  virtual void Upload(void* to, std::span<const std::byte> from) = 0;
  virtual void Download(std::span<std::byte> to, const void* from) = 0;
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  // Puts into `needs`, which the type has stated for the CPU, the scratch of this device's version.
  virtual void Amend(const LayerType&, const LayerSpec&, LayerNeeds* needs) const {
    static_cast<void>(needs);
  }
  // Null if this device has no version of the type.
  virtual std::unique_ptr<Layer> Make(const LayerType&, const LayerSpec&, const LayerParts&) = 0;
  // `max_rows`: most rows of one call of Ends::Stage. Null if memory is short.
  virtual std::unique_ptr<Ends> MakeEnds(const EndsSpec&, const EndsParts&, int max_rows) = 0;
  // A CUDA graph of what `work` enqueues; on the CPU, the function itself.
  virtual std::unique_ptr<Program> Record(const std::function<void()>& work) = 0;
  // Waits for all that was enqueued. The first error since the last call.
  virtual std::optional<std::string> Finish() = 0;
};

struct DeviceOptions {
  int ordinal = 0;
  int threads = 0;                // CPU; 0: as many as the machine has
  int pending_updates = 16;       // see DeviceTraits; the CPU has them for bfloat16 states alone
  DType matrices = DType::kBF16;  // CUDA; see DeviceTraits. The CPU has all weights in float
  DType states = DType::kF32;     // see DeviceTraits
};

// The back end that is always there.
std::unique_ptr<Device> OpenCpuDevice(const DeviceOptions& options);

// The one exported symbol of libeddy_cuda.so, "EddyOpenDevice". Plugin and server are halves of one
// build and share its C++ types: a `build_id` that is not the plugin's own, EDDY_BUILD_ID, is
// refused. Null, with the reason, if there is no usable GPU. Only loading and the engine thread may
// use the device afterwards, one of them at a time.
using OpenDeviceFn = Device* (*)(const char* build_id, const DeviceOptions& options,
                                 std::string* why_not);

}  // namespace eddy
