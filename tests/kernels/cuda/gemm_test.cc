// Proves that products on the GPU are right and that rows promised a fixed order have it: random
// shapes, odd ones among them, against double precision on the host within what float sums may be
// off; and the bits of a row compared between many numbers of rows, places and ways to ask.
#include "kernels/cuda/gemm.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/product_case.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using testing::ProductCase;
using testing::ProductOptions;

class CudaGemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EDDY_SKIP_WITHOUT_GPU();
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    gemm_ = MakeCudaGemm(stream_);
    random_.seed(testing::FreshSeed());
  }
  void TearDown() override {
    gemm_.reset();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  void Finish() {
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    const auto error = TakeGemmError(gemm_.get());
    ASSERT_FALSE(error.has_value()) << *error;
  }
  int64_t Pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool Toss() { return Pick(0, 1) == 1; }
  // Small sizes, sizes that kernels like, and sizes around those.
  int64_t Size(int64_t most) {
    switch (Pick(0, 3)) {
      case 0:
        return Pick(1, 9);
      case 1:
        return 8 * Pick(1, most / 8);
      case 2:
        return 64 * Pick(1, most / 64);
      default:
        return Pick(1, most);
    }
  }
  ProductOptions Options(int64_t rows, int64_t in, int64_t out) {
    ProductOptions o = {.rows = rows, .in = in, .out = out};
    o.type = Pick(0, 3) > 0 ? DType::kBF16 : DType::kF32;
    o.y_type = o.type == DType::kBF16 && Toss() ? DType::kBF16 : DType::kF32;
    o.gate = Pick(0, 3) == 0;
    o.norm = Pick(0, 2) == 0;
    if (o.y_type == DType::kF32 && !o.gate) {
      o.accumulate = Toss();
      o.bias = Toss();
    }
    if (Toss()) {
      o.x_gap = o.in % 8 == 0 ? 8 * Pick(0, 3) : Pick(0, 9);
      o.y_gap = Pick(0, 9);
    }
    return o;
  }
  std::vector<float> Run(ProductCase* product, int64_t first, int64_t rows, int64_t fixed) {
    CudaProduct p = product->Rows(first, rows);
    p.fixed_rows = fixed;
    RunProduct(gemm_.get(), p);
    Finish();
    return product->Result();
  }

  cudaStream_t stream_ = nullptr;
  CudaGemmPtr gemm_;
  std::mt19937_64 random_;
};

// Enough that a few dozen rows take the kernel for many outs.
constexpr int64_t kManyOuts = 6000;

TEST_F(CudaGemmTest, AgreesWithDoublePrecisionOnRandomShapes) {
  for ([[maybe_unused]] int i : testing::Trials(150)) {
    const int64_t rows = Size(150);
    const int64_t out = rows <= 40 && Toss() ? Pick(1000, kManyOuts) : Size(400);
    const ProductOptions options = Options(rows, Size(700), out);
    SCOPED_TRACE(options.Words());
    ProductCase product(options, random_());
    const int64_t fixed = Pick(0, 2) == 0 ? options.rows : Pick(0, options.rows);
    SCOPED_TRACE("fixed rows " + std::to_string(fixed));
    ASSERT_LT(product.Error(0, Run(&product, 0, options.rows, fixed)), 1.0);
  }
}

TEST_F(CudaGemmTest, AgreesWithDoublePrecisionWhereRowsAreLong) {
  for (const int64_t in : {1024, 2048, 2816, 4096, 5000, 11008, 16384}) {
    for (const int64_t rows : {1, 5, 40, 130}) {
      ProductOptions options = Options(rows, in, Size(70));
      SCOPED_TRACE(options.Words());
      ProductCase product(options, random_());
      ASSERT_LT(product.Error(0, Run(&product, 0, rows, rows)), 1.0);
    }
  }
}

TEST_F(CudaGemmTest, GivesARowTheSameBitsInAnyCompanyAndPlace) {
  const int64_t kRows = 1100;
  for (int i : testing::Trials(24)) {
    ProductOptions options = Options(kRows,
                                     i % 4 == 0   ? 1024
                                     : i % 4 == 1 ? 2816
                                                  : Size(1500),
                                     i % 4 == 0 ? Pick(1000, kManyOuts) : Size(300));
    options.type = i % 6 == 5 ? DType::kF32 : DType::kBF16;
    if (options.type == DType::kF32) options.y_type = DType::kF32;
    SCOPED_TRACE(options.Words());
    ProductCase product(options, random_());
    if (Toss()) PrepareProduct(gemm_.get(), product.Rows(0, 1));
    const std::vector<float> all = Run(&product, 0, kRows, kRows);
    ASSERT_EQ(static_cast<int64_t>(all.size()), kRows * options.out);
    for (const int64_t most : {1, 2, 8, 9, 16, 17, 32, 64, 65, 128, 129, 256, 500, 1024}) {
      const int64_t rows = Toss() ? most : Pick(1, most), first = Pick(0, kRows - rows);
      // Rows behind the fixed ones are computed in their own way.
      const int64_t fixed = Pick(0, 3) == 0 ? Pick(1, rows) : rows;
      SCOPED_TRACE(std::to_string(fixed) + " of " + std::to_string(rows) + " rows from " +
                   std::to_string(first));
      const std::vector<float> some = Run(&product, first, rows, fixed);
      ASSERT_EQ(std::memcmp(some.data(), all.data() + first * options.out,
                            static_cast<size_t>(fixed * options.out) * sizeof(float)),
                0);
    }
  }
}

// Of so many rows cuBLASLt's algorithms are timed; whichever is taken must be right, and leave
// those that are fixed alone.
TEST_F(CudaGemmTest, AgreesWithDoublePrecisionOnThousandsOfPreparedRows) {
  for ([[maybe_unused]] int i : testing::Trials(4)) {
    const int64_t rows = Pick(4097, 9000), fixed = Pick(1, 40);
    ProductOptions options = Options(rows, 8 * Pick(1, 30), Size(150));
    options.type = DType::kBF16;
    SCOPED_TRACE(options.Words());
    ProductCase product(options, random_());
    const std::vector<float> alone = Run(&product, 0, fixed, fixed);
    const CudaProduct shape = product.Rows(0, rows);
    PrepareLongProducts(gemm_.get(), {&shape, 1});
    Finish();
    const std::vector<float> all = Run(&product, 0, rows, fixed);
    ASSERT_LT(product.Error(0, all), 1.0);
    ASSERT_EQ(std::memcmp(alone.data(), all.data(), alone.size() * sizeof(float)), 0);
  }
}

TEST_F(CudaGemmTest, GivesSeveralProductsAtOnceTheBitsOfEachAlone) {
  for (int i : testing::Trials(20)) {
    const int64_t rows = i % 2 == 0 ? Pick(1, 8) : Size(300), in = 8 * Pick(1, 200);
    const bool norm = Toss();
    const uint64_t seed = random_();
    std::vector<std::unique_ptr<ProductCase>> cases;
    for (int64_t n = Pick(1, kMostProducts); n > 0; --n) {
      ProductOptions options = {.rows = rows, .in = in, .out = Size(200), .type = DType::kBF16};
      options.norm = norm;
      options.accumulate = Toss();
      cases.push_back(std::make_unique<ProductCase>(options, seed));
    }
    std::vector<std::vector<float>> alone;
    for (auto& one : cases) {
      CudaProduct product = one->Rows(0, rows);
      product.x = cases[0]->Rows(0, rows).x;
      product.norm = cases[0]->Rows(0, rows).norm;
      RunProduct(gemm_.get(), product);
      Finish();
      alone.push_back(one->Result());
    }
    std::vector<CudaProduct> products;
    for (auto& one : cases) {
      products.push_back(one->Rows(0, rows));
      products.back().x = products[0].x;
      products.back().norm = products[0].norm;
      products.back().normed = products[0].normed;
    }
    RunProducts(gemm_.get(), products);
    Finish();
    for (size_t j = 0; j < cases.size(); ++j) {
      ASSERT_EQ(cases[j]->Result(), alone[j]) << "product " << j << " of " << cases.size();
    }
  }
}

TEST_F(CudaGemmTest, GivesNeighboursTheBitsOfOneProduct) {
  for ([[maybe_unused]] int i : testing::Trials(12)) {
    const int64_t out = 8 * Pick(1, 20), in = 8 * Pick(1, 100), rows = Size(200);
    ProductOptions options = {.rows = rows, .in = in, .out = 3 * out, .type = DType::kBF16};
    options.y_type = Toss() ? DType::kBF16 : DType::kF32;
    ProductCase product(options, random_());
    const std::vector<float> whole = Run(&product, 0, rows, rows);
    const CudaProduct all = product.Rows(0, rows);
    std::vector<CudaProduct> parts(3, all);
    for (int64_t j = 0; j < 3; ++j) {
      parts[j].out = out;
      parts[j].w = static_cast<const std::byte*>(all.w) + j * out * in * SizeOf(all.type);
      parts[j].y = static_cast<std::byte*>(all.y) + j * out * SizeOf(all.y_type);
    }
    if (Toss()) PrepareProducts(gemm_.get(), parts);
    RunProducts(gemm_.get(), parts);
    Finish();
    ASSERT_EQ(product.Result(), whole);
  }
}

TEST_F(CudaGemmTest, KeepsGarbageInItsRow) {
  ProductOptions options = {.rows = 40, .in = 256, .type = DType::kBF16};
  options.norm = true;
  for (const auto& [rows, out] :
       {std::pair<int64_t, int64_t>{3, 100}, {8, 100}, {20, 5000}, {40, 100}}) {
    options.out = out;
    ProductCase product(options, random_());
    const std::vector<float> clean = Run(&product, 0, rows, rows);
    const int64_t bad = Pick(0, rows - 1);
    CudaProduct p = product.Rows(0, rows);
    auto* const x = const_cast<float*>(static_cast<const float*>(p.x)) + bad * p.x_stride;
    ASSERT_EQ(cudaMemset(x, 0xff, 256 * sizeof(float)), cudaSuccess);
    RunProduct(gemm_.get(), p);
    Finish();
    const std::vector<float> got = product.Result();
    for (int64_t i = 0; i < rows * out; ++i) {
      if (i / out == bad) {
        ASSERT_NE(got[i], got[i]);
      } else {
        ASSERT_EQ(got[i], clean[i]);
      }
    }
  }
}

TEST_F(CudaGemmTest, CanBeCapturedInAGraph) {
  ProductOptions options = {.rows = 6, .in = 512, .out = 300, .type = DType::kBF16};
  options.norm = true;
  ProductCase product(options, random_());
  const std::vector<float> eager = Run(&product, 0, 6, 6);
  const CudaProduct p = product.Rows(0, 6);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int i = 0; i < 3; ++i) RunProduct(gemm_.get(), p);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  Finish();
  EXPECT_EQ(product.Result(), eager);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST_F(CudaGemmTest, TakesNoRows) {
  ProductOptions options = {.rows = 1, .in = 16, .out = 16};
  ProductCase product(options, random_());
  CudaProduct p = product.Rows(0, 1);
  p.rows = p.fixed_rows = 0;
  RunProduct(gemm_.get(), p);
  Finish();
}

}  // namespace
}  // namespace eddy
