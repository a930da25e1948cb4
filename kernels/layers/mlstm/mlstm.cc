#include "kernels/layers/mlstm/mlstm.h"

namespace eddy {
namespace {

constexpr const char* kForgetWords[] = {"sigmoid", "exponential"};

using Rule = ParamRule;
constexpr ParamRule kParams[] = {
    {.name = "heads", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "key_dim", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "value_dim", .kind = Rule::kInt, .min = 1, .max = 2048},
    {.name = "forget_gate", .kind = Rule::kWord, .words = kForgetWords},
    {.name = "gate_softcap", .kind = Rule::kReal, .min = 1e-3, .max = 1e6, .nullable = true},
    {.name = "bias", .kind = Rule::kFlag},
};

}  // namespace

MlstmOptions::MlstmOptions(const LayerSpec& spec)
    : d_model(spec.d_model),
      norm_eps(static_cast<float>(spec.norm_eps)),
      heads(spec.Int("heads")),
      key_dim(spec.Int("key_dim")),
      value_dim(spec.Int("value_dim")),
      exponential_forget(spec.Word("forget_gate") == "exponential"),
      bias(spec.Flag("bias")) {
  if (!spec.IsNull("gate_softcap")) gate_softcap = static_cast<float>(spec.Real("gate_softcap"));
}

LayerNeeds MlstmNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const MlstmOptions o(spec);
  LayerNeeds needs;
  const auto add_vector = [&](const char* name, int64_t size) {
    needs.weights.push_back({.name = name, .shape = {size, 1, 1, 1}});
  };
  const auto add_matrix = [&](const char* name, int64_t rows, int64_t columns) {
    needs.weights.push_back(
        {.name = name, .dtype = traits.matrices, .shape = {rows, columns, 1, 1}});
  };
  add_vector("norm.weight", o.d_model);
  add_matrix("q.weight", o.key_width(), o.d_model);
  add_matrix("k.weight", o.key_width(), o.d_model);
  add_matrix("v.weight", o.value_width(), o.d_model);
  add_matrix("input_gate.weight", o.heads, o.d_model);
  add_vector("input_gate.bias", o.heads);
  add_matrix("forget_gate.weight", o.heads, o.d_model);
  add_vector("forget_gate.bias", o.heads);
  add_matrix("gate.weight", o.value_width(), o.d_model);
  add_vector("out_norm.weight", o.value_width());
  add_matrix("out.weight", o.d_model, o.value_width());
  if (o.bias) {
    add_vector("q.bias", o.key_width());
    add_vector("k.bias", o.key_width());
    add_vector("v.bias", o.value_width());
    add_vector("gate.bias", o.value_width());
    add_vector("out.bias", o.d_model);
  }
  needs.state.push_back({.name = "state", .shape = {o.heads, o.key_dim, o.value_dim, 1}});
  needs.state.push_back({.name = "normaliser", .shape = {o.heads, o.key_dim, 1, 1}});
  needs.state.push_back({.name = "stabiliser", .shape = {o.heads, 1, 1, 1}});
  needs.scratch_bytes_per_row = MlstmCpuFloatsPerRow(o) * static_cast<int64_t>(sizeof(float));
  return needs;
}

const LayerType& MlstmType() {
  static constexpr LayerType kType = {.name = "mlstm",
                                      .params = kParams,
                                      .conflict = nullptr,
                                      .needs = MlstmNeeds,
                                      .make_cpu = MakeMlstmCpu};
  return kType;
}

}  // namespace eddy
