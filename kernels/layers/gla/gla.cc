#include "kernels/layers/gla/gla.h"

#include <string>

namespace eddy {
namespace {

using Rule = ParamRule;
constexpr ParamRule kParams[] = {
    {.name = "heads", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "kv_heads", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "key_dim", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "value_dim", .kind = Rule::kInt, .min = 1, .max = 2048},
    {.name = "decay_rank", .kind = Rule::kInt, .min = 1, .max = 65536},
    {.name = "decay_divisor", .kind = Rule::kReal, .min = 1e-3, .max = 1e6},
    {.name = "decay_min", .kind = Rule::kReal, .min = -1e6, .max = 0, .nullable = true},
};

std::optional<std::string> Conflict(const LayerSpec& spec) {
  const GlaOptions o(spec);
  if (o.heads % o.kv_heads == 0) return std::nullopt;
  return "heads is " + std::to_string(o.heads) + ", it must be a multiple of kv_heads, " +
         std::to_string(o.kv_heads);
}

}  // namespace

GlaOptions::GlaOptions(const LayerSpec& spec)
    : d_model(spec.d_model),
      norm_eps(static_cast<float>(spec.norm_eps)),
      heads(spec.Int("heads")),
      kv_heads(spec.Int("kv_heads")),
      key_dim(spec.Int("key_dim")),
      value_dim(spec.Int("value_dim")),
      decay_rank(spec.Int("decay_rank")),
      decay_divisor(static_cast<float>(spec.Real("decay_divisor"))) {
  if (!spec.IsNull("decay_min")) decay_min = static_cast<float>(spec.Real("decay_min"));
}

LayerNeeds GlaNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const GlaOptions o(spec);
  const int64_t d_model = o.d_model, keys = o.kv_heads * o.key_dim;
  const DType matrix = traits.matrices;
  LayerNeeds needs;
  const auto add_matrix = [&](const char* name, int64_t rows, int64_t columns) {
    needs.weights.push_back({.name = name, .dtype = matrix, .shape = {rows, columns, 1, 1}});
  };
  needs.weights.push_back({.name = "norm.weight", .shape = {d_model, 1, 1, 1}});
  add_matrix("q.weight", o.heads * o.key_dim, d_model);
  add_matrix("k.weight", keys, d_model);
  add_matrix("v.weight", o.kv_heads * o.value_dim, d_model);
  add_matrix("decay_down.weight", o.decay_rank, d_model);
  add_matrix("decay_up.weight", keys, o.decay_rank);
  needs.weights.push_back({.name = "decay_up.bias", .shape = {keys, 1, 1, 1}});
  add_matrix("gate.weight", o.heads * o.value_dim, d_model);
  needs.weights.push_back({.name = "out_norm.weight", .shape = {o.value_dim, 1, 1, 1}});
  add_matrix("out.weight", d_model, o.heads * o.value_dim);
  needs.state.push_back({.name = "state", .shape = {o.kv_heads, o.key_dim, o.value_dim, 1}});
  needs.scratch_bytes_per_row = GlaCpuFloatsPerRow(o) * static_cast<int64_t>(sizeof(float));
  return needs;
}

const LayerType& GlaType() {
  static constexpr LayerType kType = {.name = "gla",
                                      .params = kParams,
                                      .conflict = Conflict,
                                      .needs = GlaNeeds,
                                      .make_cpu = MakeGlaCpu};
  return kType;
}

}  // namespace eddy
