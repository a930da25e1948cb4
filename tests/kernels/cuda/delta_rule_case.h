// A pool of records of one delta rule on the GPU, sequences that live in it, and the same sequences
// as a float64 recurrence on the host, written from the formula. Tests and benches of the CUDA
// delta rule begin with it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "kernels/rules/delta_rule/delta_ring.h"
#include "kernels/rules/delta_rule/delta_rule_cuda.h"

namespace eddy::testing {

inline void Cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::abort();
}

// Device memory of so many bytes, all of them 0xff: NaN as floats, -1 as integers.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) : bytes_(bytes) {
    Cuda(cudaMalloc(&data_, static_cast<size_t>(bytes)));
    Poison(0, bytes);
  }
  template <typename T>
  explicit DeviceMemory(const std::vector<T>& values)
      : DeviceMemory(static_cast<int64_t>(values.size() * sizeof(T)) + 16) {
    Write<T>(0, values);
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void Poison(int64_t at, int64_t bytes) {
    Cuda(cudaMemset(data<char>() + at, 0xff, static_cast<size_t>(bytes)));
  }
  template <typename T>
  void Write(int64_t at, std::span<const T> values) {
    Cuda(cudaMemcpy(data<char>() + at, values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
  }
  template <typename T>
  std::vector<T> Read(int64_t at, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    Cuda(cudaMemcpy(values.data(), data<char>() + at, values.size() * sizeof(T),
                    cudaMemcpyDeviceToHost));
    return values;
  }
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_;
};

struct DeltaCase {
  DeltaRuleShape shape = {};
  DeltaDecay decay = DeltaDecay::kNone;
  bool own_w = false;
  int pending_updates = 16;
  int64_t slots = 8;  // of the pool, slot 0 included
  int64_t gap = 0;    // bytes behind each record, a multiple of 256
  DType states = DType::kF32;
  bool extreme = false;  // some decays are 0 or 1e-30
};

// One row of inputs of all heads.
struct DeltaRow {
  std::vector<float> q, k, w, v, beta, decay;
};

DeltaRow RandomRow(const DeltaCase& c, std::mt19937_64& rng);

// The recurrence in float64.
class DeltaReference {
 public:
  explicit DeltaReference(const DeltaCase& c);
  // The state is of the case's type at the start, so that device and host begin alike.
  std::vector<float> RandomState(std::mt19937_64& rng);
  std::vector<double> Advance(const DeltaRow& row);
  // As it is when it is written into a record of the case's type.
  void RoundState();
  const std::vector<double>& state() const { return s_; }
  // Of the last row, means over the value heads.
  double residual = 0, contraction = 0, kept = 0;

 private:
  const DeltaCase c_;
  std::vector<double> s_;  // [HV, K, V]
};

// Where each field lies in the records of a pool, and the pool itself, poisoned throughout.
class DeltaPool {
 public:
  explicit DeltaPool(const DeltaCase& c);
  // Gives the slot a state and an empty ring.
  void Fill(int32_t slot, const std::vector<float>& state);
  // Makes all ring entries of a slot NaN again, its count excepted.
  void PoisonRing(int32_t slot);
  std::vector<float> State(int32_t slot) const;
  std::vector<int32_t> Counts(int32_t slot) const;
  // Whether all bytes of a slot outside its fields (all of its bytes, if it is `unused`) are still
  // poison.
  bool Untouched(int32_t slot, bool unused) const;
  DeltaRuleCudaArgs Args() const;
  int64_t stride() const { return stride_; }
  DeviceMemory& memory() { return memory_; }

 private:
  struct Placed {
    Field field;
    int64_t offset = 0;
  };
  static std::vector<Placed> Place(const DeltaCase& c, int64_t* stride);
  const Placed& Find(const char* name) const;
  FieldView View(const char* name) const;

  const DeltaCase c_;
  int64_t stride_ = 0;
  std::vector<Placed> fields_;
  DeviceMemory memory_;
};

// A step on the device: which rows, of which sequences; and what came out.
class DeltaStepRun {
 public:
  // `rows[i]` are those of sequence i; one row each unless `many`.
  DeltaStepRun(const DeltaCase& c, const std::vector<std::vector<DeltaRow>>& rows,
               const std::vector<int32_t>& slots);
  // Points `args` at the inputs and outputs.
  DeltaRuleCudaArgs With(DeltaRuleCudaArgs args, bool readouts) const;
  const Step& step() const { return step_; }
  std::vector<float> Out() const;
  // [3, rows]: residual, contraction, decay.
  std::vector<float> Readouts() const;

 private:
  const DeltaCase c_;
  std::vector<float> q_, k_, w_, v_, beta_, decay_;
  std::vector<int32_t> starts_;
  Step step_ = {};
  DeviceMemory q, k, w, v, beta, decay, slots, starts;
  DeviceMemory out, readouts, scratch;
};

}  // namespace eddy::testing
