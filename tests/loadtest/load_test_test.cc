// Proves whole tests against a fake server: points, repeats, the sweep to saturation, saved
// results.
#include "loadtest/load_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/loadtest/fake_server.h"

namespace eddy::loadtest {
namespace {

using ::testing::HasSubstr;

// Runs the flags against `server`; what is printed is thrown away.
absl::StatusOr<LoadTestResult> RunFlags(const FakeServer& server, std::vector<std::string> args) {
  args.push_back("--target=" + server.target());
  const auto read = ReadOptions(args);
  if (!read.ok()) return read.status();
  auto client = Client::Connect(read->options->client);
  if (!client.ok()) return client.status();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::tmpfile(), std::fclose);
  return RunLoadTest(*read->options, client->get(), out.get(), out.get());
}

std::vector<nlohmann::json> Saved(const std::string& path) {
  std::vector<nlohmann::json> results;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) results.push_back(nlohmann::json::parse(line));
  return results;
}

TEST(LoadTest, RunsEachPointAndSavesIt) {
  FakeServer server([](int) { return FakeAnswer{}; });
  const std::string path = ::testing::TempDir() + "/eddy_load_test.jsonl";
  const auto result =
      RunFlags(server, {"--request-rate=50,100", "--num-prompts=10", "--repeats=2", "--seed=4",
                        "--output-len=3", "--num-warmups=3", "--save-result",
                        "--result-filename=" + path, "--metrics-url=http://127.0.0.1:1/metrics"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->runs.size(), 4);
  const std::vector<nlohmann::json> saved = Saved(path);
  ASSERT_EQ(saved.size(), 4);
  const int rates[] = {50, 50, 100, 100}, seeds[] = {4, 5, 4, 5};
  for (size_t i = 0; i < saved.size(); ++i) {
    EXPECT_EQ(saved[i]["request_rate"], rates[i]);
    EXPECT_EQ(saved[i]["seed"], seeds[i]);
    EXPECT_EQ(saved[i]["num_prompts"], 10);
    EXPECT_EQ(saved[i]["model_id"], "fake");
    // Nobody listens there, which is told and is no end of the test.
    EXPECT_THAT(saved[i]["servers"][0]["error"].get<std::string>(), HasSubstr("cannot connect"));
  }
  EXPECT_EQ(server.times().size(), 3 + 4 * 10);
}

TEST(LoadTest, ReplaysATraceAfterItsWarmUp) {
  FakeServer server([](int) { return FakeAnswer{}; });
  const std::string path = ::testing::TempDir() + "/eddy_load_test_trace.jsonl";
  std::ofstream(path) << "{\"timestamp\": 5, \"prompt_tokens\": 7, \"max_new_tokens\": 3}\n"
                         "{\"timestamp\": 5.1, \"prompt_tokens\": 8, \"max_new_tokens\": 2}\n";
  const auto result =
      RunFlags(server, {"--trace-file=" + path, "--num-warmups=1", "--warmup-cut=0"});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->runs.size(), 1);
  EXPECT_EQ(result->runs[0].sent, 2);
  ASSERT_EQ(server.times().size(), 3);
  EXPECT_EQ(server.times()[2].prompt.size(), 8);
  EXPECT_EQ(server.times()[2].max_new_tokens, 2);
}

TEST(LoadTest, SweepsUpToSaturation) {
  // A closed loop of two calls of at least 20 ms each saturates below 100 calls a second.
  FakeServer server([](int) { return FakeAnswer{.first = absl::Milliseconds(20)}; });
  const auto result = RunFlags(server, {"--sweep", "--max-concurrency=2", "--num-prompts=30",
                                        "--sweep-fractions=0.5,1", "--output-len=1"});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_GE(result->runs.size(), 2);
  const double saturated = result->runs[0].request_throughput;
  EXPECT_GT(saturated, 0);
  EXPECT_LE(saturated, 105);
  // 30 calls at half the rate: their number is certain, their time is that of a Poisson process.
  EXPECT_EQ(result->runs[1].sent, 30);
}

TEST(LoadTest, TellsThatAWarmUpFailed) {
  FakeServer server(
      [](int) { return FakeAnswer{.refusal = grpc::Status(grpc::UNAVAILABLE, "not ready")}; });
  EXPECT_THAT(std::string(RunFlags(server, {"--num-warmups=1"}).status().message()),
              HasSubstr("a warm-up call failed: UNAVAILABLE: not ready"));
}

TEST(LoadTest, TellsThatResultsCannotBeSaved) {
  FakeServer server([](int) { return FakeAnswer{}; });
  EXPECT_THAT(std::string(RunFlags(server, {"--save-result", "--result-filename=/nonexistent/r"})
                              .status()
                              .message()),
              HasSubstr("/nonexistent/r: cannot be written"));
}

}  // namespace
}  // namespace eddy::loadtest
