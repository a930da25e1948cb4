// The product of a layer with one of its weights.
#pragma once

#include <string>

#include "kernels/cuda/cuda_layer.h"
#include "kernels/cuda/gemm.h"

namespace eddy {

// A weight matrix [out, in] and its bias, which may be null.
struct LayerMatrix {
  const std::byte* weight = nullptr;
  const float* bias = nullptr;

  // Without its first `rows` rows.
  LayerMatrix From(int64_t rows, int64_t in, DType type) const {
    return {.weight = weight + rows * in * SizeOf(type),
            .bias = bias == nullptr ? nullptr : bias + rows};
  }
};

// What a layer was given as name.weight and name.bias; null pointers if it did not ask.
inline LayerMatrix FindMatrix(const LayerNeeds& needs, const LayerParts& parts,
                              const std::string& name) {
  const TensorView* const weight = FindWeight(needs, parts, name + ".weight");
  const TensorView* const bias = FindWeight(needs, parts, name + ".bias");
  return {.weight = weight == nullptr ? nullptr : weight->as<std::byte>(),
          .bias = bias == nullptr ? nullptr : bias->as<float>()};
}

// A weight that is float on every device; null if the layer did not ask.
inline const float* FindFloats(const LayerNeeds& needs, const LayerParts& parts,
                               const std::string& name) {
  const TensorView* const view = FindWeight(needs, parts, name);
  return view == nullptr ? nullptr : view->as<float>();
}

// Of all rows of a step, to be completed with x and y.
inline CudaProduct ProductOf(const Step& step, DType matrices, const LayerMatrix& matrix,
                             int64_t in, int64_t out) {
  CudaProduct product;
  product.rows = step.rows;
  product.in = in;
  product.out = out;
  product.fixed_rows = step.single_row_sequences;
  product.type = matrices;
  product.w = matrix.weight;
  product.bias = matrix.bias;
  return product;
}

// The same of RMSNorm(x), with x the residual. `normed` [rows, in] may be overwritten.
struct LayerNorm {
  const float* weight = nullptr;
  float eps = 0;
};
inline CudaProduct NormedProductOf(const Step& step, DType matrices, const LayerMatrix& matrix,
                                   int64_t in, int64_t out, const LayerNorm& norm, const float* x,
                                   void* normed) {
  CudaProduct product = ProductOf(step, matrices, matrix, in, out);
  product.x = x;
  product.norm = norm.weight;
  product.norm_eps = norm.eps;
  product.normed = normed;
  return product;
}

// x += w from, the last product of a layer; `from` [rows, in] is of type `matrices`.
inline void AddProduct(CudaGemm* gemm, const Step& step, DType matrices, const LayerMatrix& matrix,
                       int64_t in, int64_t out, const void* from, float* x) {
  CudaProduct product = ProductOf(step, matrices, matrix, in, out);
  product.x = from;
  product.y = x;
  product.accumulate = true;
  RunProduct(gemm, product);
}

}  // namespace eddy
