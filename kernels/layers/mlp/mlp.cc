#include "kernels/layers/mlp/mlp.h"

#include "base/check.h"

namespace eddy {
namespace {

constexpr ParamRule kParams[] = {
    {.name = "size", .kind = ParamRule::kInt, .min = 1, .max = 1 << 20},
};

}  // namespace

LayerNeeds MlpNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const int64_t d_model = spec.d_model, size = spec.Int("size");
  const bool gated = spec.type == "swiglu";
  const DType matrix = traits.matrices;
  LayerNeeds needs;
  needs.weights.push_back({.name = "norm.weight", .shape = {d_model, 1, 1, 1}});
  if (gated) {
    needs.weights.push_back(
        {.name = "gate.weight", .dtype = matrix, .shape = {size, d_model, 1, 1}});
  }
  needs.weights.push_back({.name = "up.weight", .dtype = matrix, .shape = {size, d_model, 1, 1}});
  needs.weights.push_back({.name = "down.weight", .dtype = matrix, .shape = {d_model, size, 1, 1}});
  needs.scratch_bytes_per_row = (d_model + (gated ? 2 : 1) * size) * SizeOf(DType::kF32);
  return needs;
}

const LayerType& MlpType(std::string_view name) {
  static constexpr LayerType kSwiglu = {.name = "swiglu",
                                        .params = kParams,
                                        .conflict = nullptr,
                                        .needs = MlpNeeds,
                                        .make_cpu = MakeMlpCpu};
  static constexpr LayerType kGelu = {.name = "gelu",
                                      .params = kParams,
                                      .conflict = nullptr,
                                      .needs = MlpNeeds,
                                      .make_cpu = MakeMlpCpu};
  EDDY_CHECK(name == "swiglu" || name == "gelu");
  return name == "swiglu" ? kSwiglu : kGelu;
}

}  // namespace eddy
