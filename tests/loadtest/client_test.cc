// Proves what the generator measures against a server of known latencies in this process: the
// percentiles are those that the server kept, a stall is seen by every call that was due in it, no
// end is lost, and how many tokens a second the generator itself can take.
//
// Timers of a busy machine are late, for the server as for the client. So a measured time is
// compared with what the server did, not with what it meant to do; it can only be above, by what
// the machine took to carry it over.
#include "loadtest/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "loadtest/runner.h"
#include "loadtest/summary.h"
#include "tests/loadtest/fake_server.h"

namespace eddy::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::vector<double> kPercentiles = {10, 50, 90};
// Most that a machine with much other work may add to a percentile.
constexpr double kSlackMs = 60;

std::unique_ptr<Client> Connect(const std::string& target, ClientSettings settings = {}) {
  settings.target = target;
  auto client = Client::Connect(settings);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

RunResult RunLoad(Client* client, const WorkloadSettings& workload,
                  const Arrivals::Settings& arrivals, const RunSettings& settings = {}) {
  Runner runner(client, nullptr);
  CallSource source(workload, arrivals);
  return runner.Run(&source, settings);
}

Summary All(const RunResult& run) {
  return Summarize(run, {.percentiles = kPercentiles, .warmup_cut = 0, .seconds = 1000});
}

TEST(Client, MeasuresThePercentilesOfTheServer) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937_64 rng(seed);
  std::uniform_int_distribution<int> first_ms(50, 350);
  FakeServer server([&](int) {
    return FakeAnswer{.first = absl::Milliseconds(first_ms(rng)),
                      .between = absl::Milliseconds(20)};
  });
  const auto client = Connect(server.target());
  const RunResult run = RunLoad(client.get(), {.output = {.mean = 5}, .seed = seed},
                                {.rate = 100, .calls_max = 200, .seed = seed});
  const Summary summary = All(run);
  EXPECT_EQ(summary.completed, 200);
  EXPECT_EQ(summary.output_tokens, 1000);
  std::vector<double> kept;
  for (const FakeTimes& times : server.times()) kept.push_back(times.first_ms);
  const Distribution truth = Describe(kept, kPercentiles);
  ASSERT_EQ(truth.count, 200);
  for (size_t i = 0; i < kPercentiles.size(); ++i) {
    // A percentile of the planned times, 50 to 350 ms, is within 5 standard errors of its place.
    EXPECT_GT(truth.percentiles[i], 50 + 3 * (kPercentiles[i] - 18));
    EXPECT_GE(summary.ttft.percentiles[i], truth.percentiles[i] - 0.1);
    EXPECT_LE(summary.ttft.percentiles[i], truth.percentiles[i] + kSlackMs);
  }
  // The server keeps to a grid of 20 ms, so what one token is late the next is early.
  EXPECT_NEAR(summary.tpot.median, 20, 10);
  EXPECT_NEAR(summary.itl.mean, 20, 10);
}

TEST(Client, SeesAStallInEveryCallThatWasDueInIt) {
  // Calls of at least 1 ms, twenty a second for 3 s, and a second in which the server does nothing:
  // those due in it, a third of all, wait for its end, on average half a second. A generator that
  // waits for answers before it sends would see one slow call.
  FakeServer server([](int) { return FakeAnswer{.first = absl::Milliseconds(1)}; });
  const auto client = Connect(server.target());
  int ticks = 0;
  Runner runner(client.get(), [&](const RunProgress&) {
    if (++ticks == 1) server.Stall(absl::Seconds(1));
  });
  CallSource source(
      WorkloadSettings{.output = {.mean = 1}},
      Arrivals::Settings{.process = Arrivals::Process::kConstant, .rate = 20, .calls_max = 60});
  const Summary summary = All(runner.Run(&source, {}));
  EXPECT_EQ(summary.completed, 60);
  EXPECT_GE(summary.ttft.most, 850);
  // The slowest tenth, 6 of the 20 that were due: they came in the first 0.3 s of the stall.
  EXPECT_GE(summary.ttft.percentiles[2], 500);
  EXPECT_LE(summary.ttft.percentiles[1], 500);

  // The same stall in a closed loop of one stream: one call sees it, and the tail hides it.
  FakeServer stalling([](int number) {
    return FakeAnswer{.first = number == 20 ? absl::Seconds(1) : absl::Milliseconds(1)};
  });
  const auto closed = Connect(stalling.target());
  const Summary hidden = All(RunLoad(closed.get(), {.output = {.mean = 1}}, {.calls_max = 60},
                                     {.closed_loop = true, .concurrency_max = 1}));
  EXPECT_LE(hidden.ttft.percentiles[2], 500);
}

TEST(Client, CountsTheTokensOfEachMessage) {
  FakeServer server([](int) { return FakeAnswer{.tokens_per_message = 4}; });
  const auto client = Connect(server.target());
  const RunResult run = RunLoad(client.get(), {.output = {.mean = 10}}, {.calls_max = 1});
  ASSERT_EQ(run.calls[0].messages.size(), 3);
  EXPECT_EQ(run.calls[0].messages[0].tokens, 4);
  EXPECT_EQ(run.calls[0].messages[2].tokens, 2);
  EXPECT_EQ(All(run).itl.count, 6);
  EXPECT_EQ(All(run).icl.count, 2);
}

TEST(Client, CancelsAfterSoManyTokens) {
  FakeServer server([](int) { return FakeAnswer{.between = absl::Milliseconds(10)}; });
  const auto client = Connect(server.target());
  const RunResult run = RunLoad(
      client.get(), {.output = {.mean = 200}, .cancel_share = 1, .seed = 3}, {.calls_max = 5});
  const Summary summary = All(run);
  EXPECT_EQ(summary.cancelled, 5);
  EXPECT_EQ(summary.failed, 0);
  for (const CallRecord& call : run.calls) {
    EXPECT_EQ(call.code, 1);
    EXPECT_GE(call.tokens(), call.plan.cancel_after);
    EXPECT_LT(call.tokens(), 200);
  }
}

TEST(Client, CountsRefusalsByCode) {
  FakeServer server([](int number) {
    return FakeAnswer{.refusal = number % 2 == 0
                                     ? grpc::Status(grpc::RESOURCE_EXHAUSTED, "the line is full")
                                     : grpc::Status::OK,
                      .tokens_missing = 1};
  });
  const auto client = Connect(server.target());
  const RunResult run = RunLoad(client.get(), {.output = {.mean = 3}}, {.calls_max = 10},
                                {.closed_loop = true, .concurrency_max = 1});
  const Summary summary = All(run);
  EXPECT_EQ(summary.completed, 5);
  EXPECT_THAT(summary.failures, ElementsAre(Pair("RESOURCE_EXHAUSTED", 5)));
  EXPECT_EQ(run.calls[0].error, "the line is full");
  EXPECT_EQ(summary.short_answers, 5);
}

TEST(Client, RepeatsWhatWasRefusedIfAskedTo) {
  FakeServer server([](int number) {
    return FakeAnswer{.refusal = number < 2 ? grpc::Status(grpc::UNAVAILABLE, "draining")
                                            : grpc::Status::OK};
  });
  const auto client = Connect(server.target(), {.retries = 3});
  const Summary summary = All(RunLoad(client.get(), {.output = {.mean = 3}}, {.calls_max = 1}));
  EXPECT_EQ(summary.completed, 1);
}

TEST(Client, ReadsSlowlyWithoutLosingTokens) {
  FakeServer server([](int) { return FakeAnswer{}; });
  const auto client = Connect(server.target(), {.slow_reader_pause = absl::Milliseconds(30)});
  const RunResult run =
      RunLoad(client.get(), {.output = {.mean = 6}, .slow_reader_share = 1}, {.calls_max = 3});
  EXPECT_EQ(All(run).slow_readers, 3);
  EXPECT_EQ(All(run).ttft.count, 0);
  for (const CallRecord& call : run.calls) {
    EXPECT_TRUE(call.ok());
    EXPECT_EQ(call.tokens(), 6);
    EXPECT_GE(call.e2e_ms(), 5 * 30);
  }
}

TEST(Client, AsksForTheSamePromptsAgainWithOneSeed) {
  std::vector<std::vector<uint32_t>> prompts[2];
  for (auto& seen : prompts) {
    FakeServer server([](int) { return FakeAnswer{}; });
    const auto client = Connect(server.target());
    RunLoad(client.get(),
            {.prompt = {.mean = 8, .range_ratio = 0.5}, .output = {.mean = 2}, .seed = 9},
            {.calls_max = 5}, {.closed_loop = true, .concurrency_max = 1});
    for (const FakeTimes& times : server.times()) seen.push_back(times.prompt);
  }
  EXPECT_EQ(prompts[0].size(), 5);
  EXPECT_EQ(prompts[0], prompts[1]);
  EXPECT_NE(prompts[0][0], prompts[0][1]);
}

TEST(Client, BalancesAndRetriesAsClientsOfTheServiceDo) {
  std::ifstream file("deploy/k8s/client-service-config.json");
  const auto theirs = nlohmann::json::parse(file);
  const auto ours = nlohmann::json::parse(ServiceConfig("round_robin", 3));
  EXPECT_EQ(ours["loadBalancingConfig"], theirs["loadBalancingConfig"]);
  EXPECT_EQ(ours["healthCheckConfig"], theirs["healthCheckConfig"]);
  EXPECT_EQ(ours["methodConfig"][0]["retryPolicy"], theirs["methodConfig"][0]["retryPolicy"]);
  const auto plain = nlohmann::json::parse(ServiceConfig("pick_first", 0));
  EXPECT_EQ(plain.size(), 1);
}

TEST(Client, TellsThatNobodyAnswers) {
  std::string target;
  {
    FakeServer gone([](int) { return FakeAnswer{}; });
    target = gone.target();
  }
  ClientSettings settings = {.target = target};
  EXPECT_THAT(std::string(Client::Connect(settings).status().message()), HasSubstr(target));
}

TEST(Client, HasHeadRoom) {
  // As many tokens as a server in the same process can give, one a message. The figure is what the
  // README quotes; the bound is what a test on a busy machine with sanitizers still reaches.
  FakeServer server([](int) { return FakeAnswer{}; });
  const auto client = Connect(server.target(), {.channels = 2});
  const RunResult run = RunLoad(client.get(), {.output = {.mean = 1000}}, {.calls_max = 64},
                                {.closed_loop = true, .concurrency_max = 16});
  const Summary summary = All(run);
  EXPECT_EQ(summary.completed, 64);
  EXPECT_EQ(summary.output_tokens, 64000);
  const double rate = static_cast<double>(summary.output_tokens) / summary.run_seconds;
  std::cout << "head-room: " << static_cast<int64_t>(rate)
            << " tokens/s, one a message, server and client in one process" << std::endl;
  EXPECT_GT(rate, 2000);
}

}  // namespace
}  // namespace eddy::loadtest
