// Proves how spans reach a collector, and that a collector that is slow, dead, busy or choosy costs
// spans, which are counted, and nothing else. The collectors are real servers on the loopback; no
// test waits for a time to pass but for those that prove a bound.
#include "server/trace_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/http_collector.h"

namespace eddy {
namespace {

using Answer = HttpCollector::Answer;
using Lost = TraceObserver::Lost;
using ::testing::HasSubstr;

class Tally : public TraceObserver {
 public:
  void SpansSent(int spans) override {
    MutexLock lock(&mu_);
    sent_ += spans;
    news_.NotifyAll();
  }
  void SpansLost(Lost why, int spans) override {
    MutexLock lock(&mu_);
    lost_[why] += spans;
    news_.NotifyAll();
  }
  int sent() {
    MutexLock lock(&mu_);
    return sent_;
  }
  int lost(Lost why) {
    MutexLock lock(&mu_);
    return lost_[why];
  }
  // Until so many are sent or lost; a minute at most.
  void Await(int spans) {
    MutexLock lock(&mu_);
    const absl::Time late = absl::Now() + absl::Minutes(1);
    while (Known() < spans && absl::Now() < late) news_.WaitFor(&mu_, late - absl::Now());
    EXPECT_EQ(Known(), spans);
  }

 private:
  int Known() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int known = sent_;
    for (const auto& [why, spans] : lost_) known += spans;
    return known;
  }

  Mutex mu_;
  CondVar news_;
  int sent_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Lost, int> lost_ ABSL_GUARDED_BY(mu_);
};

// One span.
CallRecord Call(int number = 0) {
  return {.place = PlaceInTrace("", "", 1),
          .service = "eddy.v1.ModelService",
          .method = "GetModel",
          .request_id = absl::StrCat("call-", number),
          .start = absl::UnixEpoch()};
}

// Everything at once, and pauses too short to be noticed.
TraceExporter::Options Fast(const std::string& endpoint) {
  return {.endpoint = endpoint,
          .resource = {{"service.name", "test"}},
          .model_name = "m",
          .batch_delay = absl::Milliseconds(1),
          .retry_first = absl::Milliseconds(1),
          .retry_longest = absl::Milliseconds(2),
          .drain_timeout = absl::Minutes(1)};
}

std::vector<std::string> RequestIds(const HttpCollector::Request& request) {
  std::vector<std::string> ids;
  const nlohmann::json body = nlohmann::json::parse(request.body);
  for (const nlohmann::json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
    for (const nlohmann::json& attribute : span["attributes"]) {
      if (attribute["key"] == "eddy.request_id") ids.push_back(attribute["value"]["stringValue"]);
    }
  }
  return ids;
}

class TraceExporterTest : public ::testing::Test {
 protected:
  RealClock clock_;
  Tally tally_;
};

TEST_F(TraceExporterTest, SendsEveryCallOnceAndInOrder) {
  HttpCollector collector;
  TraceExporter::Options options = Fast(collector.url() + "/");
  options.batch_calls_max = 7;
  {
    TraceExporter exporter(options, &clock_, &tally_);
    for (int i = 0; i < 100; ++i) exporter.Put(Call(i));
  }
  std::vector<std::string> ids, expected;
  for (const HttpCollector::Request& request : collector.requests()) {
    EXPECT_THAT(request.head, HasSubstr("POST /v1/traces HTTP/1.1\r\n"));
    const std::vector<std::string> some = RequestIds(request);
    EXPECT_LE(some.size(), 7u);
    ids.insert(ids.end(), some.begin(), some.end());
  }
  for (int i = 0; i < 100; ++i) expected.push_back(absl::StrCat("call-", i));
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(tally_.sent(), 100);
}

TEST_F(TraceExporterTest, SendsAFullBatchBeforeItsTime) {
  HttpCollector collector;
  TraceExporter::Options options = Fast(collector.url());
  options.batch_delay = absl::Hours(1);
  options.batch_calls_max = 3;
  TraceExporter exporter(options, &clock_, &tally_);
  for (int i = 0; i < 4; ++i) exporter.Put(Call(i));
  tally_.Await(3);
  ASSERT_EQ(collector.requests().size(), 1u);
  EXPECT_EQ(RequestIds(collector.requests()[0]).size(), 3u);
}

TEST_F(TraceExporterTest, SendsASingleCallWhenItsTimeHasCome) {
  HttpCollector collector;
  TraceExporter exporter(Fast(collector.url()), &clock_, &tally_);
  exporter.Put(Call());
  tally_.Await(1);
  EXPECT_EQ(tally_.sent(), 1);
}

TEST_F(TraceExporterTest, TriesAgainWhereTheProtocolSaysSo) {
  for (const int status : {429, 502, 503, 504, 0}) {
    HttpCollector collector([&](int number) {
      return number < 3 ? Answer{.status = status, .hang_up = status == 0} : Answer{};
    });
    Tally tally;
    TraceExporter exporter(Fast(collector.url()), &clock_, &tally);
    exporter.Put(Call());
    tally.Await(1);
    EXPECT_EQ(tally.sent(), 1) << status;
    const std::vector<HttpCollector::Request> requests = collector.requests();
    ASSERT_EQ(requests.size(), 4u) << status;
    EXPECT_EQ(requests[0].body, requests[3].body);
  }
}

TEST_F(TraceExporterTest, TakesAnyOtherAnswerAsFinal) {
  for (const int status : {301, 400, 401, 404, 413, 500, 501}) {
    HttpCollector collector([&](int) { return Answer{.status = status}; });
    Tally tally;
    TraceExporter exporter(Fast(collector.url()), &clock_, &tally);
    exporter.Put(Call());
    tally.Await(1);
    EXPECT_EQ(tally.lost(Lost::kRefused), 1) << status;
    EXPECT_EQ(collector.requests().size(), 1u) << status;
  }
}

TEST_F(TraceExporterTest, WaitsAsLongAsTheCollectorAsks) {
  absl::Duration came[2];  // the collector's thread writes it, before it answers
  HttpCollector collector([&](int number) {
    came[number] = clock_.Steady();
    return number == 0 ? Answer{.status = 503, .headers = "Retry-After: 1\r\n"} : Answer{};
  });
  TraceExporter::Options options = Fast(collector.url());
  TraceExporter exporter(options, &clock_, &tally_);
  exporter.Put(Call());
  tally_.Await(1);
  EXPECT_EQ(tally_.sent(), 1);
  EXPECT_GE(came[1] - came[0], absl::Seconds(1));
}

TEST_F(TraceExporterTest, WaitsWithTheNextWhenTheCollectorAsksForLongerThanABatchIsKept) {
  HttpCollector collector([](int number) {
    return number == 0 ? Answer{.status = 429, .headers = "Retry-After: 250\r\n"} : Answer{};
  });
  TraceExporter::Options options = Fast(collector.url());
  options.batch_calls_max = 1;
  {
    TraceExporter exporter(options, &clock_, &tally_);
    exporter.Put(Call());
    tally_.Await(1);
    EXPECT_EQ(tally_.lost(Lost::kUnreachable), 1);
    for (int i = 0; i < 100; ++i) exporter.Put(Call(i));
    EXPECT_EQ(collector.requests().size(), 1u);
  }
  EXPECT_EQ(tally_.sent(), 100);  // the end of the program does not wait
}

TEST_F(TraceExporterTest, GivesUpOnACollectorThatIsGone) {
  std::string url;
  {
    const HttpCollector gone;
    url = gone.url();
  }
  TraceExporter::Options options = Fast(url);
  options.retry_time = absl::Milliseconds(20);
  TraceExporter exporter(options, &clock_, &tally_);
  exporter.Put(Call());
  tally_.Await(1);
  EXPECT_EQ(tally_.lost(Lost::kUnreachable), 1);
}

TEST_F(TraceExporterTest, GoesOnWithTheNextAfterABatchWasLost) {
  HttpCollector collector([](int number) { return Answer{.status = number == 0 ? 400 : 200}; });
  TraceExporter exporter(Fast(collector.url()), &clock_, &tally_);
  exporter.Put(Call());
  tally_.Await(1);
  exporter.Put(Call());
  tally_.Await(2);
  EXPECT_EQ(tally_.sent(), 1);
  EXPECT_EQ(tally_.lost(Lost::kRefused), 1);
}

TEST_F(TraceExporterTest, CountsWhatTheCollectorTookOnlyInPart) {
  HttpCollector collector(
      [](int) { return Answer{.body = R"({"partialSuccess": {"rejectedSpans": "2"}})"}; });
  TraceExporter::Options options = Fast(collector.url());
  options.batch_delay = absl::Hours(1);
  options.batch_calls_max = 5;
  TraceExporter exporter(options, &clock_, &tally_);
  for (int i = 0; i < 5; ++i) exporter.Put(Call(i));
  tally_.Await(5);
  EXPECT_EQ(tally_.sent(), 3);
  EXPECT_EQ(tally_.lost(Lost::kRefused), 2);
}

// The collector holds the first request until all have been put: then the queue is full, the rest
// is dropped, and putting it took no time of the collector's.
TEST_F(TraceExporterTest, DropsWhatDoesNotFitBehindASlowCollector) {
  Mutex mu;
  CondVar opened;
  bool open = false;
  HttpCollector collector([&](int) {
    MutexLock lock(&mu);
    while (!open) opened.Wait(&mu);
    return Answer{};
  });
  TraceExporter::Options options = Fast(collector.url());
  options.queue_calls_max = 10;
  options.batch_calls_max = 1;
  TraceExporter exporter(options, &clock_, &tally_);
  exporter.Put(Call());
  collector.Await(1);  // the queue is empty again
  for (int i = 0; i < 1000; ++i) exporter.Put(Call(i));
  EXPECT_EQ(tally_.lost(Lost::kQueueFull), 990);
  EXPECT_EQ(tally_.sent(), 0);
  {
    MutexLock lock(&mu);
    open = true;
    opened.NotifyAll();
  }
  tally_.Await(1001);
  EXPECT_EQ(tally_.sent(), 11);
}

TEST_F(TraceExporterTest, DropsWholeCalls) {
  HttpCollector collector([](int) { return Answer{.silent = true}; });
  TraceExporter::Options options = Fast(collector.url());
  options.queue_calls_max = 0;
  options.drain_timeout = absl::ZeroDuration();
  TraceExporter exporter(options, &clock_, &tally_);
  CallRecord call = Call();
  call.tally.phase = Phase::kDecode;
  exporter.Put(call);
  EXPECT_EQ(tally_.lost(Lost::kQueueFull), 5);
}

TEST_F(TraceExporterTest, StopsWithinItsBoundThoughTheCollectorNeverAnswers) {
  HttpCollector collector([](int) { return Answer{.silent = true}; });
  TraceExporter::Options options = Fast(collector.url());
  options.batch_calls_max = 1;
  options.drain_timeout = absl::Milliseconds(30);
  auto exporter = std::make_unique<TraceExporter>(options, &clock_, &tally_);
  for (int i = 0; i < 3; ++i) exporter->Put(Call(i));
  collector.Await(1);
  const absl::Duration began = clock_.Steady();
  exporter.reset();
  EXPECT_LT(clock_.Steady() - began, absl::Seconds(5));  // the answer's time is 10 s
  EXPECT_EQ(tally_.lost(Lost::kShutdown), 3);
}

TEST_F(TraceExporterTest, DoesNotPauseOnceItIsStopped) {
  HttpCollector collector([](int) { return Answer{.status = 503}; });
  TraceExporter::Options options = Fast(collector.url());
  options.batch_calls_max = 1;
  options.retry_first = options.retry_longest = options.retry_time = absl::Hours(1);
  options.drain_timeout = absl::Hours(1);
  auto exporter = std::make_unique<TraceExporter>(options, &clock_, &tally_);
  for (int i = 0; i < 50; ++i) exporter->Put(Call(i));
  collector.Await(1);
  exporter.reset();
  EXPECT_EQ(tally_.lost(Lost::kShutdown), 50);
  EXPECT_LE(collector.requests().size(), 2u);  // one try more for the first, none for the rest
}

TEST_F(TraceExporterTest, TakesCallsFromManyThreads) {
  HttpCollector collector;
  {
    TraceExporter exporter(Fast(collector.url()), &clock_, &tally_);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 300; ++i) exporter.Put(Call(i));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(tally_.sent(), 1200);
}

}  // namespace
}  // namespace eddy
