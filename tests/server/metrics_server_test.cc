// Proves that the metrics port serves the page of the registry and of the process, that port 0
// works, that silent clients keep nobody from it, and that an address that cannot be had is one
// plain line and no exception.
#include "server/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/testing/get_metrics.h"

namespace eddy {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsServer, ServesThePageOnAPortItPicks) {
  Metrics metrics({.model_name = "tales"});
  const auto server = MetricsServer::Start("127.0.0.1:0", &metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_GT((*server)->port(), 0);
  metrics.CountStall();
  const std::string page = GetMetrics((*server)->port());
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("\neddy_stream_stalls_total 1\n"));
  EXPECT_THAT(page, HasSubstr("\neddy_oldest_waiting_seconds{model_name=\"tales\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("\nprocess_cpu_seconds_total "));
}

// Connections that send half a request take no scrape its turn for longer than a scraper waits,
// which is ten seconds by default.
TEST(MetricsServer, ServesThePageBesideClientsThatSayNothing) {
  const Metrics metrics({.model_name = "tales"});
  const auto server = MetricsServer::Start("127.0.0.1:0", &metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> silent;
  for (int i = 0; i < 12; ++i) {
    silent.push_back(ConnectTo((*server)->port()));
    ASSERT_EQ(write(silent.back(), "GET /met", 8), 8);
  }
  const absl::Time began = absl::Now();
  EXPECT_THAT(GetMetrics((*server)->port()), HasSubstr("200 OK"));
  EXPECT_LT(absl::Now() - began, absl::Seconds(8));
  for (const int fd : silent) close(fd);
}

TEST(MetricsServer, NamesAnAddressThatItCannotHave) {
  const Metrics metrics({.model_name = "tales"});
  const auto first = MetricsServer::Start("127.0.0.1:0", &metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string taken = "127.0.0.1:" + std::to_string((*first)->port());
  for (const std::string& listen : {taken, std::string("192.0.2.1:0"), std::string("[::1]:0")}) {
    const auto second = MetricsServer::Start(listen, &metrics);
    ASSERT_FALSE(second.ok()) << listen;
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
    const std::string message(second.status().message());
    EXPECT_THAT(message, HasSubstr("metrics_listen"));
    EXPECT_THAT(message, HasSubstr(listen));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }
  EXPECT_THAT(GetMetrics((*first)->port()), HasSubstr("200 OK"));
}

TEST(MetricsServer, FreesItsPortWhenItIsDestroyed) {
  const Metrics metrics({.model_name = "tales"});
  auto first = MetricsServer::Start("127.0.0.1:0", &metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string listen = "127.0.0.1:" + std::to_string((*first)->port());
  first->reset();
  EXPECT_TRUE(MetricsServer::Start(listen, &metrics).ok());
}

}  // namespace
}  // namespace eddy
