#include "kernels/rules/delta_rule/delta_ring.h"

namespace eddy {

std::vector<Field> DeltaRingFields(const DeltaRuleShape& shape, DeltaDecay decay,
                                   int pending_updates) {
  std::vector<Field> fields;
  if (pending_updates <= 1) return fields;
  const int64_t value_heads = shape.value_heads, entries = pending_updates - 1;
  const auto add = [&](const char* name, DType dtype, int64_t rows, int64_t width) {
    fields.push_back(
        {.name = name, .dtype = dtype, .shape = {value_heads, rows, width, 1}, .transient = true});
  };
  add("ring_w", DType::kF32, entries, shape.key_dim);
  add("ring_n", DType::kF32, entries, shape.value_dim);
  if (decay == DeltaDecay::kHead) add("ring_a", DType::kF32, entries, 1);
  if (decay == DeltaDecay::kChannel) add("ring_a", DType::kF32, entries, shape.key_dim);
  const int64_t groups = (shape.value_dim + kDeltaCountColumns - 1) / kDeltaCountColumns;
  add("ring_count", DType::kI32, groups, 1);
  return fields;
}

}  // namespace eddy
