#include "kernels/layers/mamba2/mamba2.h"

#include <string>

namespace eddy {
namespace {

using Rule = ParamRule;
constexpr ParamRule kParams[] = {
    {.name = "heads", .kind = Rule::kInt, .min = 1, .max = 4096},
    {.name = "head_dim", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "state_dim", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "groups", .kind = Rule::kInt, .min = 1, .max = 4096},
    {.name = "conv_width", .kind = Rule::kInt, .min = 2, .max = 8},
    {.name = "conv_bias", .kind = Rule::kFlag},
    {.name = "bias", .kind = Rule::kFlag},
    {.name = "step_min", .kind = Rule::kReal, .min = 0, .max = 1e6},
    {.name = "step_max", .kind = Rule::kReal, .min = 0, .max = 1e6, .nullable = true},
};

std::optional<std::string> Conflict(const LayerSpec& spec) {
  const Mamba2Options o(spec);
  if (o.heads % o.groups != 0) {
    return "heads is " + std::to_string(o.heads) + ", it must be a multiple of groups, " +
           std::to_string(o.groups);
  }
  if (o.step_max && *o.step_max < o.step_min) {
    return "step_max is " + std::to_string(*o.step_max) + ", it must be at least step_min, " +
           std::to_string(o.step_min);
  }
  return std::nullopt;
}

}  // namespace

Mamba2Options::Mamba2Options(const LayerSpec& spec)
    : d_model(spec.d_model),
      norm_eps(static_cast<float>(spec.norm_eps)),
      heads(spec.Int("heads")),
      head_dim(spec.Int("head_dim")),
      state_dim(spec.Int("state_dim")),
      groups(spec.Int("groups")),
      conv_width(spec.Int("conv_width")),
      conv_bias(spec.Flag("conv_bias")),
      bias(spec.Flag("bias")),
      step_min(static_cast<float>(spec.Real("step_min"))) {
  if (!spec.IsNull("step_max")) step_max = static_cast<float>(spec.Real("step_max"));
}

LayerNeeds Mamba2Needs(const LayerSpec& spec, const DeviceTraits& traits) {
  const Mamba2Options o(spec);
  const int64_t channels = o.conv_channels();
  const DType matrix = traits.matrices;
  LayerNeeds needs;
  const auto add_matrix = [&](const char* name, int64_t rows, int64_t columns) {
    needs.weights.push_back({.name = name, .dtype = matrix, .shape = {rows, columns, 1, 1}});
  };
  const auto add_vector = [&](const char* name, int64_t size) {
    needs.weights.push_back({.name = name, .shape = {size, 1, 1, 1}});
  };
  add_vector("norm.weight", o.d_model);
  add_matrix("in.weight", o.in_width(), o.d_model);
  if (o.bias) add_vector("in.bias", o.in_width());
  add_matrix("conv.weight", channels, o.conv_width);
  if (o.conv_bias) add_vector("conv.bias", channels);
  add_vector("step_bias", o.heads);
  add_vector("decay_rate_log", o.heads);
  add_vector("skip", o.heads);
  add_vector("out_norm.weight", o.inner());
  add_matrix("out.weight", o.d_model, o.inner());
  if (o.bias) add_vector("out.bias", o.d_model);
  needs.state.push_back({.name = "state", .shape = {o.heads, o.state_dim, o.head_dim, 1}});
  needs.state.push_back({.name = "conv", .shape = {o.conv_width - 1, channels, 1, 1}});
  needs.scratch_bytes_per_row = Mamba2CpuFloatsPerRow(o) * static_cast<int64_t>(sizeof(float));
  return needs;
}

const LayerType& Mamba2Type() {
  static constexpr LayerType kType = {.name = "mamba2",
                                      .params = kParams,
                                      .conflict = Conflict,
                                      .needs = Mamba2Needs,
                                      .make_cpu = MakeMamba2Cpu};
  return kType;
}

}  // namespace eddy
