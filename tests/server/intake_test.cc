// Proves that intake does every job it took, in a line that is bounded in jobs and tokens.
#include "server/intake.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/testing/moment.h"

namespace eddy {
namespace {

TEST(Intake, DoesAllJobsBeforeItIsGone) {
  std::atomic<int> done{0};
  {
    Intake intake(3);
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(intake.Push([&done] { ++done; }, 1, {.jobs = 1000, .tokens = 1000}));
    }
  }
  EXPECT_EQ(done, 100);
}

// A job that keeps a thread busy until it is let go. Outlives the intake.
struct BusyJob {
  void Occupy(Intake* intake) {
    const bool taken = intake->Push(
        [this] {
          begun.Come();
          go.Await();
        },
        100, {.jobs = 1, .tokens = 100});
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
  EXPECT_TRUE(intake.Push([] {}, 4, most));
  EXPECT_TRUE(intake.Push([] {}, 6, most));
  EXPECT_EQ(intake.load().jobs, 2);
  EXPECT_EQ(intake.load().tokens, 10);
  EXPECT_FALSE(intake.Push([] {}, 0, most));
  busy.go.Come();
}

TEST(Intake, BoundsTheTokensButTakesASingleJobHoweverLarge) {
  BusyJob busy;
  Intake intake(1);
  busy.Occupy(&intake);
  const Intake::Load most{.jobs = 5, .tokens = 10};
  EXPECT_TRUE(intake.Push([] {}, 100, most));
  EXPECT_FALSE(intake.Push([] {}, 1, most));
  busy.go.Come();
}

TEST(Intake, TakesNothingWhenOthersFillTheLine) {
  Intake intake(1);
  EXPECT_FALSE(intake.Push([] {}, 1, {.jobs = 0, .tokens = 10}));
}

}  // namespace
}  // namespace eddy
