// Products on the GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/step.h"
#include "kernels/tensor.h"

namespace eddy {

// y[r, o] (+)= sum_i x[r, i] w[o, i] (+ bias[o]). x and w are of one type, float or bfloat16; sums
// are float. Where `in` is a multiple of 8, bfloat16 x and w are aligned to 16 bytes and x_stride
// is a multiple of 8; nothing else need be aligned beyond its type.
struct CudaProduct {
  int64_t rows = 0, in = 0, out = 0;
  // The first so many rows are summed in an order that depends on `in` and the type alone: their
  // bits are the same whatever the other rows are and however many there are. The decoding rows of
  // a step.
  int64_t fixed_rows = 0;
  DType type = DType::kF32;  // of x and w
  const void* x = nullptr;   // [rows, in], rows `x_stride` elements apart
  int64_t x_stride = 0;      // 0: in
  const void* w = nullptr;   // [out, in], packed
  void* y = nullptr;         // [rows, out], rows `y_stride` elements apart
  int64_t y_stride = 0;      // 0: out
  DType y_type = DType::kF32;
  bool accumulate = false;      // y += instead of y =; y_type float only
  const float* bias = nullptr;  // [out], null: none; y_type float only

  // If not null, x is float whatever `type` says, and RMSNorm(x) with this weight [in], rounded to
  // `type`, takes its place (see norm.h). Few rows are normalised on the fly; for others `normed`
  // is overwritten: [rows, in] of `type`, aligned to 16 bytes.
  const float* norm = nullptr;
  float norm_eps = 0;
  void* normed = nullptr;

  // If not null, a second matrix like w: y = silu(x gate) * (x w), without bias and accumulation.
  // `gate_room` may be overwritten: [rows, 2 out] of y_type, packed. If w lies behind gate in
  // memory, many rows are faster.
  const void* gate = nullptr;
  void* gate_room = nullptr;
};

// Engine thread only. Everything is enqueued on the stream it was made with; no call waits or
// allocates, so calls can be captured in a graph. Errors show in Device::Finish.
class CudaGemm;
void RunProduct(CudaGemm* gemm, const CudaProduct& product);

// Products that share rows, in, fixed_rows, type, x, x_stride and norm, at most kMostProducts of
// them: the projections of one layer. As RunProduct for each, to the bit for fixed rows, with fewer
// launches; and with many rows faster where matrices lie side by side, and columns of y too.
inline constexpr size_t kMostProducts = 12;
void RunProducts(CudaGemm* gemm, std::span<const CudaProduct> products);

// What the device does with it.
struct CudaGemmDelete {
  void operator()(CudaGemm* gemm) const;
};
using CudaGemmPtr = std::unique_ptr<CudaGemm, CudaGemmDelete>;
// Allocates its workspace. Never null: failures show in TakeGemmError.
CudaGemmPtr MakeCudaGemm(Stream stream);
// While loading: chooses how such products will be run, and tries which of cuBLASLt's algorithms
// keep the fixed order. What counts is all but `rows`, `fixed_rows` and the addresses of x and of
// scratch, which may be null; that of w does for RunProducts, and y, where products that lie side
// by side become one. Optional: without it, the first product of a shape with many fixed rows does
// it, and waits for the device.
void PrepareProduct(CudaGemm* gemm, const CudaProduct& shape);
void PrepareProducts(CudaGemm* gemm, std::span<const CudaProduct> shapes);
// The same for products of prompts, none of whose rows are fixed: what is fastest for thousands of
// them.
void PrepareLongProducts(CudaGemm* gemm, std::span<const CudaProduct> shapes);
// The first error since the last call.
std::optional<std::string> TakeGemmError(CudaGemm* gemm);
// One line for each shape and number of rows that cuBLASLt has been asked for, for the log.
std::string DescribeGemm(const CudaGemm* gemm);

}  // namespace eddy
