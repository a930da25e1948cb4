// Products whose rows have the same bits however many rows there are; bfloat16 with float sums.
// Internal to gemm.cc.
//
// The order: the matrix unit sums blocks of 16 elements, one after the other in order of i, into
// the same sum, which begins at zero; behind the end of `in`, zeros fill up to a multiple of 64.
// All kernels here do so, and so do those algorithms of cuBLASLt that do not split the sum (GemmLt
// tries them on random data before it trusts them): any of them may take any row.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm.h"
#include "kernels/step.h"

namespace eddy {

// One matrix of a group that shares x. `gate`: as in CudaProduct.
struct FixedPart {
  const void* w = nullptr;
  const void* gate = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  const float* bias = nullptr;
  int32_t out = 0;
  int32_t first_block = 0;  // filled in by the launcher
  bool half = false;        // y is bfloat16
  bool accumulate = false;
};

struct FixedProduct {
  const void* x = nullptr;  // bfloat16; float if `norm`
  int64_t x_stride = 0;
  const float* norm = nullptr;
  float norm_eps = 0;
  int32_t rows = 0, in = 0;  // in: a multiple of 8
  int32_t parts = 0;
  FixedPart part[kMostProducts] = {};
};

// Rows and `in` up to which x is normalised on the fly.
inline constexpr int64_t kMostNormedRows = 4, kMostNormedIn = 2048;

// For rows that are a few dozen and many outs; the same bits. Where HasWide() alone: the kernel is
// compiled for sm_90a.
bool HasWide();
void PrepareWide();
void RunWide(Stream stream, const FixedProduct& product);

// Readies the kernels for the current device.
void PrepareFixed();
// Any number of rows, 32 at a time. x is normalised already, or within the bounds above.
void RunFixed(Stream stream, const FixedProduct& product);

}  // namespace eddy
