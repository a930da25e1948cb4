// Proves that the CUDA versions of "swiglu" and "gelu" compute what mlp.h says: random sizes, odd
// ones among them, both types of weights, and steps with decoding and prefilling rows, against
// double precision on the host.
#include "kernels/layers/mlp/mlp_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/cuda/gemm.h"
#include "kernels/layers/mlp/mlp.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/product_case.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using testing::DeviceArray;
using Values = std::vector<float>;

struct Mlp {
  LayerSpec spec;
  DType type = DType::kF32;
  std::vector<Values> weights;  // in the order of MlpNeeds, as rounded
};

class MlpCudaTest : public ::testing::Test {
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
  int64_t Pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  Values Normal(int64_t size, float scale, DType type) {
    std::normal_distribution<float> normal(0.0f, scale);
    Values values(static_cast<size_t>(size));
    for (float& value : values) {
      value = normal(random_);
      if (type == DType::kBF16) value = testing::RoundToBf16(value);
    }
    return values;
  }
  Mlp RandomMlp(const char* name, DType type) {
    return MlpOfSize(name, type, Pick(0, 1) == 0 ? 8 * Pick(1, 40) : Pick(1, 300),
                     Pick(0, 1) == 0 ? 8 * Pick(1, 80) : Pick(1, 500));
  }
  Mlp MlpOfSize(const char* name, DType type, int64_t d_model, int64_t size) {
    Mlp mlp = {
        .spec = {.type = name, .d_model = d_model, .norm_eps = 1e-4, .params = {{"size", size}}},
        .type = type,
        .weights = {}};
    for (const Field& field : MlpNeeds(mlp.spec, {.matrices = type}).weights) {
      const float scale =
          1.0f / std::sqrt(static_cast<float>(std::max(field.shape[1], int64_t{1})));
      mlp.weights.push_back(Normal(field.shape[0] * field.shape[1], scale, field.dtype));
    }
    return mlp;
  }
  // A layer on the GPU, with what it was given.
  struct DeviceMlp {
    std::vector<std::unique_ptr<DeviceArray>> arrays;
    std::unique_ptr<Layer> layer;
  };
  DeviceMlp Make(const Mlp& mlp, int64_t rows) {
    const LayerNeeds needs = MlpNeeds(mlp.spec, {.matrices = mlp.type});
    DeviceMlp made;
    std::vector<TensorView> views;
    for (size_t i = 0; i < mlp.weights.size(); ++i) {
      made.arrays.push_back(std::make_unique<DeviceArray>(
          needs.weights[i].dtype, static_cast<int64_t>(mlp.weights[i].size())));
      made.arrays.back()->Write(mlp.weights[i]);
      views.push_back({.data = made.arrays.back()->data()});
    }
    const CudaLayerType& type = MlpCudaType(mlp.spec.type);
    const CudaScratch scratch = type.scratch(mlp.spec, mlp.type);
    made.arrays.push_back(std::make_unique<DeviceArray>(
        DType::kF32, (scratch.bytes + rows * scratch.bytes_per_row + 3) / 4));
    made.layer =
        type.make(mlp.spec, {.weights = views, .scratch = made.arrays.back()->data()},
                  {.stream = stream_, .gemm = gemm_.get(), .matrices = mlp.type, .keep = nullptr});
    return made;
  }
  void Forward(const DeviceMlp& mlp, int64_t rows, int64_t decoding, const DeviceArray& x) {
    mlp.layer->Forward({.rows = static_cast<int>(rows),
                        .single_row_sequences = static_cast<int>(decoding),
                        .stream = stream_},
                       {.data = x.data()});
  }
  void Finish() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(TakeGemmError(gemm_.get()), std::nullopt);
  }
  // x after the layer, where the first `decoding` rows are sequences of their own.
  Values Run(const Mlp& mlp, const Values& x, int64_t decoding) {
    const int64_t rows = static_cast<int64_t>(x.size()) / mlp.spec.d_model;
    const DeviceMlp made = Make(mlp, rows);
    DeviceArray device_x(DType::kF32, static_cast<int64_t>(x.size()));
    device_x.Write(x);
    Forward(made, rows, decoding, device_x);
    Finish();
    return device_x.Read();
  }

  cudaStream_t stream_ = nullptr;
  CudaGemmPtr gemm_;
  std::mt19937_64 random_;
};

std::vector<double> Product(const std::vector<double>& x, const Values& w) {
  std::vector<double> y(w.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += x[i] * w[o * x.size() + i];
  }
  return y;
}

// What the layer adds to one row.
std::vector<double> Reference(const Mlp& mlp, const float* x) {
  const auto width = static_cast<size_t>(mlp.spec.d_model);
  std::vector<double> normed(x, x + width);
  double squares = 0;
  for (const double v : normed) squares += v * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + mlp.spec.norm_eps);
  for (size_t i = 0; i < width; ++i) normed[i] *= scale * mlp.weights[0][i];
  const bool gated = mlp.spec.type == "swiglu";
  std::vector<double> inner = Product(normed, mlp.weights[gated ? 2 : 1]);
  const std::vector<double> gate = Product(normed, mlp.weights[1]);
  for (size_t i = 0; i < inner.size(); ++i) {
    const double a = gate[i];
    inner[i] = gated ? inner[i] * a / (1 + std::exp(-a)) : a * (1 + std::erf(a / std::sqrt(2))) / 2;
  }
  return Product(inner, mlp.weights.back());
}

TEST_F(MlpCudaTest, ComputesItsFormula) {
  for (int i : testing::Trials(100)) {
    const Mlp mlp =
        RandomMlp(i % 2 == 0 ? "swiglu" : "gelu", i % 3 == 0 ? DType::kF32 : DType::kBF16);
    const int64_t rows = Pick(1, 90), decoding = Pick(0, 1) == 0 ? rows : Pick(0, rows);
    const int64_t width = mlp.spec.d_model;
    SCOPED_TRACE(mlp.spec.type + ", " + std::to_string(width) + " to " +
                 std::to_string(mlp.spec.Int("size")) + ", " + std::to_string(rows) + " rows");
    const Values x = Normal(rows * width, 1.0f, DType::kF32);
    const Values y = Run(mlp, x, decoding);
    double off = 0, size = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> want = Reference(mlp, x.data() + r * width);
      for (int64_t c = 0; c < width; ++c) {
        const double added = double{y[r * width + c]} - x[r * width + c];
        ASSERT_TRUE(std::isfinite(added));
        off += (added - want[c]) * (added - want[c]);
        size += want[c] * want[c];
      }
    }
    // Float: sums of a few hundred, and x is of the size of what is added. Bfloat16: the normed
    // row (which acts through gate and through up), gate, up and what is given to the last product
    // are rounded, each time by 2^-8 at most and 1.7e-3 in the mean square. Where rows are short
    // these do not average out; seven of them in one direction would be 1.2e-2.
    ASSERT_LT(std::sqrt(off / size), mlp.type == DType::kF32 ? 1e-5 : 1.2e-2);
  }
}

TEST_F(MlpCudaTest, GivesADecodingRowTheSameBitsInAnyCompany) {
  for (int i : testing::Trials(10)) {
    const Mlp mlp =
        RandomMlp(i % 2 == 0 ? "swiglu" : "gelu", i % 5 == 0 ? DType::kF32 : DType::kBF16);
    const int64_t rows = Pick(2, 200), width = mlp.spec.d_model;
    const Values x = Normal(rows * width, 1.0f, DType::kF32);
    const Values all = Run(mlp, x, Pick(1, rows));
    const Values alone = Run(mlp, Values(x.begin(), x.begin() + width), 1);
    ASSERT_EQ(std::memcmp(alone.data(), all.data(), static_cast<size_t>(width) * 4), 0);
  }
}

// Kernels begin before those ahead of them have finished; what they read must be finished still.
TEST_F(MlpCudaTest, ComputesTheSameWhereLaunchesOverlap) {
  for (const int64_t rows : {1, 7, 30}) {
    const int64_t width = 1024;
    std::vector<DeviceMlp> layers;
    for (int i = 0; i < 4; ++i) {
      layers.push_back(Make(MlpOfSize("swiglu", DType::kBF16, width, 1408), rows));
    }
    const Values x = Normal(rows * width, 1.0f, DType::kF32);
    DeviceArray device_x(DType::kF32, rows * width);
    device_x.Write(x);
    for (int i = 0; i < 12; ++i) {
      Forward(layers[i % 4], rows, rows, device_x);
      Finish();
    }
    const Values want = device_x.Read();

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < 12; ++i) Forward(layers[i % 4], rows, rows, device_x);
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int repeat = 0; repeat < 50; ++repeat) {
      device_x.Write(x);
      ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
      Finish();
      ASSERT_EQ(device_x.Read(), want) << repeat;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
}

}  // namespace
}  // namespace eddy
