// Products by cuBLASLt. Internal to gemm.cc.
#pragma once

#include <cublasLt.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/step.h"

namespace eddy {

// Engine thread only. The algorithm for a shape is looked up once for each bucket of rows and kept;
// looking up takes some ten microseconds of the host and touches no device memory.
//
// Most algorithms sum each element in the fixed order of fixed_product.h; whether one does is not
// documented, so it is tried: Prepare compares algorithms with a product that is known to, bit for
// bit, at several numbers of rows and on data that show an order (trial.h), and takes the fastest
// that agrees. For thousands of rows too: what cuBLASLt proposes first is up to a third slower
// there than what it proposes last, and all that agree are as good as one another.
class GemmLt {
 public:
  explicit GemmLt(Stream stream);
  ~GemmLt();
  GemmLt(const GemmLt&) = delete;
  GemmLt& operator=(const GemmLt&) = delete;

  // y for all rows; strides must be set, no norm, gate or bias.
  void Run(const CudaProduct& product);
  // Whether Run keeps the fixed order for it.
  bool IsFixed(const CudaProduct& product) const;

  // While loading: looks up what products of this shape need, whatever their rows; addresses may be
  // null. With `reference`, which must enqueue a product in the fixed order, algorithms are tried.
  using Reference = std::function<void(const CudaProduct&)>;
  void Prepare(const CudaProduct& shape, const Reference& reference);
  // The same for thousands of rows alone, of which none is fixed. Prepare does it too.
  void PrepareLong(const CudaProduct& shape, const Reference& reference);

  std::optional<std::string> TakeError();
  // One line for each shape and bucket.
  std::string Describe() const;

 private:
  struct Shape {
    int64_t in, out, x_stride, y_stride, bucket;
    DType type, y_type;
    bool accumulate;
    int alignment;  // of all addresses and strides, in bytes
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    std::vector<cublasLtMatmulAlgo_t> algorithms = {};  // the fastest first, by cuBLASLt's guess
    size_t chosen = 0;
    bool fixed = false;
  };
  struct Trial;

  static Shape ShapeOf(const CudaProduct& product);
  static std::string Words(const Shape& shape, const Plan& plan);
  Plan* Find(const Shape& shape);
  Plan Choose(const Shape& shape);
  cublasStatus_t Multiply(const CudaProduct& product, const Plan& plan, size_t algorithm);
  void TryFixed(const Trial& trial, const Shape& shape, const Reference& reference, Plan* plan);
  void TryLong(const Trial& trial, const Shape& shape, const Reference& reference, Plan* plan);
  bool HasFixedOrder(const Trial& trial, const Shape& shape, int64_t rows,
                     const Reference& reference, const Plan& plan, size_t algorithm);
  static CudaProduct ProductOf(const Trial& trial, const Shape& shape, int64_t rows);
  float TimeOf(const Trial& trial, const Shape& shape, int64_t rows, const Plan& plan,
               size_t algorithm, int at_once);
  bool Check(cublasStatus_t status, const std::string& what);
  bool CheckCuda(int error, const char* what);

  const Stream stream_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Shape, Plan> plans_;
  std::set<Shape> prepared_, prepared_long_;  // with the least bucket
  std::optional<std::string> error_;
};

}  // namespace eddy
