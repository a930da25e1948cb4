// Runs a layer on the GPU and its CPU twin side by side, with the same weights, through the same
// random steps, and compares what they add to the rows, what they leave in the records and what
// they tell. In bfloat16 the twin's matrices hold the rounded weights, so that only the rounding of
// what goes into the products is left between the two.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/cuda_layer.h"
#include "kernels/cuda/gemm.h"
#include "kernels/layer.h"
#include "tests/kernels/cuda/cuda_test.h"
#include "tests/testing/trials.h"

namespace eddy::cuda_test {

using Params = std::vector<std::pair<std::string, LayerSpec::Value>>;
using WeightsByName = std::map<std::string, Floats>;

struct LayerTwinCase {
  std::string name;
  LayerSpec spec = {};
  const LayerType* cpu = nullptr;
  const CudaLayerType* cuda = nullptr;
  // Moves random weights to where the options make sense; null: they do as they are.
  std::function<void(const LayerSpec& spec, WeightsByName& weights)> prepare = nullptr;
};

// `spec` with some of its parameters changed.
inline LayerSpec Changed(LayerSpec spec, const Params& changes) {
  for (const auto& [name, value] : changes) {
    bool found = false;
    for (auto& param : spec.params) {
      if (param.first == name) param.second = value, found = true;
    }
    EXPECT_TRUE(found) << name;
  }
  return spec;
}

inline int64_t Elements(const Field& field) {
  return field.shape[0] * field.shape[1] * field.shape[2] * field.shape[3];
}

inline WeightsByName RandomWeights(const LayerNeeds& needs, Random& random) {
  WeightsByName weights;
  for (const Field& field : needs.weights) {
    const bool norm = field.name.ends_with("norm.weight"), matrix = field.shape[1] > 1;
    const auto fan_in = static_cast<float>(matrix ? field.shape[1] : 4);
    std::normal_distribution<float> normal(norm ? 1.0f : 0.0f,
                                           norm ? 0.1f : 1.0f / std::sqrt(fan_in));
    Floats& values = weights[field.name];
    values.resize(static_cast<size_t>(Elements(field)));
    for (float& value : values) value = normal(random);
  }
  return weights;
}

class LayerTwin {
 public:
  LayerTwin(const LayerTwinCase& test, DType matrices, Random& random)
      : test_(test),
        matrices_(matrices),
        needs_(test.cpu->needs(test.spec, {.matrices = matrices})) {
    weights_ = RandomWeights(needs_, random);
    if (test.prepare) test.prepare(test.spec, weights_);
    for (const Field& field : needs_.weights) {
      Floats& values = weights_[field.name];
      for (float& value : values) value = RoundTo(field.dtype, value);
      host_weights_.push_back({.data = values.data(), .shape = field.shape});
      buffers_.push_back(UploadAs(field.dtype, values));
      weight_views_.push_back(
          {.data = buffers_.back().as<void>(), .dtype = field.dtype, .shape = field.shape});
    }
    gemm_ = MakeCudaGemm(nullptr);
  }

  void Compare(Random& random) {
    std::vector<int> rows;
    std::vector<Floats> x;
    for (int64_t i = Pick(random, 1, 5); i > 0; --i) {
      // The last one is long: a single token may cancel to next to nothing, of which rounding is a
      // large part.
      const bool single = i > 1 && Pick(random, 0, 2) == 0;
      rows.push_back(static_cast<int>(single ? 1 : Pick(random, i > 1 ? 1 : 60, 120)));
      x.push_back(Uniform(random, rows.back() * test_.spec.d_model, -1.7f, 1.7f));
    }
    const std::vector<Plan> plans = RandomPlans(random, rows);
    std::vector<int64_t> sizes;
    for (const Field& field : needs_.state) sizes.push_back(Elements(field));
    Pool cuda_pool(std::ssize(rows) + 1, sizes, 64, 16 * Pick(random, 0, 1));
    Pool cpu_pool = cuda_pool.Fresh();
    Fill(cuda_pool, std::ssize(rows));
    Fill(cpu_pool, std::ssize(rows));
    cuda_pool.Write();
    const bool asks = !needs_.readouts.empty() && Pick(random, 0, 1) == 0;
    const Ran cuda = RunCuda(plans, x, cuda_pool, asks), cpu = RunCpu(plans, x, cpu_pool, asks);
    Pool moved_pool = cpu_pool.Fresh();
    Fill(moved_pool, std::ssize(rows));
    MoveMatrices(random);
    const Ran moved = RunCpu(plans, x, moved_pool, asks);
    cuda_pool.Read();
    EXPECT_TRUE(cuda_pool.OthersAreUntouched(std::ssize(rows))) << test_.name;
    const auto expect_close = [&](const Floats& got, const Floats& want, const Floats& other,
                                  const std::string& what) {
      // The rounding of inputs against the moves of matrices, which are of the same size, and what
      // functions and sums are off without any product.
      EXPECT_LT(Distance(got, Exact(want)), Floor() + 6 * Distance(other, Exact(want)))
          << test_.name << ", " << what;
    };
    expect_close(cuda.added, cpu.added, moved.added, "output");
    for (size_t f = 0; f < needs_.state.size(); ++f) {
      expect_close(AllSlots(cuda_pool, rows, f), AllSlots(cpu_pool, rows, f),
                   AllSlots(moved_pool, rows, f), "state " + needs_.state[f].name);
    }
    if (asks) expect_close(cuda.told, cpu.told, moved.told, "read-outs");
  }

 private:
  struct Ran {
    Floats added;  // to the rows of all steps, padding left out
    Floats told;
  };

  static Floats AllSlots(Pool& pool, const std::vector<int>& rows, size_t field) {
    Floats all;
    for (int64_t slot = 1; slot <= std::ssize(rows); ++slot) {
      const auto values = pool.At(slot, field);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  static std::vector<double> Exact(std::span<const float> x) { return {x.begin(), x.end()}; }

  // Float: activations are good to 1e-6, and there are a few of them. bfloat16: the rounding of the
  // inputs of up to four products, 1.7e-3 in the mean square, in one direction.
  double Floor() const { return matrices_ == DType::kF32 ? 1e-5 : 4 * 0x1p-9; }

  // Moves every element of the twin's matrices by up to a unit in its last place.
  void MoveMatrices(Random& random) {
    const double most = matrices_ == DType::kF32 ? 0x1p-23 : 0x1p-8;
    std::uniform_real_distribution<double> factor(1 - most, 1 + most);
    for (const Field& field : needs_.weights) {
      if (field.shape[1] == 1 || !field.name.ends_with(".weight")) continue;
      for (float& value : weights_.at(field.name)) {
        value = static_cast<float>(value * factor(random));
      }
    }
  }

  void Fill(Pool& pool, int64_t slots) {
    for (size_t f = 0; f < needs_.state.size(); ++f) {
      const Field& field = needs_.state[f];
      for (int64_t slot = 1; slot <= slots; ++slot) {
        const auto values = pool.At(slot, f);
        std::ranges::fill(values, field.initial);
        if (field.initial_weight.empty()) continue;
        std::ranges::copy(weights_.at(field.initial_weight), values.begin());
        if (!field.initial_is_log) continue;
        for (float& value : values) value = std::exp(value);
      }
    }
  }

  // Rows of padding hold what it happens to be.
  Floats RowsOf(const Plan& plan, const std::vector<Floats>& x) const {
    Floats rows = Gather(plan, x, test_.spec.d_model, test_.spec.d_model);
    for (float& value : rows) value = std::isnan(value) ? 0.5f : value;
    return rows;
  }

  void Note(const Plan& plan, const Floats& before, const Floats& after, const Floats& told,
            Ran* ran) const {
    const int64_t d_model = test_.spec.d_model;
    const int64_t readouts = std::ssize(told) / std::max(1, plan.rows());
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      for (int r = plan.row_start[i]; r < plan.row_start[i + 1]; ++r) {
        for (int64_t j = 0; j < readouts; ++j) {
          const float value = told[j * plan.rows() + r];
          if (plan.sequence[i] < 0) EXPECT_EQ(value, 0.0f) << test_.name << ", told of padding";
          // Each in its own scale would be better, but none is large.
          ran->told.push_back(value);
        }
        if (plan.sequence[i] < 0) continue;
        for (int64_t c = r * d_model; c < (r + 1) * d_model; ++c) {
          ran->added.push_back(after[c] - before[c]);
        }
      }
    }
  }

  Ran RunCuda(const std::vector<Plan>& plans, const std::vector<Floats>& x, Pool& pool, bool asks) {
    std::vector<FieldView> state;
    for (size_t f = 0; f < needs_.state.size(); ++f) {
      state.push_back(pool.Field(f));
      state.back().shape = needs_.state[f].shape;
    }
    int most = 0;
    for (const Plan& plan : plans) most = std::max(most, plan.rows());
    const CudaScratch needs = test_.cuda->scratch(test_.spec, matrices_);
    const DeviceBytes scratch(static_cast<size_t>(needs.bytes + most * needs.bytes_per_row));
    std::vector<DeviceBytes> kept;
    const CudaContext context = {.gemm = gemm_.get(),
                                 .matrices = matrices_,
                                 .multiprocessors = 132,
                                 .keep = [&](int64_t bytes) {
                                   const std::vector<std::byte> zeros(bytes);
                                   kept.push_back(Upload(zeros));
                                   return kept.back().as<void>();
                                 }};
    const auto layer = test_.cuda->make(
        test_.spec, {.weights = weight_views_, .state = state, .scratch = scratch.as<void>()},
        context);
    Ran ran;
    for (const Plan& plan : plans) {
      DeviceStep device(plan);
      const Floats before = RowsOf(plan, x);
      const DeviceBytes rows = Upload(before);
      const DeviceBytes told(asks ? needs_.readouts.size() * plan.rows() * 4 : 0);
      if (asks) device.step.readouts = told.as();
      layer->Forward(device.step,
                     {.data = rows.as<void>(), .shape = {plan.rows(), test_.spec.d_model, 1, 1}});
      Check(cudaDeviceSynchronize());
      Check(cudaGetLastError());
      EXPECT_EQ(TakeGemmError(gemm_.get()), std::nullopt);
      Note(plan, before, rows.Read(), told.Read(), &ran);
    }
    return ran;
  }

  Ran RunCpu(const std::vector<Plan>& plans, const std::vector<Floats>& x, Pool& pool, bool asks) {
    std::vector<FieldView> state;
    for (size_t f = 0; f < needs_.state.size(); ++f) {
      state.push_back(pool.HostField(f));
      state.back().shape = needs_.state[f].shape;
    }
    int most = 0;
    for (const Plan& plan : plans) most = std::max(most, plan.rows());
    Floats scratch((needs_.scratch_bytes + most * needs_.scratch_bytes_per_row) / 4 + 1);
    const auto layer = test_.cpu->make_cpu(
        test_.spec, {.weights = host_weights_, .state = state, .scratch = scratch.data()});
    Ran ran;
    for (const Plan& plan : plans) {
      const Floats before = RowsOf(plan, x);
      Floats rows = before, told(asks ? needs_.readouts.size() * plan.rows() : 0);
      Step step = {.rows = plan.rows(),
                   .sequences = static_cast<int>(plan.slots.size()),
                   .single_row_sequences = plan.single,
                   .max_rows_per_sequence = plan.max_rows,
                   .row_start = plan.row_start.data(),
                   .slots = plan.slots.data()};
      if (asks) step.readouts = told.data();
      layer->Forward(step, {.data = rows.data(), .shape = {plan.rows(), test_.spec.d_model, 1, 1}});
      Note(plan, before, rows, told, &ran);
    }
    return ran;
  }

  const LayerTwinCase& test_;
  const DType matrices_;
  const LayerNeeds needs_;
  WeightsByName weights_;
  std::vector<TensorView> host_weights_, weight_views_;
  std::vector<DeviceBytes> buffers_;
  CudaGemmPtr gemm_;
};

// In both number modes, a few times each.
inline void CompareTwins(const LayerTwinCase& test, Random& random, int rounds = 3) {
  for (DType matrices : {DType::kF32, DType::kBF16}) {
    LayerTwinCase named = test;
    named.name += matrices == DType::kF32 ? ", float" : ", bfloat16";
    for (int round = 0; round < rounds; ++round) {
      LayerTwin(named, matrices, random).Compare(random);
    }
  }
}

inline std::string Words(const Params& params) {
  std::string words = "random shape";
  for (const auto& [name, value] : params) {
    if (const auto* number = std::get_if<int64_t>(&value)) {
      words += ", " + name + " " + std::to_string(*number);
    }
  }
  return words;
}

using Families = std::vector<std::pair<const char*, Params>>;

// Every family of options, and 40 random shapes with the options that a family has.
inline void CompareFamilies(LayerTwinCase test, const Families& families,
                            const std::function<Params(Random&)>& shape) {
  Random random(TestSeed());
  const LayerSpec base = test.spec;
  for (int i : testing::Trials(40)) {
    static_cast<void>(i);
    const auto family = static_cast<size_t>(Pick(random, 0, std::ssize(families) - 1));
    const Params sizes = shape(random);
    test.name = std::string(families[family].first) + ", " + Words(sizes);
    test.spec = Changed(Changed(base, families[family].second), sizes);
    test.spec.d_model = Pick(random, 0, 1) == 0 ? 8 * Pick(random, 2, 16) : Pick(random, 5, 90);
    CompareTwins(test, random, /*rounds=*/1);
  }
  for (int i : testing::Trials(static_cast<int>(families.size()))) {
    test.name = families[i].first;
    test.spec = Changed(base, families[i].second);
    CompareTwins(test, random);
  }
}

}  // namespace eddy::cuda_test
