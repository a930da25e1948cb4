#include "kernels/layers/attention/attention.h"

#include <string>

namespace eddy {
namespace {

using Rule = ParamRule;
constexpr ParamRule kParams[] = {
    {.name = "heads", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "head_dim", .kind = Rule::kInt, .min = 2, .max = 1024},
    {.name = "kv_heads", .kind = Rule::kInt, .min = 1, .max = 1024},
    {.name = "rope_theta", .kind = Rule::kReal, .min = 1e-6, .max = 1e12},
    {.name = "window", .kind = Rule::kInt, .min = 1, .max = INT32_MAX, .nullable = true},
    {.name = "bias", .kind = Rule::kFlag},
};

std::optional<std::string> Conflict(const LayerSpec& spec) {
  const AttentionOptions o(spec);
  if (o.shape.head_dim % 2 != 0) {
    return "head_dim is " + std::to_string(o.shape.head_dim) + ", it must be even";
  }
  if (o.shape.heads % o.shape.kv_heads != 0) {
    return "kv_heads is " + std::to_string(o.shape.kv_heads) + ", it must divide heads, " +
           std::to_string(o.shape.heads);
  }
  return std::nullopt;
}

}  // namespace

AttentionOptions::AttentionOptions(const LayerSpec& spec)
    : d_model(spec.d_model),
      norm_eps(static_cast<float>(spec.norm_eps)),
      shape{.heads = spec.Int("heads"),
            .kv_heads = spec.Int("kv_heads"),
            .head_dim = spec.Int("head_dim")},
      rope_theta(spec.Real("rope_theta")),
      window(spec.IsNull("window") ? 0 : spec.Int("window")),
      bias(spec.Flag("bias")) {}

LayerNeeds AttentionNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const AttentionOptions o(spec);
  const int64_t d_model = o.d_model, q = o.q_width(), kv = o.kv_width();
  const DType matrix = traits.matrices;
  LayerNeeds needs;
  needs.weights = {{.name = "norm.weight", .shape = {d_model, 1, 1, 1}},
                   {.name = "q.weight", .dtype = matrix, .shape = {q, d_model, 1, 1}},
                   {.name = "k.weight", .dtype = matrix, .shape = {kv, d_model, 1, 1}},
                   {.name = "v.weight", .dtype = matrix, .shape = {kv, d_model, 1, 1}}};
  if (o.bias) {
    needs.weights.push_back({.name = "q.bias", .shape = {q, 1, 1, 1}});
    needs.weights.push_back({.name = "k.bias", .shape = {kv, 1, 1, 1}});
    needs.weights.push_back({.name = "v.bias", .shape = {kv, 1, 1, 1}});
  }
  needs.weights.push_back({.name = "out.weight", .dtype = matrix, .shape = {d_model, q, 1, 1}});
  for (const char* name : {"k", "v"}) {
    needs.kv.push_back(
        {.name = name, .dtype = traits.kv, .shape = {o.shape.kv_heads, o.shape.head_dim, 1, 1}});
  }
  needs.kv_window = o.window;
  const auto float_bytes = static_cast<int64_t>(sizeof(float));
  needs.scratch_bytes = AttentionScratchFloats(o.shape) * float_bytes;
  needs.scratch_bytes_per_row = AttentionCpuFloatsPerRow(o) * float_bytes;
  return needs;
}

const LayerType& AttentionType() {
  static constexpr LayerType kType = {.name = "attention",
                                      .params = kParams,
                                      .conflict = Conflict,
                                      .needs = AttentionNeeds,
                                      .make_cpu = MakeAttentionCpu};
  return kType;
}

}  // namespace eddy
