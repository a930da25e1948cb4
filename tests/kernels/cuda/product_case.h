// A random product: its operands on the GPU with gaps between rows, and its result in double
// precision on the host.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"

namespace eddy::testing {

// A fresh seed, printed.
uint64_t FreshSeed();

// Memory on the GPU, filled with NaN. Fails the test if there is none.
class DeviceArray {
 public:
  DeviceArray(DType type, int64_t size);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  void* data() const { return data_; }
  DType type() const { return type_; }
  int64_t size() const { return size_; }
  // Values are rounded to the array's type.
  void Write(const std::vector<float>& values);
  std::vector<float> Read() const;
  void Poison();

 private:
  DType type_;
  int64_t size_;
  void* data_ = nullptr;
};

float RoundToBf16(float value);

// What a product may be asked for.
struct ProductOptions {
  int64_t rows = 1, in = 1, out = 1;
  DType type = DType::kF32, y_type = DType::kF32;
  int64_t x_gap = 0, y_gap = 0;  // unused elements between rows
  bool accumulate = false, bias = false, norm = false, gate = false;
  std::string Words() const;
};

class ProductCase {
 public:
  ProductCase(const ProductOptions& options, uint64_t seed);
  // Rows `first` .. `first + rows` of x as a product of its own, y poisoned or holding what is
  // added to. Valid until the next call.
  CudaProduct Rows(int64_t first, int64_t rows);
  // y of the latest Rows after the product has run; fails the test if gaps were written to.
  std::vector<float> Result();
  // The largest error of `got`, the result of Rows(first, ...), as a share of what is allowed: see
  // the definition. Infinite if something is not finite.
  double Error(int64_t first, const std::vector<float>& got) const;

 private:
  const ProductOptions o_;
  std::vector<float> x_, w_, gate_, bias_, norm_, before_;       // as rounded
  DeviceArray device_x_, device_w_, device_bias_, device_norm_;  // gate and w in either order
  DeviceArray device_y_, device_normed_, device_room_;
  bool gate_first_ = false;
  int64_t rows_ = 0;
};

}  // namespace eddy::testing
