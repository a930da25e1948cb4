// Proves that results carry the key names of `vllm bench serve` with the figures of the summary,
// and that the server's figures come from what its metrics gained.
#include "loadtest/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace eddy::loadtest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Options SomeOptions() {
  Options options;
  options.percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  options.summary.percentiles = {50, 99, 99.9};
  options.summary.slos.ttft_ms = 500;
  options.metadata["machine"] = "small";
  options.changed = {"seed=3", "result_filename=/some/where", "metadata=machine=small"};
  return options;
}

Summary SomeSummary() {
  Summary summary;
  summary.window = {1, 9};
  summary.completed = 16;
  summary.failed = 1;
  summary.failures["UNAVAILABLE DRAINING"] = 1;
  summary.request_throughput = 2;
  summary.ttft = Describe({10, 20, 30}, {50, 99, 99.9});
  summary.tpot = summary.itl = summary.e2el = summary.icl = summary.normalized = summary.lag =
      summary.ttft;
  summary.timeline = {{.tokens = 3, .open = 0.5, .offered = 2}};
  return summary;
}

TEST(Result, HasTheKeysOfOtherServingBenchmarks) {
  const nlohmann::json result =
      ToJson(SomeOptions(), {.name = "m"}, {.request_rate = 2.5}, SomeSummary(), {});
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "mean_ttft_ms",
                          "median_ttft_ms",
                          "std_ttft_ms",
                          "p99_ttft_ms",
                          "mean_tpot_ms",
                          "p99_itl_ms",
                          "p99.9_itl_ms",
                          "mean_e2el_ms",
                          "p50_e2el_ms"}) {
    EXPECT_TRUE(result.contains(key)) << key;
  }
  EXPECT_EQ(result["request_rate"], 2.5);
  EXPECT_EQ(result["duration"], 8);
  EXPECT_EQ(result["completed"], 16);
  EXPECT_EQ(result["mean_ttft_ms"], 20);
  EXPECT_EQ(result["failures"]["UNAVAILABLE DRAINING"], 1);
  EXPECT_EQ(result["machine"], "small");
  EXPECT_EQ(result["flags"], nlohmann::json({"seed=3"}));
  EXPECT_EQ(result["timeline"]["tokens"][0], 3);
  EXPECT_TRUE(result["max_concurrency"].is_null());
  EXPECT_FALSE(result.contains("ttfts"));
  EXPECT_EQ(ToJson(SomeOptions(), {}, {}, SomeSummary(), {})["request_rate"], "inf");
  EXPECT_TRUE(result["request_goodput"].is_number());
  Options unbound = SomeOptions();
  unbound.summary.slos = {};
  EXPECT_TRUE(ToJson(unbound, {}, {}, SomeSummary(), {})["request_goodput"].is_null());
}

TEST(Result, HasEachCallIfAskedTo) {
  Options options = SomeOptions();
  options.save_detailed = true;
  RunResult run;
  run.calls.push_back({.plan = {.prompt_tokens = 4},
                       .intended_us = 2'000'000,
                       .done_us = 2'060'000,
                       .messages = {{.at_us = 10000, .tokens = 1}, {.at_us = 50000, .tokens = 2}}});
  run.began_us = 1'000'000;
  const nlohmann::json result = ToJson(options, {}, {}, SomeSummary(), run);
  EXPECT_EQ(result["input_lens"], nlohmann::json({4}));
  EXPECT_EQ(result["output_lens"], nlohmann::json({3}));
  EXPECT_EQ(result["ttfts"], nlohmann::json({0.01}));
  EXPECT_EQ(result["itls"][0], nlohmann::json({0.02, 0.02}));
  EXPECT_EQ(result["start_times"], nlohmann::json({1.0}));
  EXPECT_EQ(result["codes"][0], "OK");
}

TEST(Result, TellsWhatTheServerDid) {
  WindowScraper::Result window = {.begin_s = 1, .end_s = 11};
  window.change = {{"eddy_generation_tokens_total{model_name=\"m\"}", 500},
                   {"eddy_engine_step_rows_sum{model_name=\"m\"}", 600},
                   {"eddy_engine_step_rows_count{model_name=\"m\"}", 100},
                   {"eddy_engine_step_duration_seconds_sum{phase=\"decode\"}", 0.3},
                   {"eddy_engine_step_duration_seconds_sum{phase=\"mixed\"}", 0.1},
                   {"eddy_engine_step_duration_seconds_count{phase=\"decode\"}", 90},
                   {"eddy_engine_step_duration_seconds_count{phase=\"mixed\"}", 10},
                   {"eddy_engine_host_seconds_total", 1},
                   {"eddy_engine_device_wait_seconds_total", 3}};
  const ServerFigures figures = FiguresOf(window);
  EXPECT_EQ(figures.generation_tokens_per_s, 50);
  EXPECT_EQ(figures.rows_per_step, 6);
  EXPECT_NEAR(*figures.step_ms, 4, 1e-9);
  EXPECT_EQ(figures.host_share, 0.25);
  EXPECT_FALSE(figures.ttft_ms.has_value());

  Point point;
  point.servers.emplace_back("http://a/", window);
  point.servers.emplace_back("http://b/", absl::UnavailableError("http://b/: gone"));
  const nlohmann::json result = ToJson(SomeOptions(), {}, point, SomeSummary(), {});
  EXPECT_EQ(result["servers"][0]["mean_rows_per_step"], 6);
  EXPECT_FALSE(result["servers"][0].contains("mean_ttft_ms"));
  EXPECT_EQ(result["servers"][1]["error"], "http://b/: gone");
}

TEST(Result, IsReadByPeople) {
  Summary summary = SomeSummary();
  const std::string text = ToText(SomeOptions(), {.request_rate = 2.5}, summary);
  EXPECT_THAT(text, HasSubstr("P99.9 itl"));
  EXPECT_THAT(text, HasSubstr("UNAVAILABLE DRAINING"));
  EXPECT_THAT(text, HasSubstr("Request goodput"));
  EXPECT_THAT(text, Not(HasSubstr("cannot keep up")));
  summary.saturated = true;
  EXPECT_THAT(ToText(SomeOptions(), {}, summary), HasSubstr("cannot keep up"));
  EXPECT_THAT(ToText(RunProgress{.seconds = 3, .started = 5, .ended = 4, .open = 1}),
              HasSubstr("3 s: 5 sent, 4 ended, 1 open"));
}

}  // namespace
}  // namespace eddy::loadtest
