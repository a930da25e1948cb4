// Proves that intake does every job it took, in a line that is bounded in jobs and tokens, and that
// long jobs never take all threads.
#include "server/intake.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/testing/moment.h"

namespace eddy {
namespace {

constexpr Intake::Length kShort = Intake::Length::kShort, kLong = Intake::Length::kLong;
constexpr Intake::Load kPlenty{.jobs = 1000, .tokens = 1000};

TEST(Intake, DoesAllJobsBeforeItIsGone) {
  std::atomic<int> done{0};
  {
    Intake intake(3);
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(intake.Push([&done] { ++done; }, kShort, 1, kPlenty));
      EXPECT_TRUE(intake.Push([&done] { ++done; }, kLong, 1, kPlenty));
    }
  }
  EXPECT_EQ(done, 200);
}

// A job that keeps a thread busy until it is let go. Outlives the intake.
struct BusyJob {
  void Occupy(Intake* intake, Intake::Length length = kShort) {
    const bool taken = intake->Push(
        [this] {
          begun.Come();
          go.Await();
        },
        length, 100, {.jobs = 1, .tokens = 100});
    EXPECT_TRUE(taken);
    begun.Await();
  }
  Moment begun, go;
};

TEST(Intake, CountsWhatWaitsButNotWhatIsBeingDone) {
  BusyJob busy;
  Intake intake(1);
  busy.Occupy(&intake);
  const Intake::Load most{.jobs = 2, .tokens = 10};
  EXPECT_EQ(intake.load().jobs, 0);
  EXPECT_TRUE(intake.Push([] {}, kShort, 4, most));
  EXPECT_TRUE(intake.Push([] {}, kShort, 6, most));
  EXPECT_EQ(intake.load().jobs, 2);
  EXPECT_EQ(intake.load().tokens, 10);
  EXPECT_FALSE(intake.Push([] {}, kShort, 0, most));
  busy.go.Come();
}

TEST(Intake, BoundsTheTokensButTakesASingleJobHoweverLarge) {
  BusyJob busy;
  Intake intake(1);
  busy.Occupy(&intake);
  const Intake::Load most{.jobs = 5, .tokens = 10};
  EXPECT_TRUE(intake.Push([] {}, kShort, 100, most));
  EXPECT_FALSE(intake.Push([] {}, kShort, 1, most));
  busy.go.Come();
}

TEST(Intake, LeavesAThreadToShortJobs) {
  BusyJob busy;
  Moment short_done, long_done;
  Intake intake(2);
  busy.Occupy(&intake, kLong);
  EXPECT_TRUE(intake.Push([&long_done] { long_done.Come(); }, kLong, 1, kPlenty));
  EXPECT_TRUE(intake.Push([&short_done] { short_done.Come(); }, kShort, 1, kPlenty));
  short_done.Await();
  EXPECT_EQ(intake.load().jobs, 1);  // the other long one
  busy.go.Come();
  long_done.Await();
}

TEST(Intake, DoesJobsInOrderWhereALongOneMayRun) {
  std::vector<int> order;
  {
    BusyJob busy;
    Intake intake(1);
    busy.Occupy(&intake);
    int number = 0;
    for (const Intake::Length length : {kLong, kShort, kShort, kLong, kShort}) {
      EXPECT_TRUE(intake.Push([&order, i = number++] { order.push_back(i); }, length, 1, kPlenty));
    }
    busy.go.Come();
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Intake, TakesNothingWhenOthersFillTheLine) {
  Intake intake(1);
  EXPECT_FALSE(intake.Push([] {}, kShort, 1, {.jobs = 0, .tokens = 10}));
}

}  // namespace
}  // namespace eddy
