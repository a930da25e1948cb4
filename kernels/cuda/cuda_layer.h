// What a layer's CUDA version is made with, and its row in the table of the plugin.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/layer.h"

namespace eddy {

class CudaGemm;

// One per device; layers copy it.
struct CudaContext {
  Stream stream = nullptr;  // Step::stream is the same one
  CudaGemm* gemm = nullptr;
  DType matrices = DType::kF32;  // type of weight matrices and of the inputs of products
  int multiprocessors = 0;
  // Zeroed device memory that lives as long as the device, for tables a layer derives from its
  // weights. While loading only; null when memory is short (the device then fails in Finish).
  std::function<void*(int64_t bytes)> keep;
};

// As in LayerNeeds, which holds what the CPU version wants.
struct CudaScratch {
  int64_t bytes = 0, bytes_per_row = 0;
};

struct CudaLayerType {
  const char* name;  // as in LayerType
  std::unique_ptr<Layer> (*make)(const LayerSpec&, const LayerParts&, const CudaContext&);
  CudaScratch (*scratch)(const LayerSpec&, DType matrices);
};

}  // namespace eddy
