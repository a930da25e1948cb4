// What the CPU kernels cost, in microseconds per call. Arguments are rows, then sizes. `streams`
// figures walk through as many weights or states as a step of the bundled model touches, so that
// caches hold no more of them than they would there.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/device.h"
#include "kernels/ends/sampler/sampler_cpu.h"
#include "kernels/layer_types.h"
#include "kernels/rules/attention/attention.h"
#include "kernels/rules/delta_rule/delta_rule.h"
#include "kernels/rules/osdn_scale/osdn_scale.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

// Aligned as the engine's tensors are.
class Floats {
 public:
  explicit Floats(int64_t n, float scale = 0)
      : size_(n), buffer_(OpenCpuDevice({.threads = 1})->Allocate(n * 4)) {
    static std::mt19937 random(1);
    std::normal_distribution<float> normal(0, std::max(scale, 1e-9f));
    for (int64_t i = 0; i < n; ++i) data()[i] = normal(random);
  }
  float* data() const { return static_cast<float*>(buffer_.data()); }
  float* begin() const { return data(); }
  float* end() const { return data() + size_; }

 private:
  int64_t size_;
  Buffer buffer_;
};

Floats RandomFloats(int64_t n, float scale) { return Floats(n, scale); }

// One of {own product, BLAS} on weights [out, in] that are read from memory, not from a cache.
void BenchProduct(benchmark::State& state, bool own) {
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const int64_t copies = std::max<int64_t>(1, (8 << 20) / (in * out));
  const Floats w = RandomFloats(in * out * copies, 0.02f);
  const Floats x = RandomFloats(rows * in, 1);
  Floats y(rows * out);
  SetGemmThreads(1);
  int64_t copy = 0;
  for (auto _ : state) {
    const float* weights = w.data() + (copy++ % copies) * in * out;
    if (own) {
      simd::Product(
          {.rows = rows, .in = in, .out = out, .x = x.data(), .w = weights, .y = y.data()});
    } else {
      Gemm({.m = rows,
            .n = out,
            .k = in,
            .a = {.data = x.data(), .stride = in},
            .b = {.data = weights, .stride = in, .transposed = true},
            .c = {.data = y.data(), .stride = out}});
    }
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(rows * in * out),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
void Products(benchmark::internal::Benchmark* bench) {
  for (int64_t rows : {1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512}) {
    bench->Args({rows, 256, 256})->Args({rows, 256, 704})->Args({rows, 704, 256});
  }
  for (int64_t rows : {1, 4, 32, 256}) bench->Args({rows, 256, 8192});
}
BENCHMARK_CAPTURE(BenchProduct, own, true)->Apply(Products);
BENCHMARK_CAPTURE(BenchProduct, blas, false)->Apply(Products);

// One sequence of `rows` tokens through the rule in one of its forms; 4 heads, scalar decay.
void BenchRule(benchmark::State& state, bool chunks) {
  const int64_t rows = state.range(0), dim = state.range(1), heads = 4;
  const DeltaRuleShape shape{
      .heads = heads, .value_heads = heads, .key_dim = dim, .value_dim = dim};
  const Floats q = RandomFloats(rows * heads * dim, 0.1f);
  const Floats k = RandomFloats(rows * heads * dim, 0.1f);
  const Floats v = RandomFloats(rows * heads * dim, 1);
  const std::vector<float> beta(static_cast<size_t>(rows * heads), 0.5f);
  const std::vector<float> decay(static_cast<size_t>(rows * heads), 0.9f);
  const std::vector<float> log_decay(static_cast<size_t>(rows * heads), -0.105f);
  Floats memory(heads * dim * dim);
  Floats out(rows * heads * dim);
  Floats scratch(DeltaRuleScratchFloats(shape));
  SetGemmThreads(1);
  const DeltaRuleArgs args{.shape = shape,
                           .q = q.data(),
                           .k = k.data(),
                           .v = v.data(),
                           .beta = beta.data(),
                           .decay = decay.data(),
                           .log_decay = log_decay.data(),
                           .out = out.data(),
                           .scratch = scratch.data()};
  for (auto _ : state) {
    (chunks ? DeltaRuleChunks : DeltaRuleSteps)(args, 0, rows, memory.data());
    benchmark::ClobberMemory();
  }
}
void Rules(benchmark::internal::Benchmark* bench) {
  for (int64_t dim : {64, 128, 256}) {
    for (int64_t rows : {1, 16, 64, 256}) bench->Args({rows, dim});
  }
}
BENCHMARK_CAPTURE(BenchRule, step, false)->Apply(Rules);
BENCHMARK_CAPTURE(BenchRule, chunk, true)->Apply(Rules);

// The first phase of OSDN, to be compared with the rule behind it.
void BenchScale(benchmark::State& state) {
  const int64_t rows = state.range(0), dim = state.range(1), heads = 4;
  const Floats k = RandomFloats(rows * heads * dim, 0.1f);
  const std::vector<float> beta(static_cast<size_t>(rows * heads), 0.5f);
  Floats scale(2 * heads * dim);
  Floats w(rows * heads * dim);
  const int32_t starts[] = {0, static_cast<int32_t>(rows)}, slots[] = {1};
  const Step step = {
      .rows = static_cast<int>(rows), .sequences = 1, .row_start = starts, .slots = slots};
  const OsdnScaleArgs args{.heads = heads,
                           .value_heads = heads,
                           .key_dim = dim,
                           .options = {.clips = true, .clip_min = 0, .clip_max = 1e9f},
                           .k = k.data(),
                           .beta = beta.data(),
                           .scale = {.base = reinterpret_cast<std::byte*>(scale.data()),
                                     .stride = heads * dim * static_cast<int64_t>(sizeof(float))},
                           .w = w.data()};
  for (auto _ : state) {
    OsdnScaleCpu(step, args);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BenchScale)->Apply(Rules);

LayerSpec KaczmarzSpec() {
  return {
      .type = "delta",
      .d_model = 256,
      .norm_eps = 1e-6,
      .params = {{"heads", int64_t{4}},      {"value_heads", int64_t{4}}, {"key_dim", int64_t{64}},
                 {"value_dim", int64_t{64}}, {"decay", "head"},           {"decay_rank", {}},
                 {"decay_bound", {}},        {"query_norm", "l2"},        {"key_norm", "none"},
                 {"qk_activation", "silu"},  {"conv_width", int64_t{4}},  {"step", "kaczmarz"},
                 {"step_max", int64_t{1}},   {"step_bias", true},         {"step_eps", 1e-6},
                 {"gate", "silu"},           {"gate_rank", int64_t{0}},   {"initial_state", "zero"},
                 {"scale.gradient", {}},     {"scale.eta", {}},           {"scale.normalise", {}},
                 {"scale.clip_min", {}},     {"scale.clip_max", {}},      {"scale.retention", {}},
                 {"scale.gamma", {}}}};
}

// Seven blocks of one type with their own weights and states, as in the bundled model.
void BenchBlocks(benchmark::State& state, const LayerSpec& spec, bool one_sequence) {
  constexpr int kBlocks = 7;
  const auto rows = static_cast<int>(state.range(0));
  const int sequences = one_sequence ? 1 : rows;
  const std::unique_ptr<Device> device = OpenCpuDevice({.threads = 1});
  const LayerType& type = *FindLayerType(spec.type);
  const LayerNeeds needs = type.needs(spec, device->traits());
  const std::vector<LayerNeeds> all(kBlocks, needs);
  const StateLayout layout(all);
  const int64_t stride = layout.record_bytes();
  const Floats pool(stride * (sequences + 1) / 4);
  const Floats scratch((needs.scratch_bytes + rows * needs.scratch_bytes_per_row) / 4);
  std::vector<Floats> storage;
  std::vector<std::unique_ptr<Layer>> layers;
  for (size_t b = 0; b < kBlocks; ++b) {
    std::vector<TensorView> weights;
    for (const Field& field : needs.weights) {
      storage.push_back(RandomFloats(FieldBytes(field) / 4, 0.05f));
      weights.push_back({.data = storage.back().data(), .shape = field.shape});
    }
    std::vector<FieldView> fields;
    for (size_t f = 0; f < needs.state.size(); ++f) {
      fields.push_back({.base = reinterpret_cast<std::byte*>(pool.data()) + layout.offset(b, f),
                        .stride = stride,
                        .shape = needs.state[f].shape});
    }
    layers.push_back(
        device->Make(type, spec, {.weights = weights, .state = fields, .scratch = scratch.data()}));
  }
  std::vector<int32_t> starts, slots, positions(static_cast<size_t>(sequences));
  for (int i = 0; i <= sequences; ++i) starts.push_back(one_sequence ? i * rows : i);
  for (int i = 0; i < sequences; ++i) slots.push_back(i + 1);
  const Step step{.rows = rows,
                  .sequences = sequences,
                  .single_row_sequences = rows == sequences ? sequences : 0,
                  .max_rows_per_sequence = rows / sequences,
                  .row_start = starts.data(),
                  .slots = slots.data(),
                  .positions = positions.data()};
  Floats x = RandomFloats(rows * spec.d_model, 1);
  const Floats start = RandomFloats(rows * spec.d_model, 1);
  for (auto _ : state) {
    std::copy(start.begin(), start.end(), x.begin());
    for (const auto& layer : layers) {
      layer->Forward(step, {.data = x.data(), .shape = {rows, spec.d_model, 1, 1}});
    }
  }
  state.counters["us/block"] = benchmark::Counter(
      1e-6 * kBlocks, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
void Mlp(benchmark::State& state) {
  BenchBlocks(
      state,
      {.type = "swiglu", .d_model = 256, .norm_eps = 1e-6, .params = {{"size", int64_t{704}}}},
      false);
}
void DeltaStreams(benchmark::State& state) { BenchBlocks(state, KaczmarzSpec(), false); }
void DeltaPrompt(benchmark::State& state) { BenchBlocks(state, KaczmarzSpec(), true); }
BENCHMARK(Mlp)->Arg(1)->Arg(8)->Arg(32)->Arg(64)->Arg(256)->Arg(512);
BENCHMARK(DeltaStreams)->Arg(1)->Arg(8)->Arg(32)->Arg(64);
BENCHMARK(DeltaPrompt)->Arg(8)->Arg(64)->Arg(256)->Arg(512);

// The attention rule for the rows of one sequence that has so many positions before them: 8 heads
// of 64, pages of 64 positions.
void BenchAttention(benchmark::State& state, int64_t kv_heads) {
  const int64_t rows = state.range(0), past = state.range(1), rows_per_page = 64;
  const AttentionShape shape = {.heads = 8, .kv_heads = kv_heads, .head_dim = 64};
  const int64_t row_floats = kv_heads * shape.head_dim, page_floats = rows_per_page * row_floats;
  const auto pages = static_cast<int>((past + rows) / rows_per_page + 1);
  const Floats keys = RandomFloats(page_floats * (pages + 1), 1);
  const Floats values = RandomFloats(page_floats * (pages + 1), 1);
  const int64_t q_floats = rows * shape.heads * shape.head_dim;
  Floats q = RandomFloats(q_floats, 1), out(q_floats);
  Floats k = RandomFloats(rows * row_floats, 1), v = RandomFloats(rows * row_floats, 1);
  const Floats scratch(AttentionScratchFloats(shape));
  const std::vector<double> frequencies = RopeFrequencies(10000, shape.head_dim);
  std::vector<int32_t> ids;
  for (int32_t page = 1; page <= pages; ++page) ids.push_back(page);
  const int32_t starts[] = {0, static_cast<int32_t>(rows)}, slot = 1;
  const auto position = static_cast<int32_t>(past);
  const auto view = [&](const Floats& pool) {
    return FieldView{.base = reinterpret_cast<std::byte*>(pool.data()),
                     .stride = page_floats * 4,
                     .shape = {rows_per_page, kv_heads, shape.head_dim, 1}};
  };
  for (auto _ : state) {
    AttentionCpu({.rows = static_cast<int>(rows),
                  .sequences = 1,
                  .row_start = starts,
                  .slots = &slot,
                  .positions = &position,
                  .pages = ids.data(),
                  .max_pages = pages},
                 {.shape = shape,
                  .frequencies = frequencies.data(),
                  .q = q.data(),
                  .k = k.data(),
                  .v = v.data(),
                  .keys = view(keys),
                  .values = view(values),
                  .out = out.data(),
                  .scratch = scratch.data()});
    // It turned and scaled them in place, which must not go on for ever.
    std::fill(q.begin(), q.end(), 0.5f);
    std::fill(k.begin(), k.end(), 0.5f);
  }
}
void Attentions(benchmark::internal::Benchmark* bench) {
  for (int64_t rows : {1, 16, 256}) {
    for (int64_t past : {0, 512, 2048}) bench->Args({rows, past});
  }
}
BENCHMARK_CAPTURE(BenchAttention, a_key_for_each, 8)->Apply(Attentions);
BENCHMARK_CAPTURE(BenchAttention, four_to_a_key, 2)->Apply(Attentions);

// One row of logits through the sampler.
void BenchSampler(benchmark::State& state, const SamplingParams& params) {
  const int64_t vocab = state.range(0);
  const Floats logits = RandomFloats(vocab, 3);
  SamplerCpu sampler(vocab);
  SampleResult result;
  int64_t position = 0;
  for (auto _ : state) {
    sampler.Sample({logits.data(), static_cast<size_t>(vocab)},
                   {.params = &params, .position = position++}, result);
    benchmark::DoNotOptimize(result.token);
  }
}
void Greedy(benchmark::State& state) { BenchSampler(state, {.temperature = 0}); }
void Temperature(benchmark::State& state) { BenchSampler(state, {.temperature = 0.8f}); }
void TopK(benchmark::State& state) { BenchSampler(state, {.temperature = 0.8f, .top_k = 50}); }
void TopP(benchmark::State& state) { BenchSampler(state, {.temperature = 0.8f, .top_p = 0.9f}); }
BENCHMARK(Greedy)->Arg(8192)->Arg(32768);
BENCHMARK(Temperature)->Arg(8192)->Arg(32768);
BENCHMARK(TopK)->Arg(8192)->Arg(32768);
BENCHMARK(TopP)->Arg(8192)->Arg(32768);

}  // namespace
}  // namespace eddy

BENCHMARK_MAIN();
