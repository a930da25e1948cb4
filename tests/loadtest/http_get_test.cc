// Proves the GET against a server of one answer on a loopback port.
#include "loadtest/http_get.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eddy::loadtest {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Gives its answer to one client and closes the connection.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OneAnswer() {
    thread_.join();
    close(listener_);
  }
  std::string Url(const std::string& path) const {
    return absl::StrCat("http://127.0.0.1:", port_, path);
  }
  const std::string& request() {  // after HttpGet returned
    return request_;
  }

 private:
  void Serve() {
    const int client = accept(listener_, nullptr, nullptr);
    char buffer[4096];
    while (request_.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = recv(client, buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      request_.append(buffer, static_cast<size_t>(got));
    }
    EXPECT_EQ(send(client, answer_.data(), answer_.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer_.size()));
    close(client);
  }

  const std::string answer_;
  std::string request_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

TEST(HttpGet, GivesTheBody) {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n");
  const auto body = HttpGet(server.Url("/metrics"), absl::Seconds(5));
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, "a 1\n");
  EXPECT_THAT(server.request(), StartsWith("GET /metrics HTTP/1.0\r\n"));
}

TEST(HttpGet, TellsAnyOtherAnswer) {
  OneAnswer missing("HTTP/1.1 404 Not Found\r\n\r\nnothing");
  EXPECT_THAT(std::string(HttpGet(missing.Url("/x"), absl::Seconds(5)).status().message()),
              HasSubstr("/x: answered \"HTTP/1.1 404 Not Found\""));
  OneAnswer garbage("hello");
  EXPECT_EQ(HttpGet(garbage.Url("/"), absl::Seconds(5)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(HttpGet, TellsThatNobodyListens) {
  std::string url;
  {
    OneAnswer gone("HTTP/1.1 200 OK\r\n\r\n");
    url = gone.Url("/metrics");
    EXPECT_TRUE(HttpGet(url, absl::Seconds(5)).ok());
  }
  EXPECT_THAT(std::string(HttpGet(url, absl::Seconds(5)).status().message()),
              HasSubstr("cannot connect"));
}

TEST(HttpGet, TakesOnlyUrlsOfItsForm) {
  for (const char* url :
       {"https://a:1/", "http://a/metrics", "http://a:1", "http://:1/", "a:1/m"}) {
    EXPECT_EQ(HttpGet(url, absl::Seconds(1)).status().code(), absl::StatusCode::kInvalidArgument)
        << url;
  }
}

}  // namespace
}  // namespace eddy::loadtest
