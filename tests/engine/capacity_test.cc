// Proves the arithmetic that divides memory, and the refusals where nothing fits.
#include "engine/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eddy {
namespace {

using ::testing::HasSubstr;

constexpr MemoryNeeds kNeeds = {
    .weights = 1000, .record = 100, .fixed = 50, .per_row = 2, .per_sequence = 10};

TEST(Capacity, GivesAsManySlotsAsFitBesideTheNullSlot) {
  // 0.5 * 6000 = 3000; minus 1000 of weights, 50 + 2 * 64 of workspace and a record of 100 for the
  // null slot leaves 1722, and a slot takes 110.
  const auto capacity =
      DivideMemory({.memory_fraction = 0.5, .max_rows_per_step = 64}, kNeeds, 6000, "cuda");
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  EXPECT_EQ(capacity->slots, 15);
  EXPECT_FALSE(capacity->lowered);
  EXPECT_EQ(capacity->weight_bytes, 1000);
  EXPECT_EQ(capacity->state_bytes, 1600);
  EXPECT_EQ(capacity->workspace_bytes, 178 + 150);
  EXPECT_LE(capacity->weight_bytes + capacity->state_bytes + capacity->workspace_bytes, 3000);
}

TEST(Capacity, SaysWhenItGivesFewerThanAskedFor) {
  const LoadOptions options = {
      .max_sequences = 40, .memory_fraction = 0.5, .max_rows_per_step = 64};
  const auto capacity = DivideMemory(options, kNeeds, 6000, "cpu");
  ASSERT_TRUE(capacity.ok());
  EXPECT_EQ(capacity->slots, 15);
  EXPECT_TRUE(capacity->lowered);
}

TEST(Capacity, KnowsTheDefaultsOfItsBackEnds) {
  const auto cpu = DivideMemory({}, kNeeds, 1'000'000'000, "cpu");
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ(cpu->slots, 16);
  EXPECT_EQ(cpu->max_rows_per_step, 256);
  const auto cuda = DivideMemory({}, kNeeds, 1'000'000'000, "cuda");
  ASSERT_TRUE(cuda.ok());
  EXPECT_EQ(cuda->slots, 1024);
  EXPECT_EQ(cuda->max_rows_per_step, 2048);
}

TEST(Capacity, KeepsARowFreeForPrompts) {
  const auto few_rows = DivideMemory({.max_rows_per_step = 7}, kNeeds, 1'000'000, "cpu");
  ASSERT_TRUE(few_rows.ok());
  EXPECT_EQ(few_rows->slots, 6);
  const auto contradiction =
      DivideMemory({.max_sequences = 64, .max_rows_per_step = 64}, kNeeds, 1'000'000, "cpu");
  EXPECT_EQ(contradiction.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(contradiction.status().message()),
              HasSubstr("max_rows_per_step is 64, must be more than max_sequences, 64"));
}

TEST(Capacity, RefusesAModelThatDoesNotFitWithTheWholeSum) {
  const auto tight =
      DivideMemory({.memory_fraction = 0.5, .max_rows_per_step = 64}, kNeeds, 2776, "cpu");
  ASSERT_TRUE(tight.ok()) << tight.status();  // 1388 = 1000 + 178 + 100 + 110
  EXPECT_EQ(tight->slots, 1);
  const auto short_by_one =
      DivideMemory({.memory_fraction = 0.5, .max_rows_per_step = 64}, kNeeds, 2774, "cpu");
  EXPECT_EQ(short_by_one.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(short_by_one.status().message()),
              HasSubstr("weights 1000 + workspace 178 + records of two slots 200 bytes"));
}

// A page of eight positions takes 30 bytes.
MemoryNeeds Hybrid(int64_t window, int64_t max_positions) {
  MemoryNeeds needs = kNeeds;
  needs.page = 30;
  needs.kv_window = window;
  needs.max_positions = max_positions;
  return needs;
}

TEST(Capacity, SharesWhatIsLeftBetweenSlotsAndPages) {
  // 3000 minus 1000, 178, a record of 100 and a page of 30 leaves 1692; a quarter, 423, is 14
  // pages. Of the other 1269 a slot takes 110 and 4 for each of the 13 pages that 100 positions
  // need.
  const LoadOptions options = {
      .memory_fraction = 0.5, .max_rows_per_step = 64, .kv_fraction = 0.25, .kv_page_tokens = 8};
  const auto capacity = DivideMemory(options, Hybrid(0, 100), 6000, "cuda");
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  EXPECT_EQ(capacity->pages, 14);
  EXPECT_EQ(capacity->rows_per_page, 8);
  EXPECT_EQ(capacity->pages_per_sequence, 13);
  EXPECT_EQ(capacity->slots, 7);
  EXPECT_EQ(capacity->kv_bytes, 15 * 30);
  EXPECT_EQ(capacity->workspace_bytes, 178 + 7 * (10 + 52));
  EXPECT_LE(capacity->weight_bytes + capacity->state_bytes + capacity->workspace_bytes +
                capacity->kv_bytes,
            3000);
}

TEST(Capacity, TakesNoMorePagesThanAllSlotsCanUse) {
  const LoadOptions options = {.max_sequences = 3, .max_rows_per_step = 20, .kv_page_tokens = 8};
  const auto all = DivideMemory(options, Hybrid(0, 100), 1'000'000, "cpu");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->pages, 3 * 13);
  // A window of 30 and a step of 20 rows: 49 positions, on at most seven pages of eight.
  const auto ring = DivideMemory(options, Hybrid(30, 0), 1'000'000, "cpu");
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->pages_per_sequence, 7);
  EXPECT_EQ(ring->pages, 3 * 7);
  // No more than its positions fill.
  EXPECT_EQ(DivideMemory(options, Hybrid(30, 33), 1'000'000, "cpu")->pages_per_sequence, 5);
}

TEST(Capacity, RefusesAHybridWithoutRoomForPages) {
  LoadOptions options = {.memory_fraction = 0.5, .max_rows_per_step = 64, .kv_page_tokens = 8};
  const auto tight = DivideMemory(options, Hybrid(0, 100), 2800, "cpu");
  EXPECT_EQ(tight.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tight.status().message()),
              HasSubstr("records of two slots 200 + two pages 60 (kv_fraction 0.5 of the rest)"));
  for (double fraction : {0.0, 1.0, -0.5}) {
    options.kv_fraction = fraction;
    EXPECT_EQ(DivideMemory(options, Hybrid(0, 100), 1'000'000, "cpu").status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(DivideMemory(options, kNeeds, 1'000'000, "cpu").ok()) << "without attention";
  }
}

}  // namespace
}  // namespace eddy
