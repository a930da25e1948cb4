#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace eddy {

void SetGemmThreads(int threads) {
  const int processors = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  openblas_set_num_threads(threads > 0 ? threads : processors);
}

namespace {

// Whether the product of simd.h is the faster one. BLAS copies the weights into panels first, which
// for so few rows costs as much as multiplying them; and one thread of Product does the work of
// about two BLAS threads (kernels_bench, BenchProduct). It also gives a row the same bits in every
// company, which BLAS does not.
bool OwnProductPays(int64_t rows) {
  constexpr int64_t kFewRows = 64;
  constexpr int kFewThreads = 2;
  return rows <= kFewRows || openblas_get_num_threads() <= kFewThreads;
}

}  // namespace

void Linear(const LinearArgs& p) {
  if (OwnProductPays(p.rows)) {
    simd::Product({.rows = p.rows,
                   .in = p.in,
                   .out = p.out,
                   .x = p.x,
                   .w = p.w,
                   .y = p.y,
                   .accumulate = p.accumulate});
  } else {
    Gemm({.m = p.rows,
          .n = p.out,
          .k = p.in,
          .a = {.data = p.x, .stride = p.in},
          .b = {.data = p.w, .stride = p.in, .transposed = true},
          .beta = p.accumulate ? 1.0f : 0.0f,
          .c = {.data = p.y, .stride = p.out}});
  }
  for (int64_t r = 0; r < p.rows && p.bias != nullptr; ++r) {
    simd::AddScaled(1.0f, p.bias, p.y + r * p.out, p.out);
  }
}

void Gemm(const GemmArgs& p) {
  const auto order = [](const ConstMatrix& x) { return x.transposed ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, order(p.a), order(p.b), static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), p.alpha, p.a.data,
              static_cast<blasint>(p.a.stride), p.b.data, static_cast<blasint>(p.b.stride), p.beta,
              p.c.data, static_cast<blasint>(p.c.stride));
}

void SolveUnitLower(ConstMatrix x, Matrix b, int64_t m, int64_t n) {
  cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit,
              static_cast<blasint>(m), static_cast<blasint>(n), 1.0f, x.data,
              static_cast<blasint>(x.stride), b.data, static_cast<blasint>(b.stride));
}

}  // namespace eddy
