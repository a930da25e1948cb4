// Proves what is sent and read over HTTP, against a real server on the loopback: requests, answers,
// connections that are kept, and that no server, however slow or dead, holds a request longer than
// the caller allows.
#include "server/http_post.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/clock.h"
#include "tests/testing/http_collector.h"

namespace eddy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

absl::Duration AMinute() { return absl::Minutes(1); }

TEST(HttpPost, SendsJsonAndReadsTheAnswer) {
  HttpCollector server([](int) { return HttpCollector::Answer{.body = "{\"a\":1}"}; });
  HttpPost post(server.url() + "/v1/traces");
  const HttpPost::Answer answer = post.Send("[1,2]", AMinute);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "{\"a\":1}");
  EXPECT_EQ(answer.error, "");
  EXPECT_FALSE(answer.retry_after.has_value());
  ASSERT_EQ(server.requests().size(), 1u);
  const HttpCollector::Request request = server.requests()[0];
  EXPECT_THAT(request.head, StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(request.head, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(request.head, HasSubstr("User-Agent: eddy/"));
  EXPECT_THAT(request.head, Not(HasSubstr("Expect")));
  EXPECT_EQ(request.body, "[1,2]");
}

TEST(HttpPost, KeepsItsConnectionAndSendsMuch) {
  HttpCollector server;
  HttpPost post(server.url());
  const std::string much(3 << 20, 'x');
  for (int i = 0; i < 3; ++i) EXPECT_EQ(post.Send(much, AMinute).status, 200);
  EXPECT_EQ(server.connections(), 1);
  EXPECT_EQ(server.requests()[2].body, much);
}

TEST(HttpPost, TellsStatusAndRetryAfter) {
  HttpCollector server([](int number) {
    return number == 0 ? HttpCollector::Answer{.status = 503, .headers = "Retry-After: 17\r\n"}
                       : HttpCollector::Answer{.status = 400, .body = std::string(100000, 'b')};
  });
  HttpPost post(server.url());
  const HttpPost::Answer busy = post.Send("{}", AMinute);
  EXPECT_EQ(busy.status, 503);
  EXPECT_EQ(busy.retry_after, absl::Seconds(17));
  const HttpPost::Answer wrong = post.Send("{}", AMinute);
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(wrong.body.size(), size_t{64} << 10);
  EXPECT_FALSE(wrong.retry_after.has_value());
}

TEST(HttpPost, FollowsNobodyElsewhere) {
  HttpCollector other;
  HttpCollector server([&](int) {
    return HttpCollector::Answer{.status = 307, .headers = "Location: " + other.url() + "/\r\n"};
  });
  EXPECT_EQ(HttpPost(server.url()).Send("{}", AMinute).status, 307);
  EXPECT_TRUE(other.requests().empty());
}

TEST(HttpPost, TellsWhenNobodyIsThere) {
  std::string url;
  {
    const HttpCollector gone;
    url = gone.url();
  }
  const HttpPost::Answer answer = HttpPost(url).Send("{}", AMinute);
  EXPECT_EQ(answer.status, 0);
  EXPECT_NE(answer.error, "");
}

TEST(HttpPost, TellsWhenTheServerHangsUpAndWorksAgain) {
  HttpCollector server([](int number) { return HttpCollector::Answer{.hang_up = number == 0}; });
  HttpPost post(server.url());
  EXPECT_EQ(post.Send("{}", AMinute).status, 0);
  EXPECT_EQ(post.Send("{}", AMinute).status, 200);
}

TEST(HttpPost, GivesUpWhenItsTimeIsOver) {
  HttpCollector server([](int) { return HttpCollector::Answer{.silent = true}; });
  HttpPost post(server.url());
  const RealClock clock;
  const absl::Duration end = clock.Steady() + absl::Milliseconds(50);
  const HttpPost::Answer answer = post.Send("{}", [&] { return end - clock.Steady(); });
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.error, "Timeout was reached");
  EXPECT_GE(clock.Steady(), end);
}

TEST(HttpPost, AsksForItsTimeAgainWhenItIsWoken) {
  HttpCollector server([](int) { return HttpCollector::Answer{.silent = true}; });
  HttpPost post(server.url());
  std::atomic<bool> stop = false;
  std::thread waker([&] {
    server.Await(1);
    stop = true;
    post.Wake();
  });
  const auto time_left = [&] { return stop ? absl::ZeroDuration() : absl::Hours(1); };
  EXPECT_EQ(post.Send("{}", time_left).status, 0);
  waker.join();
}

}  // namespace
}  // namespace eddy
