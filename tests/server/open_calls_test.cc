// Proves that stuck calls are cut and no others, and that the last one to go is told.
#include "server/open_calls.h"

#include <gtest/gtest.h>

namespace eddy {
namespace {

class FakeOpenCall : public OpenCall {
 public:
  explicit FakeOpenCall(absl::Time writing_since) : writing_since_(writing_since) {}
  bool BeginCut(absl::Time since) override { return writing_since_ <= since; }
  void FinishCut() override { ++cuts; }
  int cuts = 0;

 private:
  const absl::Time writing_since_;
};

TEST(OpenCalls, CutsThoseThatAreStuckAndTellsWhenNoneIsLeft) {
  int none_left = 0;
  OpenCalls calls([&none_left] { ++none_left; });
  FakeOpenCall stuck(absl::FromUnixSeconds(1)), fresh(absl::FromUnixSeconds(9));
  calls.Add(&stuck);
  calls.Add(&fresh);
  EXPECT_EQ(calls.CutStalled(absl::FromUnixSeconds(5)), 1);
  EXPECT_EQ(stuck.cuts, 1);
  EXPECT_EQ(fresh.cuts, 0);
  calls.Remove(&stuck);
  EXPECT_EQ(none_left, 0);
  EXPECT_EQ(calls.count(), 1);
  calls.Remove(&fresh);
  EXPECT_EQ(none_left, 1);
}

}  // namespace
}  // namespace eddy
