// Proves that metrics pages are read, that counters are told by what they gained, and that the
// scraper reads at both ends.
#include "loadtest/scrape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eddy::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(Metrics, AreReadFromTheirPage) {
  const auto metrics = ParseMetrics(
      "# HELP a_total What.\n# TYPE a_total counter\n"
      "a_total{model_name=\"x y\",to=\"}\"} 12\nb 1.5e3 1700000000\n\nc +Inf\n");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT(*metrics,
              ElementsAre(Pair("a_total{model_name=\"x y\",to=\"}\"}", 12), Pair("b", 1500),
                          Pair("c", std::numeric_limits<double>::infinity())));
  EXPECT_THAT(std::string(ParseMetrics("<html>\n").status().message()), HasSubstr("<html>"));
  EXPECT_FALSE(ParseMetrics("a x\n").ok());
}

TEST(Metrics, TellWhatCountersGainedAndWhereGaugesAre) {
  const Metrics before = {{"a_total{x=\"1\"}", 5},
                          {"h_sum", 1.5},
                          {"h_count", 2},
                          {"h_bucket{le=\"1\"}", 2},
                          {"gauge", 7}};
  const Metrics after = {{"a_total{x=\"1\"}", 8},   {"h_sum", 4.5}, {"h_count", 6},
                         {"h_bucket{le=\"1\"}", 6}, {"gauge", 9},   {"new_total", 3}};
  EXPECT_THAT(Difference(before, after),
              ElementsAre(Pair("a_total{x=\"1\"}", 3), Pair("gauge", 9), Pair("h_count", 4),
                          Pair("h_sum", 3), Pair("new_total", 3)));
}

TEST(WindowScraper, ReadsAtBothEnds) {
  std::atomic<int> reads = 0;
  WindowScraper scraper([&]() -> absl::StatusOr<std::string> {
    return absl::StrCat("a_total ", 10 * ++reads, "\n");
  });
  scraper.Start(0.02, 0.04);
  // Its end may come before both times; then both are read now.
  const auto result = scraper.Finish();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(result->change.at("a_total"), 10);
  EXPECT_LE(result->begin_s, result->end_s);
}

TEST(WindowScraper, TellsThatThePageCannotBeRead) {
  WindowScraper scraper(
      []() -> absl::StatusOr<std::string> { return absl::UnavailableError("nobody there"); });
  scraper.Start(0, std::numeric_limits<double>::infinity());
  EXPECT_EQ(scraper.Finish().status().message(), "nobody there");
}

}  // namespace
}  // namespace eddy::loadtest
