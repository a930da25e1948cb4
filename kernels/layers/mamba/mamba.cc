#include "kernels/layers/mamba/mamba.h"

#include "base/check.h"

namespace eddy {
namespace {

using Rule = ParamRule;
constexpr ParamRule kParams[] = {
    {.name = "channels", .kind = Rule::kInt, .min = 1, .max = 1 << 20},
    {.name = "state_dim", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "step_rank", .kind = Rule::kInt, .min = 1, .max = 65536},
    {.name = "conv_width", .kind = Rule::kInt, .min = 2, .max = 8},
    {.name = "conv_bias", .kind = Rule::kFlag},
    {.name = "bias", .kind = Rule::kFlag},
};

}  // namespace

MambaOptions::MambaOptions(const LayerSpec& spec)
    : d_model(spec.d_model),
      norm_eps(static_cast<float>(spec.norm_eps)),
      longhorn(spec.type == "longhorn"),
      channels(spec.Int("channels")),
      state_dim(spec.Int("state_dim")),
      step_rank(spec.Int("step_rank")),
      conv_width(spec.Int("conv_width")),
      conv_bias(spec.Flag("conv_bias")),
      bias(spec.Flag("bias")) {}

LayerNeeds MambaNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const MambaOptions o(spec);
  const DType matrix = traits.matrices;
  LayerNeeds needs;
  const auto add_matrix = [&](const char* name, int64_t rows, int64_t columns) {
    needs.weights.push_back({.name = name, .dtype = matrix, .shape = {rows, columns, 1, 1}});
  };
  const auto add_vector = [&](const char* name, int64_t size) {
    needs.weights.push_back({.name = name, .shape = {size, 1, 1, 1}});
  };
  add_vector("norm.weight", o.d_model);
  add_matrix("in.weight", 2 * o.channels, o.d_model);
  if (o.bias) add_vector("in.bias", 2 * o.channels);
  add_matrix("conv.weight", o.channels, o.conv_width);
  if (o.conv_bias) add_vector("conv.bias", o.channels);
  add_matrix("select.weight", o.select_width(), o.channels);
  add_matrix("step_up.weight", o.channels, o.step_rank);
  add_vector("step_up.bias", o.channels);
  if (!o.longhorn) {
    // A rate, not a matrix to multiply with: always float.
    needs.weights.push_back({.name = "decay_rate_log", .shape = {o.channels, o.state_dim, 1, 1}});
  }
  add_vector("skip", o.channels);
  add_matrix("out.weight", o.d_model, o.channels);
  if (o.bias) add_vector("out.bias", o.d_model);
  needs.state.push_back({.name = "state", .shape = {o.state_dim, o.channels, 1, 1}});
  needs.state.push_back({.name = "conv", .shape = {o.conv_width - 1, o.channels, 1, 1}});
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  needs.scratch_bytes = MambaCpuFloats(o) * float_bytes;
  needs.scratch_bytes_per_row = MambaCpuFloatsPerRow(o) * float_bytes;
  return needs;
}

const LayerType& MambaType(std::string_view name) {
  static constexpr LayerType kMamba = {.name = "mamba",
                                       .params = kParams,
                                       .conflict = nullptr,
                                       .needs = MambaNeeds,
                                       .make_cpu = MakeMambaCpu};
  static constexpr LayerType kLonghorn = {.name = "longhorn",
                                          .params = kParams,
                                          .conflict = nullptr,
                                          .needs = MambaNeeds,
                                          .make_cpu = MakeMambaCpu};
  EDDY_CHECK(name == "mamba" || name == "longhorn");
  return name == "mamba" ? kMamba : kLonghorn;
}

}  // namespace eddy
