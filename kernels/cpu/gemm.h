// Products of matrices in float; the only caller of BLAS. Threads: OpenBLAS brings its own, as many
// as SetGemmThreads said; callers are the engine thread.
#pragma once

#include <cstdint>

namespace eddy {

// Process-wide; 0: as many as the machine has processors.
void SetGemmThreads(int threads);

// y[r, o] (+)= sum_i x[r, i] w[o, i] + bias[o]; x [rows, in], w [out, in], y [rows, out], all
// dense.
struct LinearArgs {
  int64_t rows = 0, in = 0, out = 0;
  const float* x = nullptr;
  const float* w = nullptr;
  const float* bias = nullptr;  // [out]; null: none
  float* y = nullptr;
  bool accumulate = false;
};
void Linear(const LinearArgs& args);

// A matrix whose rows lie `stride` elements apart; `transposed`: read as its transpose.
struct ConstMatrix {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};
struct Matrix {
  float* data = nullptr;
  int64_t stride = 0;
};

// c [m, n] = alpha a [m, k] b [k, n] + beta c.
struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  ConstMatrix a = {};
  ConstMatrix b = {};
  float beta = 0;
  Matrix c = {};
};
void Gemm(const GemmArgs& args);

// b [m, n] <- (I + X)^-1 b, where only the strict lower triangle of x [m, m] is read.
void SolveUnitLower(ConstMatrix x, Matrix b, int64_t m, int64_t n);

}  // namespace eddy
