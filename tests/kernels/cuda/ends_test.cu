// Proves embedding and head on the GPU against float64, for both types of matrices; that results
// follow from the logits; and that one recorded graph serves whatever is staged, padded or not,
// with the same bits as eager runs. Without a GPU the tests are skipped.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/ends/ends_cuda.h"
#include "tests/kernels/cuda/gpu.h"

namespace eddy {
namespace {

constexpr int kVocab = 1003, kTokens = 9, kMaxRows = 8;

struct Shape {
  DType type;
  int64_t d_model;
  double softcap;
};

float Rounded(DType type, float x) {
  return type == DType::kF32 ? x : __bfloat162float(__float2bfloat16_rn(x));
}

class EndsCudaTest : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    EDDY_SKIP_WITHOUT_GPU();
    random_.seed(seed_);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    gemm_ = MakeCudaGemm(stream_);
    const auto d = static_cast<size_t>(GetParam().d_model);
    embedding_ = Random(kVocab * d, GetParam().type);
    head_ = Random(kVocab * d, GetParam().type);
    norm_ = Random(d, DType::kF32);
    CudaContext context = {.stream = stream_,
                           .gemm = gemm_.get(),
                           .matrices = GetParam().type,
                           .multiprocessors = 8,
                           .keep = [this](int64_t bytes) { return Keep(bytes); }};
    ends_ = MakeEndsCuda(
        {.d_model = GetParam().d_model,
         .vocab = kVocab,
         .norm_eps = 1e-3,
         .logit_softcap = GetParam().softcap},
        {.embedding = {.data = Upload(embedding_, GetParam().type), .dtype = GetParam().type},
         .final_norm = {.data = Upload(norm_, DType::kF32)},
         .head = {.data = Upload(head_, GetParam().type), .dtype = GetParam().type}},
        kMaxRows, context);
    ASSERT_NE(ends_, nullptr);
    x_ = static_cast<float*>(Keep(kTokens * GetParam().d_model * 4));
    logits_ = static_cast<float*>(Keep(int64_t{kMaxRows} * kVocab * 4));
    Embed();
  }
  void TearDown() override {
    ends_.reset();
    gemm_.reset();
    for (void* memory : kept_) cudaFree(memory);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  std::vector<float> Random(size_t n, DType type) {
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& value : values) value = Rounded(type, normal(random_));
    return values;
  }
  void* Keep(int64_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, static_cast<size_t>(bytes)), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory, 0xff, static_cast<size_t>(bytes)), cudaSuccess);
    kept_.push_back(memory);
    return memory;
  }
  void* Upload(const std::vector<float>& values, DType type) {
    void* const memory = Keep(std::ssize(values) * SizeOf(type));
    std::vector<__nv_bfloat16> halves;
    for (float value : values) halves.push_back(__float2bfloat16_rn(value));
    const void* const from = type == DType::kF32 ? static_cast<const void*>(values.data())
                                                 : static_cast<const void*>(halves.data());
    const size_t bytes = values.size() * static_cast<size_t>(SizeOf(type));
    EXPECT_EQ(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return memory;
  }
  std::vector<float> Download(const float* from, size_t n) {
    std::vector<float> values(n);
    EXPECT_EQ(cudaMemcpy(values.data(), from, n * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
  void Embed() {
    for (int32_t& token : tokens_) token = static_cast<int32_t>(random_() % kVocab);
    auto* const tokens = static_cast<int32_t*>(Keep(sizeof(tokens_)));
    ASSERT_EQ(cudaMemcpy(tokens, tokens_, sizeof(tokens_), cudaMemcpyHostToDevice), cudaSuccess);
    ends_->Embed({.rows = kTokens, .tokens = tokens, .stream = stream_}, {.data = x_});
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  void Run(int count) { ends_->Run(count, {.data = x_}, {.data = logits_}); }
  std::vector<SampleResult> Finish(size_t n) {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    std::vector<SampleResult> results(n);
    ends_->Collect(results);
    return results;
  }

  const uint64_t seed_ = std::random_device()();
  std::mt19937_64 random_;
  cudaStream_t stream_ = nullptr;
  CudaGemmPtr gemm_;
  std::vector<void*> kept_;
  std::vector<float> embedding_, head_, norm_;
  int32_t tokens_[kTokens] = {};
  std::unique_ptr<Ends> ends_;
  float *x_ = nullptr, *logits_ = nullptr;
};

TEST_P(EndsCudaTest, EmbedsExactly) {
  const auto d = static_cast<size_t>(GetParam().d_model);
  const std::vector<float> x = Download(x_, kTokens * d);
  for (size_t i = 0; i < kTokens; ++i) {
    const auto row = embedding_.begin() + static_cast<ptrdiff_t>(tokens_[i]) * std::ssize(norm_);
    EXPECT_TRUE(
        std::equal(row, row + std::ssize(norm_), x.begin() + static_cast<ptrdiff_t>(i * d)));
  }
}

TEST_P(EndsCudaTest, HeadNormsMultipliesAndCapsTheChosenRows) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto d = static_cast<size_t>(GetParam().d_model);
  const std::vector<int32_t> rows = {4, 0, 8};
  EXPECT_EQ(ends_->Stage(rows, std::vector<SampleRow>(3, {.target = 0})), 3);
  Run(3);
  Finish(3);
  const std::vector<float> logits = Download(logits_, 3 * kVocab);
  const std::vector<float> x = Download(x_, kTokens * d);
  double off = 0, size = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const float* const e = x.data() + static_cast<size_t>(rows[r]) * d;
    double square = 0;
    for (size_t i = 0; i < d; ++i) square += std::pow(static_cast<double>(e[i]), 2);
    const double scale = 1 / std::sqrt(square / static_cast<double>(d) + 1e-3);
    for (size_t o = 0; o < kVocab; ++o) {
      double sum = 0;
      for (size_t i = 0; i < d; ++i) {
        const double normed = static_cast<double>(e[i]) * scale * static_cast<double>(norm_[i]);
        const float multiplied = Rounded(GetParam().type, static_cast<float>(normed));
        sum += static_cast<double>(multiplied) * static_cast<double>(head_[o * d + i]);
      }
      const double cap = GetParam().softcap;
      const double wanted = cap > 0 ? cap * std::tanh(sum / cap) : sum;
      off += std::pow(static_cast<double>(logits[r * kVocab + o]) - wanted, 2);
      size += wanted * wanted;
    }
  }
  // Of the normed rows, a value between two numbers of bfloat16 may be rounded to the other one.
  EXPECT_LT(std::sqrt(off / size), GetParam().type == DType::kF32 ? 1e-6 : 1e-3);
}

TEST_P(EndsCudaTest, OneRecordingServesWhateverIsStaged) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  // Recorded while something else is staged.
  EXPECT_EQ(ends_->Stage(std::vector<int32_t>{0}, std::vector<SampleRow>{{.target = 1}}), 1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t program = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  Run(kMaxRows);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&program, graph, 0), cudaSuccess);
  for (int n = 1; n <= kMaxRows; ++n) {
    std::vector<SamplingParams> params(static_cast<size_t>(n));
    std::vector<SampleRow> samples;
    std::vector<int32_t> rows;
    for (SamplingParams& one : params) {
      one = {.top_p = 0.9f, .seed = random_(), .banned = {static_cast<int32_t>(rows.size())}};
      samples.push_back({.params = &one, .top = 3});
      rows.push_back(static_cast<int32_t>(random_() % kTokens));
    }
    EXPECT_EQ(ends_->Stage(rows, samples), n);
    ASSERT_EQ(cudaGraphLaunch(program, stream_), cudaSuccess);
    const std::vector<SampleResult> replayed = Finish(params.size());
    EXPECT_EQ(ends_->Stage(rows, samples), n);
    Run(n);
    const std::vector<SampleResult> eager = Finish(params.size());
    const std::vector<float> logits = Download(logits_, params.size() * kVocab);
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(replayed[i].finite);
      EXPECT_EQ(replayed[i].token, eager[i].token);
      EXPECT_NE(replayed[i].token, static_cast<int32_t>(i)) << "it is banned";
      EXPECT_EQ(std::memcmp(&replayed[i].logprob, &eager[i].logprob, 4), 0);
      const auto begin = logits.begin() + static_cast<ptrdiff_t>(i * kVocab);
      ASSERT_EQ(replayed[i].top.size(), 3u);
      EXPECT_EQ(replayed[i].top[0].token, std::max_element(begin, begin + kVocab) - begin);
    }
  }
  cudaGraphExecDestroy(program);
  cudaGraphDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(Shapes, EndsCudaTest,
                         ::testing::Values(Shape{DType::kF32, 64, 0}, Shape{DType::kF32, 333, 15},
                                           Shape{DType::kBF16, 1024, 0},
                                           Shape{DType::kBF16, 21, 30}));

}  // namespace
}  // namespace eddy
