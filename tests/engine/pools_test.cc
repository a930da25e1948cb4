// Proves of slots and pages: every one is given out, number 0 never, none twice; a right moves and
// is given back exactly once; and debug builds notice a right that is used after it was moved or
// whose slot went to somebody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <random>
#include <set>

#include "engine/page_pool.h"
#include "engine/state_pool.h"

namespace eddy {

// Plants the fault that the generations are there to find.
struct StatePoolPeer {
  static void FreeBehindTheOwnersBack(StatePool* pool, int32_t index) {
    pool->free_.push_back(index);
  }
  static int32_t StealBack(StatePool* pool) {
    const int32_t index = pool->free_.back();
    pool->free_.pop_back();
    return index;
  }
};

namespace {

TEST(StatePool, GivesOutEverySlotOnceAndNeverTheNullSlot) {
  StatePool pool(5);
  std::vector<StateSlot> held;
  std::set<int32_t> seen;
  while (std::optional<StateSlot> slot = pool.Acquire()) {
    seen.insert(slot->index());
    held.push_back(*std::move(slot));
  }
  EXPECT_THAT(seen, testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(held.size(), 5u);
  EXPECT_EQ(pool.free_slots(), 0);
  held.clear();
  EXPECT_EQ(pool.free_slots(), 5);
}

TEST(StatePool, GivesTheSlotThatWasFreedLast) {
  StatePool pool(3);
  std::optional<StateSlot> a = pool.Acquire(), b = pool.Acquire();
  const int32_t freed = a->index();
  a.reset();
  EXPECT_EQ(pool.Acquire()->index(), freed);
}

TEST(StatePool, MovesTheRightAndFreesItOnce) {
  StatePool pool(1);
  {
    StateSlot a = *pool.Acquire();
    const StateSlot b = std::move(a);
    EXPECT_EQ(b.index(), 1);
    EXPECT_EQ(pool.free_slots(), 0);
  }
  EXPECT_EQ(pool.free_slots(), 1);
}

#ifndef NDEBUG
TEST(StatePoolDeath, NoticesARightThatWasMovedAway) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  StatePool pool(1);
  StateSlot a = *pool.Acquire();
  const StateSlot b = std::move(a);
  EXPECT_DEATH(a.index(), "pool_ != nullptr");
}

TEST(StatePoolDeath, NoticesThatTheSlotWentToSomebodyElse) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto use_after_handing_on = [] {
    StatePool pool(1);
    const StateSlot old_owner = *pool.Acquire();
    StatePoolPeer::FreeBehindTheOwnersBack(&pool, old_owner.index());
    const StateSlot new_owner = *pool.Acquire();
    std::printf("%d\n", new_owner.index());
    std::printf("%d\n", old_owner.index());
  };
  EXPECT_DEATH(use_after_handing_on(), "Owns");
}

TEST(StatePoolDeath, NoticesThatARightIsStillOutWhenItEnds) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto lose = [] {
    StatePool pool(2);
    StatePoolPeer::StealBack(&pool);
  };
  EXPECT_DEATH(lose(), "free_slots");
}
#endif

TEST(PagePool, RoundsUpAndSaysWhatCanEverFit) {
  const PagePool pool(/*pages=*/4, /*rows_per_page=*/16);
  EXPECT_EQ(pool.PagesFor(1), 1);
  EXPECT_EQ(pool.PagesFor(16), 1);
  EXPECT_EQ(pool.PagesFor(17), 2);
  EXPECT_TRUE(pool.CanEverHold(64));
  EXPECT_FALSE(pool.CanEverHold(65));
  EXPECT_FALSE(pool.CanEverHold(int64_t{1} << 40));
}

TEST(PagePool, NeedsNoMoreThanARingWhereAllLayersHaveWindows) {
  PagePool pool({.pages = 7, .rows_per_page = 16, .pages_per_sequence = 3});
  EXPECT_EQ(pool.PagesFor(17), 2);
  EXPECT_EQ(pool.PagesFor(48), 3);
  EXPECT_EQ(pool.PagesFor(49), 3);
  EXPECT_TRUE(pool.CanEverHold(int64_t{1} << 40));
  const auto a = pool.Reserve(int64_t{1} << 40), b = pool.Reserve(1000);
  EXPECT_EQ(a->pages().size(), 3u);
  EXPECT_FALSE(pool.Reserve(1000).has_value());
  EXPECT_TRUE(pool.Reserve(16).has_value());
}

TEST(PagePool, NeedsNoPagesWithoutAttention) {
  PagePool pool(0, 0);
  EXPECT_TRUE(pool.CanEverHold(int64_t{1} << 40));
  EXPECT_TRUE(pool.Reserve(1'000'000)->pages().empty());
}

TEST(PagePool, GivesAllThatIsAskedForOrNothing) {
  PagePool pool(4, 16);
  const std::optional<PageLease> a = pool.Reserve(33);
  EXPECT_EQ(a->pages().size(), 3u);
  EXPECT_FALSE(pool.Reserve(17).has_value());
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_TRUE(pool.Reserve(16).has_value());
  EXPECT_EQ(pool.free_pages(), 1);
}

TEST(PagePool, NeverGivesAPageToTwoNorThePageThatIsNobodys) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  PagePool pool(40, 4);
  std::list<PageLease> held;
  for (int i = 0; i < 2000; ++i) {
    if (std::optional<PageLease> lease = pool.Reserve(1 + rng() % 60)) {
      held.push_back(*std::move(lease));
    }
    if (!held.empty() && rng() % 2 == 0) {
      held.erase(std::next(held.begin(), static_cast<int>(rng() % held.size())));
    }
    std::set<int32_t> seen;
    size_t count = 0;
    for (const PageLease& lease : held) {
      seen.insert(lease.pages().begin(), lease.pages().end());
      count += lease.pages().size();
    }
    ASSERT_EQ(seen.size(), count);
    ASSERT_TRUE(seen.empty() || (*seen.begin() >= 1 && *seen.rbegin() <= 40));
    ASSERT_EQ(pool.free_pages(), 40 - static_cast<int>(count));
  }
  held.clear();
  EXPECT_EQ(pool.free_pages(), 40);
}

}  // namespace
}  // namespace eddy
