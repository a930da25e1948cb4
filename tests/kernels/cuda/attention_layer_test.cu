// Proves layer "attention" on the GPU against its CPU twin, over random options, in float and in
// bfloat16, with weights side by side and apart: sequences of different lengths in steps of random
// sizes and company, scratch full of NaN and no larger than was asked for.
//
// Tolerances, relative L2 of what the layer adds to x: float is off by its rounding; in bfloat16
// the norm, the query, the key, the value, the weights of the softmax and its output are each
// rounded to 2^-8, and the products add them up.
#include <cstdio>

#include "kernels/cuda/gemm.h"
#include "kernels/layers/attention/attention.h"
#include "kernels/layers/attention/attention_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/testing/trials.h"

namespace eddy::cuda_test {
namespace {

constexpr int64_t kGuard = 1 << 16;  // bytes behind the scratch

struct Case {
  LayerSpec spec;
  DType type = DType::kF32;
  bool joined = false;  // weights of q, k and v
  std::vector<int> rows;
  int64_t rows_per_page = 0, max_pages = 0;
};

Case RandomCase(Random& random) {
  Case c;
  const int64_t kv_heads = Pick(random, 1, 3);
  c.type = Pick(random, 0, 1) == 0 ? DType::kF32 : DType::kBF16;
  c.joined = Pick(random, 0, 1) == 0;
  c.spec = {.type = "attention",
            .d_model = 8 * Pick(random, 1, 40),
            .norm_eps = 1e-5,
            .params = {{"heads", kv_heads * Pick(random, 1, 4)},
                       {"head_dim", Pick(random, 0, 1) == 0 ? 64 : 8 * Pick(random, 1, 12)},
                       {"kv_heads", kv_heads},
                       {"rope_theta", 10000.0},
                       {"window", LayerSpec::Value()},
                       {"bias", Pick(random, 0, 1) == 0}}};
  if (Pick(random, 0, 1) == 0) c.spec.params[4].second = Pick(random, 1, 60);
  for (int64_t n = Pick(random, 1, 4); n > 0; --n) {
    c.rows.push_back(static_cast<int>(Pick(random, 1, 160)));
  }
  c.rows_per_page = Pick(random, 1, 33);
  c.max_pages = (160 + c.rows_per_page - 1) / c.rows_per_page;
  return c;
}

// The weights as the CPU has them, rounded to what the GPU has.
std::vector<Floats> RandomWeights(const Case& c, Random& random) {
  std::vector<Floats> weights;
  for (const Field& field : AttentionNeeds(c.spec, {}).weights) {
    const int64_t size = field.shape[0] * field.shape[1];
    const bool matrix = field.shape[1] > 1;
    const float most = matrix ? 2.0f / std::sqrt(static_cast<float>(field.shape[1])) : 1.0f;
    weights.push_back(Uniform(random, size, -most, most));
    for (float& w : weights.back()) w = matrix ? RoundTo(c.type, w) : w;
  }
  return weights;
}

// The twin and its pages on one side, or the layer and its pages on the other.
std::vector<Floats> RunCpu(const Case& c, std::vector<Floats>& weights,
                           const std::vector<Plan>& plans, const std::vector<Floats>& x) {
  const LayerNeeds needs = AttentionNeeds(c.spec, {});
  std::vector<TensorView> views;
  for (Floats& w : weights) views.push_back({.data = w.data()});
  const int64_t floats = c.rows_per_page * needs.kv[0].shape[0] * needs.kv[0].shape[1];
  Floats pool((c.rows.size() * c.max_pages + 1) * 2 * floats, kNan);
  std::vector<FieldView> kv;
  for (int64_t field : {0, 1}) {
    kv.push_back({.base = reinterpret_cast<std::byte*>(pool.data() + field * floats),
                  .stride = 2 * floats * 4,
                  .shape = {c.rows_per_page, needs.kv[0].shape[0], needs.kv[0].shape[1], 1}});
  }
  std::vector<Floats> out;
  for (const Floats& of_sequence : x) out.emplace_back(of_sequence.size());
  for (const Plan& plan : plans) {
    Floats scratch((needs.scratch_bytes + plan.rows() * needs.scratch_bytes_per_row) / 4);
    const std::unique_ptr<Layer> layer =
        AttentionType().make_cpu(c.spec, {.weights = views, .kv = kv, .scratch = scratch.data()});
    std::vector<int32_t> positions, pages;
    for (int i = 0; i < std::ssize(plan.slots); ++i) {
      positions.push_back(plan.sequence[i] < 0 ? 0 : plan.first_row[i]);
      for (int64_t p = 0; p < c.max_pages; ++p) {
        pages.push_back(plan.sequence[i] < 0
                            ? kNoPage
                            : static_cast<int32_t>(plan.sequence[i] * c.max_pages + p + 1));
      }
    }
    Floats rows = Gather(plan, x, c.spec.d_model, c.spec.d_model);
    for (float& value : rows) value = std::isnan(value) ? 0.0f : value;  // padding
    layer->Forward({.rows = plan.rows(),
                    .sequences = static_cast<int>(plan.slots.size()),
                    .single_row_sequences = plan.single,
                    .max_rows_per_sequence = plan.max_rows,
                    .row_start = plan.row_start.data(),
                    .slots = plan.slots.data(),
                    .positions = positions.data(),
                    .pages = pages.data(),
                    .max_pages = static_cast<int>(c.max_pages)},
                   {.data = rows.data()});
    Scatter(plan, rows, c.spec.d_model, c.spec.d_model, out);
  }
  return out;
}

// Weights on the GPU: those of q, k and v in one piece, or all apart.
struct DeviceWeights {
  DeviceWeights(const Case& c, const std::vector<Floats>& weights) {
    const LayerNeeds needs = AttentionNeeds(c.spec, {.matrices = c.type, .kv = c.type});
    Floats joined;
    for (size_t i = 0; i < weights.size(); ++i) {
      const bool part = c.joined && i >= 1 && i <= 3;
      if (part) joined.insert(joined.end(), weights[i].begin(), weights[i].end());
      if (!part) memory.push_back(UploadAs(needs.weights[i].dtype, weights[i]));
      views.push_back(
          {.data = part ? nullptr : memory.back().as<void>(), .dtype = needs.weights[i].dtype});
    }
    if (!c.joined) return;
    memory.push_back(UploadAs(c.type, joined));
    auto* at = memory.back().as<std::byte>();
    for (size_t i = 1; i <= 3; ++i) {
      views[i].data = at;
      at += std::ssize(weights[i]) * SizeOf(c.type);
    }
  }
  std::vector<DeviceBytes> memory;
  std::vector<TensorView> views;
};

std::vector<Floats> RunCuda(const Case& c, const std::vector<Floats>& weights,
                            const std::vector<Plan>& plans, const std::vector<Floats>& x) {
  const DeviceWeights device_weights(c, weights);
  const LayerNeeds needs = AttentionNeeds(c.spec, {.matrices = c.type, .kv = c.type});
  const auto& [kv_heads, d, one, same] = needs.kv[0].shape;
  const int64_t field = (c.rows_per_page * kv_heads * d * SizeOf(c.type) + 255) / 256 * 256;
  const DeviceBytes pool((c.rows.size() * c.max_pages + 1) * 2 * field);
  std::vector<FieldView> kv;
  for (int64_t i : {0, 1}) {
    kv.push_back({.base = pool.as<std::byte>() + i * field,
                  .stride = 2 * field,
                  .dtype = c.type,
                  .shape = {c.rows_per_page, kv_heads, d, 1}});
  }
  const CudaGemmPtr gemm = MakeCudaGemm(/*stream=*/nullptr);
  std::vector<DeviceBytes> kept;
  const CudaContext context = {
      .gemm = gemm.get(), .matrices = c.type, .multiprocessors = 132, .keep = [&](int64_t bytes) {
        return kept.emplace_back(static_cast<size_t>(bytes)).as<void>();
      }};
  std::vector<Floats> out;
  for (const Floats& of_sequence : x) out.emplace_back(of_sequence.size());
  const CudaScratch wanted = AttentionCudaType().scratch(c.spec, c.type);
  for (const Plan& plan : plans) {
    const int64_t scratch_bytes = wanted.bytes + plan.rows() * wanted.bytes_per_row;
    const DeviceBytes scratch(static_cast<size_t>(scratch_bytes + kGuard));
    const std::unique_ptr<Layer> layer = AttentionCudaType().make(
        c.spec, {.weights = device_weights.views, .kv = kv, .scratch = scratch.as<void>()},
        context);
    std::vector<int32_t> positions, pages;
    for (int i = 0; i < std::ssize(plan.slots); ++i) {
      positions.push_back(plan.sequence[i] < 0 ? 0 : plan.first_row[i]);
      for (int64_t p = 0; p < c.max_pages; ++p) {
        pages.push_back(plan.sequence[i] < 0
                            ? kNoPage
                            : static_cast<int32_t>(plan.sequence[i] * c.max_pages + p + 1));
      }
    }
    const DeviceBytes device_positions = Upload(positions), device_pages = Upload(pages);
    Floats rows = Gather(plan, x, c.spec.d_model, c.spec.d_model);
    for (float& value : rows) value = std::isnan(value) ? 0.0f : value;  // padding
    const DeviceBytes device_rows = Upload(rows);
    DeviceStep device_step(plan);
    device_step.step.positions = device_positions.as<int32_t>();
    device_step.step.pages = device_pages.as<int32_t>();
    device_step.step.max_pages = static_cast<int>(c.max_pages);
    layer->Forward(device_step.step, {.data = device_rows.as<void>()});
    Check(cudaGetLastError());
    Check(cudaDeviceSynchronize());
    Scatter(plan, device_rows.Read(), c.spec.d_model, c.spec.d_model, out);
    const std::vector<uint8_t> all = scratch.Read<uint8_t>();
    EXPECT_TRUE(std::all_of(all.begin() + scratch_bytes, all.end(), [](uint8_t byte) {
      return byte == 0xff;
    })) << "written behind the scratch";
  }
  return out;
}

TEST(AttentionLayerCuda, EqualsItsCpuTwin) {
  EDDY_SKIP_WITHOUT_GPU();
  Random random(TestSeed());
  double worst[2] = {};
  for (int trial : testing::Trials(40)) {
    const Case c = RandomCase(random);
    std::vector<Floats> weights = RandomWeights(c, random), x;
    for (int rows : c.rows) x.push_back(Uniform(random, rows * c.spec.d_model, -1.0f, 1.0f));
    const std::vector<Plan> plans = RandomPlans(random, c.rows);
    const std::vector<Floats> twin = RunCpu(c, weights, plans, x);
    const std::vector<Floats> got = RunCuda(c, weights, plans, x);
    for (size_t s = 0; s < x.size(); ++s) {
      Floats added(x[s].size());
      std::vector<double> wanted(x[s].size());
      for (size_t i = 0; i < added.size(); ++i) {
        added[i] = got[s][i] - x[s][i];
        wanted[i] = static_cast<double>(twin[s][i]) - x[s][i];
      }
      const double distance = Distance(added, wanted);
      EXPECT_LT(distance, c.type == DType::kF32 ? 1e-5 : 1.5e-2)
          << "trial " << trial << " head_dim " << c.spec.Int("head_dim") << " heads "
          << c.spec.Int("heads") << " d_model " << c.spec.d_model;
      double& most = worst[c.type == DType::kF32 ? 0 : 1];
      most = std::max(most, distance);
    }
  }
  std::printf("worst relative distance: float %.1e, bfloat16 %.1e\n", worst[0], worst[1]);
}

}  // namespace
}  // namespace eddy::cuda_test
