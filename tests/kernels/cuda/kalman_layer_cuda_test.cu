// Proves that the Kalman layer on the GPU does what its CPU twin does, with every option, in
// random shapes and both number modes, on sequences in steps of random company, read-outs included.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/layers/kalman/kalman.h"
#include "kernels/layers/kalman/kalman_cuda.h"
#include "tests/kernels/cuda/layer_twin.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

LayerSpec BaseSpec() {
  return {.type = "kalman",
          .d_model = 40,
          .norm_eps = 1e-5,
          .params = {{"channels", int64_t{72}},
                     {"state_dim", int64_t{8}},
                     {"conv_width", int64_t{4}},
                     {"conv_activation", "silu"},
                     {"value", "full"},
                     {"value_rank", std::monostate()},
                     {"noise", "full"},
                     {"noise_rank", std::monostate()},
                     {"noise_min", 1e-4},
                     {"noise_max", std::monostate()},
                     {"discretization", "ou"},
                     {"process_noise", "floor"},
                     {"qk_norm", true},
                     {"clip", std::monostate()},
                     {"readout", "posterior"},
                     {"gate", "silu"},
                     {"skip", "scalar"},
                     {"bias", false},
                     {"prior", "unit"}}};
}

// Rates, steps and noises as trained models have them, memories of a token to some hundreds.
void Prepare(const LayerSpec& spec, WeightsByName& weights) {
  for (float& value : weights.at("step_raw")) value -= 2.0f;
  for (float& value : weights.at("process_noise")) {
    value *= spec.Word("process_noise") == "zero" ? 0.0f : 0.3f;
  }
}

TEST(KalmanLayerCuda, DoesWhatItsTwinDoesInEveryFamilyOfOptions) {
  EDDY_SKIP_WITHOUT_GPU();
  const Families families = {
      {"plain", {}},
      {"mamba", {{"value", "conv"}, {"noise", "low"}, {"noise_rank", int64_t{8}}}},
      {"low_value", {{"value", "low"}, {"value_rank", int64_t{3}}}},
      {"low_both",
       {{"value", "low"},
        {"value_rank", int64_t{5}},
        {"noise", "low"},
        {"noise_rank", int64_t{8}},
        {"bias", true}}},
      {"full_value_low_noise", {{"noise", "low"}, {"noise_rank", int64_t{4}}, {"bias", true}}},
      {"bare", {{"conv_width", int64_t{0}}, {"gate", "none"}, {"skip", "none"}}},
      {"one_tap", {{"conv_width", int64_t{1}}, {"conv_activation", "gelu"}}},
      {"raw_keys", {{"qk_norm", false}, {"clip", 0.4}, {"conv_activation", "relu"}}},
      {"zero_order_hold", {{"discretization", "zoh"}, {"readout", "prior"}}},
      {"no_process_noise", {{"process_noise", "zero"}, {"skip", "channel"}}},
      {"bounded_noise", {{"noise_min", 0.2}, {"noise_max", 0.9}, {"gate", "gelu"}}},
      {"biases", {{"bias", true}, {"gate", "relu"}}},
      {"learned_prior", {{"prior", "learned"}, {"conv_width", int64_t{2}}}},
      {"odd", {{"channels", int64_t{33}}, {"state_dim", int64_t{5}}, {"conv_width", int64_t{5}}}},
      {"one_state", {{"channels", int64_t{17}}, {"state_dim", int64_t{1}}, {"qk_norm", false}}},
      {"wide", {{"channels", int64_t{200}}, {"state_dim", int64_t{16}}, {"skip", "none"}}},
  };
  CompareFamilies(
      {.spec = BaseSpec(), .cpu = &KalmanType(), .cuda = &KalmanCudaType(), .prepare = Prepare},
      families, [](Random& random) {
        return Params{{"channels", Pick(random, 1, 200)}, {"state_dim", Pick(random, 1, 40)}};
      });
}

}  // namespace
}  // namespace eddy
