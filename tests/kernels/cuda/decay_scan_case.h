// A random decay scan, its results in float64, and its runs on the GPU.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/rules/decay_scan/decay_scan_cuda.h"
#include "tests/kernels/cuda/cuda_test.h"

namespace eddy::cuda_test {

struct DecayCase {
  DecayScanShape shape = {};
  bool channel_decay = false, ones = false, writes = false;
  float query_scale = 1;
  int64_t query_stride = 0, key_stride = 0, value_stride = 0;
  std::vector<int> rows = {};
  // Per sequence, as in DecayScanCudaArgs, packed.
  std::vector<Floats> q = {}, k = {}, v = {}, write = {}, decay = {};

  int64_t queries() const { return shape.query_heads * shape.key_dim; }
  int64_t keys() const { return shape.key_heads * shape.key_dim; }
  int64_t values() const { return shape.states * shape.value_dim; }
  int64_t decays() const { return shape.states * (channel_decay ? shape.key_dim : 1); }
  int64_t outputs() const { return values() * shape.reads; }
  int64_t state_size() const { return values() * shape.key_dim; }
  std::string Name() const {
    return "states " + std::to_string(shape.states) + " reads " + std::to_string(shape.reads) +
           " K " + std::to_string(shape.key_dim) + " V " + std::to_string(shape.value_dim) +
           (channel_decay ? " vector decay" : " scalar decay");
  }
};

// Rows for the shape that the case has.
inline void Refill(DecayCase& c, Random& random) {
  c.rows.clear();
  c.q.clear(), c.k.clear(), c.v.clear(), c.write.clear(), c.decay.clear();
  const auto gap = [&] {
    return Pick(random, 0, 1) == 0 ? 4 * Pick(random, 0, 2) : Pick(random, 0, 5);
  };
  c.query_stride = c.queries() + gap();
  c.key_stride = c.keys() + gap();
  c.value_stride = c.values() + gap();
  const bool large = c.shape.key_dim * c.shape.value_dim > 4000;
  for (int64_t i = Pick(random, 1, large ? 2 : 7); i > 0; --i) {
    const int rows =
        static_cast<int>(Pick(random, 0, 2) == 0 ? 1 : Pick(random, 1, large ? 60 : 200));
    c.rows.push_back(rows);
    c.q.push_back(Uniform(random, rows * c.queries(), -1, 1));
    c.k.push_back(Uniform(random, rows * c.keys(), -1, 1));
    c.v.push_back(Uniform(random, rows * c.values(), -1, 1));
    c.write.push_back(Uniform(random, rows * c.shape.states, 0, 2));
    c.decay.push_back(Uniform(random, rows * c.decays(), 0.3f, 1));
  }
}

inline DecayCase RandomDecayCase(Random& random) {
  DecayCase c;
  DecayScanShape& s = c.shape;
  s.states = Pick(random, 1, 4);
  s.key_heads = s.states % 2 == 0 && Pick(random, 0, 1) == 0 ? s.states / 2 : s.states;
  s.reads = Pick(random, 0, 1) == 0 ? 1 : Pick(random, 2, 9);
  s.query_heads = s.reads > 1 ? s.states * s.reads : s.key_heads;
  const int64_t sizes[] = {16, 64, 128, 256, 1, Pick(random, 1, 40), Pick(random, 41, 300)};
  s.key_dim = sizes[Pick(random, 0, 6)];
  s.value_dim = sizes[Pick(random, 0, 6)];
  if (Pick(random, 0, 9) == 0) s.key_dim = Pick(random, 300, 1024), s.value_dim = 20;
  if (s.key_dim * s.value_dim > 8000) s.states = s.key_heads = 1, s.query_heads = s.reads;
  c.channel_decay = Pick(random, 0, 1) == 0;
  c.ones = Pick(random, 0, 4) == 0;
  c.writes = Pick(random, 0, 1) == 0;
  c.query_scale = Pick(random, 0, 1) == 0 ? 1.0f : 0.3f;
  Refill(c, random);
  return c;
}

// The sizes are those that outputs and states would have if nothing cancelled: what the rounding of
// operands is relative to.
struct Truth {
  std::vector<double> out, state;
  double out_size = 0, state_size = 0;
  // Of each output, the squares of its terms: rounding them is random, so what it leaves is
  // relative to the root of their sum, which a few outputs may be far below by chance.
  std::vector<double> out_squares = out;
};
inline Truth Exact(const DecayCase& c, size_t i) {
  const auto& [states, key_heads, query_heads, reads, key_dim, value_dim] = c.shape;
  Truth truth{.out = std::vector<double>(c.rows[i] * c.outputs()),
              .state = std::vector<double>(c.state_size())};
  std::vector<double> out_terms = truth.out, state_terms = truth.state;
  for (int64_t t = 0; t < c.rows[i]; ++t) {
    for (int64_t j = 0; j < states; ++j) {
      const float* k = c.k[i].data() + t * c.keys() + j / (states / key_heads) * key_dim;
      const double write = c.writes ? c.write[i][t * states + j] : 1;
      double* s = truth.state.data() + j * key_dim * value_dim;
      double* terms = state_terms.data() + j * key_dim * value_dim;
      for (int64_t n = 0; n < key_dim; ++n) {
        const float* decay = c.decay[i].data() + t * c.decays();
        const double a = c.channel_decay ? decay[j * key_dim + n] : decay[j];
        for (int64_t e = 0; e < value_dim; ++e) {
          const double v = c.ones ? 1 : c.v[i][(t * states + j) * value_dim + e];
          s[n * value_dim + e] = a * s[n * value_dim + e] + k[n] * write * v;
          terms[n * value_dim + e] = a * terms[n * value_dim + e] + std::abs(k[n] * write * v);
        }
      }
      for (int64_t r = 0; r < reads; ++r) {
        const int64_t output = j * reads + r;
        const float* q =
            c.q[i].data() + t * c.queries() + output / (states * reads / query_heads) * key_dim;
        const int64_t at = t * c.outputs() + output * value_dim;
        for (int64_t n = 0; n < key_dim; ++n) {
          for (int64_t e = 0; e < value_dim; ++e) {
            const double scaled = static_cast<double>(c.query_scale) * q[n];
            const double term = scaled * s[n * value_dim + e];
            truth.out[at + e] += term;
            truth.out_squares[at + e] += term * term;
            out_terms[at + e] += std::abs(scaled) * terms[n * value_dim + e];
          }
        }
      }
    }
  }
  const auto size = [](const std::vector<double>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  };
  truth.out_size = size(out_terms);
  truth.state_size = size(state_terms);
  return truth;
}

inline constexpr int64_t kGuard = 4096;

// From zero states. Prompts go in chunks if `chunks`.
inline std::vector<Floats> RunPlans(const DecayCase& c, const std::vector<Plan>& plans, Pool& pool,
                                    bool chunks = false) {
  for (int64_t slot = 1; slot <= std::ssize(c.rows); ++slot) {
    std::ranges::fill(pool.At(slot, 0), 0.0f);
  }
  pool.Write();
  std::vector<Floats> out;
  for (int rows : c.rows) out.emplace_back(rows * c.outputs(), kNan);
  for (const Plan& plan : plans) {
    const DeviceStep device(plan);
    const DeviceBytes q = Upload(Gather(plan, c.q, c.queries(), c.query_stride));
    const DeviceBytes k = Upload(Gather(plan, c.k, c.keys(), c.key_stride));
    const DeviceBytes v = Upload(Gather(plan, c.v, c.values(), c.value_stride));
    const DeviceBytes write = Upload(Gather(plan, c.write, c.shape.states, c.shape.states));
    const DeviceBytes decay = Upload(Gather(plan, c.decay, c.decays(), c.decays()));
    const DeviceBytes y(plan.rows() * c.outputs() * 4);
    const int64_t scratch_bytes =
        chunks ? plan.rows() * DecayChunkScratchBytesPerRow(c.shape, c.channel_decay) : 0;
    const DeviceBytes scratch(scratch_bytes + kGuard);
    DecayScanCuda(device.step, {.shape = c.shape,
                                .q = q.as(),
                                .k = k.as(),
                                .v = c.ones ? nullptr : v.as(),
                                .query_stride = c.query_stride,
                                .key_stride = c.key_stride,
                                .value_stride = c.value_stride,
                                .query_scale = c.query_scale,
                                .write = c.writes ? write.as() : nullptr,
                                .decay = decay.as(),
                                .channel_decay = c.channel_decay,
                                .state = pool.Field(0),
                                .out = y.as(),
                                .scratch = chunks ? scratch.as<void>() : nullptr});
    Check(cudaDeviceSynchronize());
    const std::vector<uint8_t> after = scratch.Read<uint8_t>();
    EXPECT_EQ(std::count(after.begin() + scratch_bytes, after.end(), 0xff), kGuard)
        << "wrote behind its scratch";
    Scatter(plan, y.Read(), c.outputs(), c.outputs(), out);
  }
  pool.Read();
  return out;
}

inline Pool MakePool(const DecayCase& c, Random& random) {
  return Pool(std::ssize(c.rows) + 1, {c.state_size()}, Pick(random, 0, 2) == 0 ? 1 : 4,
              Pick(random, 0, 1) * 4);
}

}  // namespace eddy::cuda_test
