#include "tests/example_layer/leaky.h"

namespace eddy {
namespace {

constexpr ParamRule kParams[] = {
    {.name = "size", .kind = ParamRule::kInt, .min = 1, .max = 1 << 20},
};

}  // namespace

LayerNeeds LeakyNeeds(const LayerSpec& spec, const DeviceTraits& traits) {
  const int64_t d_model = spec.d_model, size = spec.Int("size");
  LayerNeeds needs;
  needs.weights = {
      {.name = "norm.weight", .shape = {d_model, 1, 1, 1}},
      {.name = "in.weight", .dtype = traits.matrices, .shape = {size, d_model, 1, 1}},
      {.name = "decay", .shape = {size, 1, 1, 1}},
      {.name = "out.weight", .dtype = traits.matrices, .shape = {d_model, size, 1, 1}},
  };
  needs.state = {{.name = "h", .shape = {size, 1, 1, 1}}};
  needs.scratch_bytes = size * SizeOf(DType::kF32);
  needs.scratch_bytes_per_row = (d_model + size) * SizeOf(DType::kF32);
  return needs;
}

const LayerType& LeakyType() {
  static constexpr LayerType kType = {.name = "leaky",
                                      .params = kParams,
                                      .conflict = nullptr,
                                      .needs = LeakyNeeds,
                                      .make_cpu = MakeLeakyCpu};
  return kType;
}

}  // namespace eddy
