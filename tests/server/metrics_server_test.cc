// Proves that the metrics port serves the page of the registry and of the process, that port 0
// works, and that an address that cannot be had is one plain line and no exception.
#include "server/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace eddy {
namespace {

using testing::HasSubstr;
using testing::Not;

// The answer to GET /metrics with its headers; empty if there is none.
std::string Get(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

TEST(MetricsServer, ServesThePageOnAPortItPicks) {
  Metrics metrics({.model_name = "tales"});
  const auto server = MetricsServer::Start("127.0.0.1:0", &metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_GT((*server)->port(), 0);
  metrics.CountStall();
  const std::string page = Get((*server)->port());
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("\neddy_stream_stalls_total 1\n"));
  EXPECT_THAT(page, HasSubstr("\neddy_oldest_waiting_seconds{model_name=\"tales\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("\nprocess_cpu_seconds_total "));
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
  EXPECT_THAT(Get((*first)->port()), HasSubstr("200 OK"));
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
