// Proves that the learned scale of the write key on the GPU is the twin of its CPU version, for
// random shapes, options and ways to cut sequences into steps: write keys of every row, zeros for
// padding, d of every slot, and not a byte written elsewhere. Clips that always bind, never bind
// and bind at the beginning only, so that rows go token by token, in blocks, and change over.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/rules/osdn_scale/osdn_scale_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/testing/trials.h"

namespace eddy {
namespace {

using cuda_test::Floats;
using cuda_test::Pick;
using cuda_test::Random;

struct Case {
  int64_t heads = 1, value_heads = 1, key_dim = 1, k_gap = 0;
  DType type = DType::kF32;
  OsdnScaleOptions options = {};
  enum { kNone, kFixed, kPerRow } retention = kNone;

  int64_t k_width() const { return heads * key_dim; }
  int64_t w_width() const { return value_heads * key_dim; }
  int64_t k_stride() const { return k_width() + k_gap; }
};

Case RandomCase(Random& random) {
  constexpr int64_t kDims[] = {1, 7, 32, 64, 100, 128, 128, 129, 200, 256};
  Case c;
  c.heads = Pick(random, 1, 3);
  c.value_heads = c.heads * Pick(random, 1, 4);
  c.key_dim = kDims[Pick(random, 0, 9)];
  c.k_gap = Pick(random, 0, 2) * 4;
  c.type = Pick(random, 0, 1) == 0 ? DType::kF32 : DType::kBF16;
  // A d falls below the first least one at once, and below the second where it begins so.
  constexpr float kLeast[] = {0.7f, 0.0f}, kGreatest[] = {1.4f, 1e9f};
  const int64_t clip = Pick(random, 0, 1);
  c.options = {.beta_aware = Pick(random, 0, 1) == 0,
               .eta = 0.5f,
               .normalise = Pick(random, 0, 1) == 0,
               .clips = Pick(random, 0, 2) > 0,
               .clip_min = kLeast[clip],
               .clip_max = kGreatest[clip]};
  c.retention = Pick(random, 0, 2) == 0 ? Case::kNone
                                        : (Pick(random, 0, 1) == 0 ? Case::kFixed : Case::kPerRow);
  return c;
}

// One step on both sides; the pools hold d, the host's in the memory of `host`.
struct Inputs {
  Floats k, beta, retention;
};

Inputs RandomInputs(Random& random, const Case& c, int64_t rows) {
  Inputs in;
  in.k = cuda_test::Uniform(random, rows * c.k_stride(), -1, 1);
  for (int64_t i = 0; i < rows * c.heads; ++i) {
    float* k = in.k.data() + i / c.heads * c.k_stride() + i % c.heads * c.key_dim;
    double square = 1e-6;
    for (int64_t e = 0; e < c.key_dim; ++e) square += double{k[e]} * double{k[e]};
    for (int64_t e = 0; e < c.key_dim; ++e) {
      k[e] = cuda_test::RoundTo(c.type, static_cast<float>(k[e] / std::sqrt(square)));
    }
  }
  in.beta = cuda_test::Uniform(random, rows * c.value_heads, 0.0f, 1.0f);
  in.retention = cuda_test::Uniform(random, rows * c.value_heads, 0.9f, 1.0f);
  return in;
}

// The CPU's keys are packed.
Floats Packed(const Case& c, const Floats& k, int64_t rows) {
  Floats packed;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = k.begin() + row * c.k_stride();
    packed.insert(packed.end(), begin, begin + c.k_width());
  }
  return packed;
}

void RunStep(const Case& c, const cuda_test::Plan& plan, const Inputs& in, cuda_test::Pool& pool,
             Floats* host) {
  const int64_t rows = plan.rows();
  const cuda_test::DeviceStep device(plan);
  const cuda_test::DeviceBytes k = cuda_test::UploadAs(c.type, in.k);
  const cuda_test::DeviceBytes beta = cuda_test::Upload(in.beta);
  const cuda_test::DeviceBytes retention = cuda_test::Upload(in.retention);
  const cuda_test::DeviceBytes w(static_cast<size_t>(rows * c.w_width() * SizeOf(c.type)));
  const int64_t retention_stride = c.retention == Case::kPerRow ? c.value_heads : 0;
  OsdnScaleCuda(device.step,
                {.heads = c.heads,
                 .value_heads = c.value_heads,
                 .key_dim = c.key_dim,
                 .options = c.options,
                 .type = c.type,
                 .k = k.as<void>(),
                 .k_stride = c.k_stride(),
                 .beta = beta.as(),
                 .retention = c.retention == Case::kNone ? nullptr : retention.as(),
                 .retention_stride = retention_stride,
                 .scale = pool.Field(0),
                 .w = w.as<void>()},
                /*first_sequence=*/0);
  cuda_test::Check(cudaDeviceSynchronize());
  const Floats packed = Packed(c, in.k, rows);
  Floats expected(static_cast<size_t>(rows * c.w_width()));
  Step step = device.step;
  step.row_start = plan.row_start.data();
  step.slots = plan.slots.data();
  OsdnScaleCpu(step, {.heads = c.heads,
                      .value_heads = c.value_heads,
                      .key_dim = c.key_dim,
                      .options = c.options,
                      .k = packed.data(),
                      .beta = in.beta.data(),
                      .retention = c.retention == Case::kNone ? nullptr : in.retention.data(),
                      .retention_stride = retention_stride,
                      .scale = {.base = reinterpret_cast<std::byte*>(host->data()),
                                .stride = c.w_width() * static_cast<int64_t>(sizeof(float))},
                      .w = expected.data()});
  // One product and one rounding beside d, which two orders of summation move by some 1e-6.
  const double tolerance = c.type == DType::kBF16 ? 0x1p-8 : 1e-5;
  const Floats got = cuda_test::ReadAs(c.type, w);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * std::max(1.0f, std::abs(expected[i]))) << i;
  }
}

TEST(OsdnScaleCuda, IsTheTwinOfTheCpuVersion) {
  EDDY_SKIP_WITHOUT_GPU();
  constexpr int kSequences = 4;
  Random random(cuda_test::TestSeed());
  for (int i : testing::Trials(60)) {
    const Case c = RandomCase(random);
    SCOPED_TRACE(std::to_string(c.heads) + " heads, " + std::to_string(c.value_heads) + " value, " +
                 std::to_string(c.key_dim) + (c.type == DType::kF32 ? " float" : " bfloat16"));
    cuda_test::Pool pool(kSequences + 1, {c.w_width()}, /*align=*/64, /*gap=*/64);
    Floats host(static_cast<size_t>((kSequences + 1) * c.w_width()), cuda_test::kNan);
    for (int slot = 1; slot <= kSequences; ++slot) {
      Floats d = cuda_test::Uniform(random, c.w_width(), 0.8f, 1.2f);
      if (Pick(random, 0, 3) == 0) d[Pick(random, 0, c.w_width() - 1)] = -0.5f;
      std::copy(d.begin(), d.end(), pool.At(slot, 0).begin());
      std::copy(d.begin(), d.end(), host.begin() + slot * c.w_width());
    }
    pool.Write();
    for (const cuda_test::Plan& plan :
         cuda_test::RandomPlans(random, std::vector<int>(kSequences, 150))) {
      RunStep(c, plan, RandomInputs(random, c, plan.rows()), pool, &host);
      if (::testing::Test::HasFatalFailure()) return;
    }
    pool.Read();
    for (int slot = 1; slot <= kSequences; ++slot) {
      const auto d = pool.At(slot, 0);
      for (size_t e = 0; e < d.size(); ++e) {
        ASSERT_NEAR(d[e], host[slot * d.size() + e], 1e-5) << "slot " << slot;
      }
    }
    EXPECT_TRUE(pool.OthersAreUntouched(kSequences));
  }
}

}  // namespace
}  // namespace eddy
