// Proves that the layers around the scans on the GPU (gla, mamba, longhorn, mamba2, mlstm) do what
// their CPU twins do, in every family of options, in random shapes and in both number modes, on
// sequences in steps of random company.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/layers/gla/gla.h"
#include "kernels/layers/gla/gla_cuda.h"
#include "kernels/layers/mamba/mamba.h"
#include "kernels/layers/mamba/mamba_cuda.h"
#include "kernels/layers/mamba2/mamba2.h"
#include "kernels/layers/mamba2/mamba2_cuda.h"
#include "kernels/layers/mlstm/mlstm.h"
#include "kernels/layers/mlstm/mlstm_cuda.h"
#include "tests/kernels/cuda/layer_twin.h"

namespace eddy {
namespace {

using namespace cuda_test;  // NOLINT: this file is about nothing else

constexpr std::monostate kNull;

// Moves a bias, so that memories are long.
auto Moved(const char* weight, float by) {
  return [=](const LayerSpec&, WeightsByName& weights) {
    for (float& value : weights.at(weight)) value += by;
  };
}

TEST(GlaLayerCuda, DoesWhatItsTwinDoesInEveryFamilyOfOptions) {
  EDDY_SKIP_WITHOUT_GPU();
  CompareFamilies(
      {.spec = {.type = "gla",
                .d_model = 40,
                .norm_eps = 1e-3,
                .params = {{"heads", int64_t{2}},
                           {"kv_heads", int64_t{2}},
                           {"key_dim", int64_t{16}},
                           {"value_dim", int64_t{32}},
                           {"decay_rank", int64_t{8}},
                           {"decay_divisor", int64_t{16}},
                           {"decay_min", kNull}}},
       .cpu = &GlaType(),
       .cuda = &GlaCudaType()},
      {{"plain", {}},
       {"groups", {{"heads", int64_t{6}}}},
       {"one_group", {{"heads", int64_t{3}}, {"kv_heads", int64_t{1}}, {"value_dim", int64_t{64}}}},
       {"bounded_decay", {{"decay_min", -0.05}}},
       {"fast_decay", {{"decay_divisor", 0.5}, {"decay_rank", int64_t{5}}}},
       {"odd", {{"key_dim", int64_t{7}}, {"value_dim", int64_t{19}}}},
       {"one_key_channel", {{"key_dim", int64_t{1}}, {"value_dim", int64_t{40}}}},
       {"wide", {{"key_dim", int64_t{128}}, {"value_dim", int64_t{300}}}},
       {"keys_wider_than_values", {{"key_dim", int64_t{65}}, {"value_dim", int64_t{3}}}}},
      [](Random& random) {
        const int64_t kv_heads = Pick(random, 1, 3);
        return Params{{"heads", kv_heads * Pick(random, 1, 3)},
                      {"kv_heads", kv_heads},
                      {"key_dim", Pick(random, 1, 130)},
                      {"value_dim", Pick(random, 1, 200)}};
      });
}

TEST(MambaLayerCuda, DoesWhatItsTwinDoesInEveryFamilyOfOptions) {
  EDDY_SKIP_WITHOUT_GPU();
  for (const char* type : {"mamba", "longhorn"}) {
    CompareFamilies(
        {.spec = {.type = type,
                  .d_model = 40,
                  .norm_eps = 1e-5,
                  .params = {{"channels", int64_t{72}},
                             {"state_dim", int64_t{16}},
                             {"step_rank", int64_t{8}},
                             {"conv_width", int64_t{4}},
                             {"conv_bias", true},
                             {"bias", false}}},
         .cpu = &MambaType(type),
         .cuda = &MambaCudaType(type),
         .prepare = Moved("step_up.bias", -2)},
        {{"plain", {}},
         {"odd", {{"channels", int64_t{37}}, {"state_dim", int64_t{7}}, {"step_rank", int64_t{3}}}},
         {"no_bias_in_the_convolution", {{"conv_bias", false}, {"conv_width", int64_t{2}}}},
         {"bias_everywhere", {{"bias", true}, {"conv_width", int64_t{3}}}},
         {"one_state_channel", {{"state_dim", int64_t{1}}}},
         {"many_states", {{"state_dim", int64_t{70}}}},
         {"one_channel", {{"channels", int64_t{1}}}}},
        [](Random& random) {
          return Params{{"channels", Pick(random, 1, 200)},
                        {"state_dim", Pick(random, 1, 40)},
                        {"step_rank", Pick(random, 1, 12)}};
        });
  }
}

TEST(Mamba2LayerCuda, DoesWhatItsTwinDoesInEveryFamilyOfOptions) {
  EDDY_SKIP_WITHOUT_GPU();
  CompareFamilies(
      {.spec = {.type = "mamba2",
                .d_model = 40,
                .norm_eps = 1e-3,
                .params = {{"heads", int64_t{4}},
                           {"head_dim", int64_t{16}},
                           {"state_dim", int64_t{32}},
                           {"groups", int64_t{1}},
                           {"conv_width", int64_t{4}},
                           {"conv_bias", true},
                           {"bias", false},
                           {"step_min", int64_t{0}},
                           {"step_max", kNull}}},
       .cpu = &Mamba2Type(),
       .cuda = &Mamba2CudaType(),
       .prepare = Moved("step_bias", -2)},
      {{"plain", {}},
       {"odd", {{"heads", int64_t{3}}, {"head_dim", int64_t{13}}, {"state_dim", int64_t{7}}}},
       {"groups", {{"heads", int64_t{6}}, {"groups", int64_t{2}}}},
       {"as_many_groups_as_heads", {{"groups", int64_t{4}}}},
       {"no_bias_in_the_convolution", {{"conv_bias", false}, {"conv_width", int64_t{2}}}},
       {"bias_everywhere", {{"bias", true}, {"conv_width", int64_t{3}}}},
       {"bounded_steps", {{"step_min", 0.11}, {"step_max", 0.13}}},
       {"one_state_channel", {{"state_dim", int64_t{1}}}},
       {"wide", {{"heads", int64_t{8}}, {"head_dim", int64_t{64}}}},
       {"one_wide_head", {{"heads", int64_t{1}}, {"head_dim", int64_t{70}}}}},
      [](Random& random) {
        const int64_t groups = Pick(random, 1, 3);
        return Params{{"heads", groups * Pick(random, 1, 3)},
                      {"groups", groups},
                      {"head_dim", Pick(random, 1, 80)},
                      {"state_dim", Pick(random, 1, 100)}};
      });
}

TEST(MlstmLayerCuda, DoesWhatItsTwinDoesInEveryFamilyOfOptions) {
  EDDY_SKIP_WITHOUT_GPU();
  LayerTwinCase test = {.spec = {.type = "mlstm",
                                 .d_model = 40,
                                 .norm_eps = 1e-2,
                                 .params = {{"heads", int64_t{2}},
                                            {"key_dim", int64_t{16}},
                                            {"value_dim", int64_t{32}},
                                            {"forget_gate", "sigmoid"},
                                            {"gate_softcap", kNull},
                                            {"bias", false}}},
                        .cpu = &MlstmType(),
                        .cuda = &MlstmCudaType(),
                        .prepare = Moved("forget_gate.bias", 3)};
  const auto shape = [](Random& random) {
    return Params{{"heads", Pick(random, 1, 5)},
                  {"key_dim", Pick(random, 1, 100)},
                  {"value_dim", Pick(random, 1, 200)}};
  };
  CompareFamilies(
      test,
      {{"plain", {}},
       {"odd", {{"key_dim", int64_t{7}}, {"value_dim", int64_t{19}}}},
       {"capped_gates", {{"gate_softcap", 1.5}}},
       {"bias_everywhere", {{"bias", true}}},
       {"five_heads", {{"heads", int64_t{5}}}},
       {"one_key_channel", {{"key_dim", int64_t{1}}, {"value_dim", int64_t{33}}}},
       {"wide", {{"key_dim", int64_t{128}}, {"value_dim", int64_t{260}}}},
       {"keys_wider_than_values", {{"key_dim", int64_t{40}}, {"value_dim", int64_t{5}}}}},
      shape);
  // It must not grow without end.
  test.prepare = Moved("forget_gate.bias", -1);
  CompareFamilies(test, {{"exponential_forget_gate", {{"forget_gate", "exponential"}}}}, shape);
}

}  // namespace
}  // namespace eddy
