// How CUDA layers cut their scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_layer.h"
#include "kernels/tensor.h"

namespace eddy {

// Hands out one piece after another for a step of so many rows, each aligned to 256 bytes. A layer
// describes its pieces in one function, which is also called without scratch, for a single row, to
// learn what they need.
class ScratchCutter {
 public:
  ScratchCutter(void* scratch, int64_t rows) : scratch_(scratch), rows_(rows) {}
  // For CudaLayerType::scratch.
  static ScratchCutter Measure() { return {nullptr, 1}; }

  // [rows, width] of the type.
  void* Take(DType type, int64_t width) {
    const int64_t at = used_;
    used_ += (rows_ * width * SizeOf(type) + kAlign - 1) / kAlign * kAlign;
    per_row_ += width * SizeOf(type);
    ++pieces_;
    return scratch_ == nullptr ? nullptr : static_cast<std::byte*>(scratch_) + at;
  }
  float* Floats(int64_t width) { return static_cast<float*>(Take(DType::kF32, width)); }

  CudaScratch needs() const { return {.bytes = pieces_ * kAlign, .bytes_per_row = per_row_}; }

 private:
  static constexpr int64_t kAlign = 256;
  void* const scratch_;
  const int64_t rows_;
  int64_t used_ = 0, per_row_ = 0, pieces_ = 0;
};

// For CudaLayerType::scratch, of a layer whose pieces Rows(options, matrices, cutter) describes.
template <typename Rows, typename Options>
CudaScratch ScratchOf(const LayerSpec& spec, DType matrices) {
  ScratchCutter cutter = ScratchCutter::Measure();
  static_cast<void>(Rows(Options(spec), matrices, &cutter));
  return cutter.needs();
}

}  // namespace eddy
