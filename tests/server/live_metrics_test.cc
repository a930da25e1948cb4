// Proves that the age of the waiting line grows while the engine stands still, and that what the
// process uses is told in the units of the names.
#include "server/live_metrics.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/server/metrics_page.h"

namespace eddy {
namespace {

class FixedClock : public Clock {
 public:
  explicit FixedClock(absl::Time now) : now_(now) {}
  absl::Time Now() const override { return now_; }
  absl::Duration Steady() const override { return now_ - absl::UnixEpoch(); }

 private:
  const absl::Time now_;
};

TEST(LiveMetrics, GrowsTheAgeOfTheLineWithoutAnyStep) {
  Metrics metrics({.model_name = "m"});
  const std::string name = "eddy_oldest_waiting_seconds{model_name=\"m\"}";
  const auto age = [&](int64_t now) {
    const FixedClock clock(absl::FromUnixSeconds(now));
    return Parse(Text(LiveMetrics(&metrics, &clock).Collect())).at(name);
  };
  EXPECT_EQ(age(1000), 0);
  metrics.ObserveStep({.waiting = 1, .oldest_waiting = absl::FromUnixSeconds(1000)});
  EXPECT_EQ(age(1007), 7);
  EXPECT_EQ(age(1100), 100);
  EXPECT_EQ(age(999), 0);
  metrics.ObserveStep({.waiting = 0});
  EXPECT_EQ(age(1200), 0);
}

TEST(LiveMetrics, SaysWhatTheProcessUses) {
  const Metrics metrics({.model_name = "m"});
  const RealClock clock;
  const Page page = Parse(Text(LiveMetrics(&metrics, &clock).Collect()));
  EXPECT_GT(page.at("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(page.at("process_virtual_memory_bytes"), page.at("process_resident_memory_bytes"));
  EXPECT_GE(page.at("process_cpu_seconds_total"), 0);
  EXPECT_GE(page.at("process_open_fds"), 3);
  EXPECT_LT(page.at("process_open_fds"), page.at("process_max_fds"));
  // Started before now, and not longer ago than a test may take.
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_LE(page.at("process_start_time_seconds"), now + 1);
  EXPECT_GT(page.at("process_start_time_seconds"), now - 3600);
}

}  // namespace
}  // namespace eddy
