// Proves what a delta layer's ring of pending writes takes of a record: its fields and shapes for
// each kind of decay, all of them transient, and nothing where every step writes S.
#include "kernels/rules/delta_rule/delta_ring.h"

#include <gtest/gtest.h>

#include "kernels/state_layout.h"

namespace eddy {
namespace {

constexpr DeltaRuleShape kShape = {.heads = 2, .value_heads = 4, .key_dim = 24, .value_dim = 40};

std::array<int64_t, 4> ShapeOf(const std::vector<Field>& fields, const std::string& name) {
  for (const Field& field : fields) {
    if (field.name == name) return field.shape;
  }
  return {0, 0, 0, 0};
}

TEST(DeltaRing, HoldsOnePairLessThanAreWrittenTogether) {
  const std::vector<Field> fields = DeltaRingFields(kShape, DeltaDecay::kHead, 16);
  ASSERT_EQ(fields.size(), 4u);
  EXPECT_EQ(ShapeOf(fields, "ring_w"), (std::array<int64_t, 4>{4, 15, 24, 1}));
  EXPECT_EQ(ShapeOf(fields, "ring_n"), (std::array<int64_t, 4>{4, 15, 40, 1}));
  EXPECT_EQ(ShapeOf(fields, "ring_a"), (std::array<int64_t, 4>{4, 15, 1, 1}));
  // 40 columns are two groups of 32.
  EXPECT_EQ(ShapeOf(fields, "ring_count"), (std::array<int64_t, 4>{4, 2, 1, 1}));
}

TEST(DeltaRing, StoresOnlyTheDecaysThatThereAre) {
  EXPECT_EQ(ShapeOf(DeltaRingFields(kShape, DeltaDecay::kChannel, 8), "ring_a"),
            (std::array<int64_t, 4>{4, 7, 24, 1}));
  EXPECT_EQ(DeltaRingFields(kShape, DeltaDecay::kNone, 8).size(), 3u);
}

TEST(DeltaRing, IsAbsentWhereEveryStepWrites) {
  EXPECT_TRUE(DeltaRingFields(kShape, DeltaDecay::kChannel, 0).empty());
  EXPECT_TRUE(DeltaRingFields(kShape, DeltaDecay::kChannel, 1).empty());
}

TEST(DeltaRing, AddsNothingToACheckpoint) {
  const std::vector<Field> fields = DeltaRingFields(kShape, DeltaDecay::kChannel, 16);
  int64_t bytes = 0;
  for (const Field& field : fields) {
    EXPECT_TRUE(field.transient) << field.name;
    EXPECT_EQ(field.initial, 0.0f) << field.name;
    bytes += FieldBytes(field);
  }
  const LayerNeeds needs = {.state = fields};
  const StateLayout layout({&needs, 1});
  EXPECT_EQ(layout.persistent_bytes(), 0);
  EXPECT_GE(layout.record_bytes(), bytes);
}

}  // namespace
}  // namespace eddy
