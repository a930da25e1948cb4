// Proves that every series exists before the first call, that each function of Metrics changes
// exactly the series it is for, and that the port serves the page or fails with one plain line. The
// text of the page is read, since that is what Prometheus reads.
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/ascii.h"
#include "tests/server/metrics_page.h"

namespace eddy {
namespace {

using testing::Contains;
using testing::Key;

Page Read(const Metrics& metrics) { return Parse(Text(metrics.registry()->Collect())); }

// The series of `after` whose value is not that of `before`, without the buckets.
Page Changed(const Page& before, const Page& after) {
  Page changed;
  for (const auto& [name, value] : after) {
    if (name.find("_bucket{") != std::string::npos) continue;
    const auto it = before.find(name);
    if (it == before.end() || it->second != value) changed[name] = value;
  }
  return changed;
}

Metrics::Options Small() {
  return {
      .model_name = "m", .max_prompt_tokens = 3000, .max_new_tokens = 64, .max_rows_per_step = 100};
}

TEST(Metrics, HasEverySeriesAtZeroBeforeTheFirstCall) {
  const Metrics metrics(Small());
  const Page page = Read(metrics);
  for (const auto& [name, value] : page) {
    EXPECT_EQ(value, name.rfind("eddy_build_info", 0) == 0 ? 1 : 0) << name;
  }
  for (const std::string_view reason : Metrics::FailureReasons()) {
    const std::string label = absl::AsciiStrToLower(std::string(reason));
    EXPECT_THAT(page, Contains(Key("eddy_request_failures_total{model_name=\"m\",reason=\"" +
                                   label + "\"}")));
  }
  EXPECT_THAT(page, Contains(Key("grpc_server_handled_total{grpc_code=\"DataLoss\",grpc_method="
                                 "\"ExportSession\",grpc_service=\"eddy.v1.SessionService\","
                                 "grpc_type=\"server_stream\"}")));
}

TEST(Metrics, EndsTheBucketsOfLengthsAtTheirLimits) {
  const Page page = Read(Metrics(Small()));
  EXPECT_THAT(page,
              Contains(Key("eddy_request_prompt_tokens_bucket{model_name=\"m\",le=\"2000\"}")));
  EXPECT_THAT(page,
              Contains(Key("eddy_request_prompt_tokens_bucket{model_name=\"m\",le=\"3000\"}")));
  EXPECT_THAT(page, testing::Not(Contains(
                        Key("eddy_request_prompt_tokens_bucket{model_name=\"m\",le=\"5000\"}"))));
  EXPECT_THAT(page, Contains(Key("eddy_engine_step_rows_bucket{model_name=\"m\",le=\"100\"}")));
}

TEST(Metrics, CountsAStepOnce) {
  Metrics metrics(Small());
  const Page before = Read(metrics);
  metrics.ObserveStep({.rows = 10,
                       .sequences = 4,
                       .single_row_sequences = 3,
                       .sampled = 4,
                       .prompt_rows = 7,
                       .fills = 2,
                       .fills_from_checkpoint = 0,
                       .saves = 0,
                       .not_finite = 1,
                       .recorded = true,
                       .step_time = absl::Milliseconds(500),
                       .device_time = absl::Milliseconds(375),
                       .running = 4,
                       .waiting = 5,
                       .waiting_prompt_tokens = 50,
                       .slots_used = 4,
                       .slots_total = 16,
                       .pages_used = 3,
                       .pages_total = 8});
  EXPECT_EQ(Changed(before, Read(metrics)),
            (Page{{"eddy_num_requests_running{model_name=\"m\"}", 4},
                  {"eddy_num_requests_waiting{model_name=\"m\"}", 5},
                  {"eddy_waiting_prompt_tokens{model_name=\"m\"}", 50},
                  {"eddy_state_slots_used{model_name=\"m\"}", 4},
                  {"eddy_state_slots{model_name=\"m\"}", 16},
                  {"eddy_state_slot_usage_ratio{model_name=\"m\"}", 0.25},
                  {"eddy_kv_pages_used{model_name=\"m\"}", 3},
                  {"eddy_kv_pages{model_name=\"m\"}", 8},
                  {"eddy_prompt_tokens_total{model_name=\"m\"}", 7},
                  {"eddy_generation_tokens_total{model_name=\"m\"}", 4},
                  {"eddy_engine_host_seconds_total{model_name=\"m\"}", 0.125},
                  {"eddy_engine_device_wait_seconds_total{model_name=\"m\"}", 0.375},
                  {"eddy_engine_recorded_steps_total{model_name=\"m\"}", 1},
                  {"eddy_state_nonfinite_total{model_name=\"m\"}", 1},
                  {"eddy_state_fills_total{from=\"initial\",model_name=\"m\"}", 2},
                  {"eddy_engine_step_duration_seconds_count{model_name=\"m\",phase=\"mixed\"}", 1},
                  {"eddy_engine_step_duration_seconds_sum{model_name=\"m\",phase=\"mixed\"}", 0.5},
                  {"eddy_engine_step_rows_count{model_name=\"m\"}", 1},
                  {"eddy_engine_step_rows_sum{model_name=\"m\"}", 10},
                  {"eddy_engine_step_sequences_count{model_name=\"m\"}", 1},
                  {"eddy_engine_step_sequences_sum{model_name=\"m\"}", 4}}));
}

TEST(Metrics, TellsStepsApartByWhatTheirRowsWereFor) {
  Metrics metrics(Small());
  metrics.ObserveStep({.rows = 3, .sequences = 1, .prompt_rows = 3});
  metrics.ObserveStep({.rows = 2, .sequences = 2, .prompt_rows = 0});
  metrics.ObserveStep({.rows = 0});
  const Page page = Read(metrics);
  const std::string count = "eddy_engine_step_duration_seconds_count{model_name=\"m\",phase=";
  EXPECT_EQ(page.at(count + "\"prefill\"}"), 1);
  EXPECT_EQ(page.at(count + "\"decode\"}"), 1);
  EXPECT_EQ(page.at(count + "\"mixed\"}"), 0);
}

TEST(Metrics, CountsACallThatEndsWell) {
  Metrics metrics(Small());
  const Page before = Read(metrics);
  metrics.CountRequest(MethodLabel::kGenerateStream, 64);
  metrics.CountFinished({.finish = FinishLabel::kStopString,
                         .total = absl::Seconds(8),
                         .queue = absl::Seconds(1),
                         .prefill = absl::Seconds(2),
                         .decode = absl::Seconds(4),
                         .prompt_tokens = 100,
                         .generated_tokens = 9});
  EXPECT_EQ(Changed(before, Read(metrics)),
            (Page{{"eddy_requests_total{method=\"generate_stream\",model_name=\"m\"}", 1},
                  {"eddy_request_success_total{finish_reason=\"stop_string\",model_name=\"m\"}", 1},
                  {"eddy_request_params_max_new_tokens_count{model_name=\"m\"}", 1},
                  {"eddy_request_params_max_new_tokens_sum{model_name=\"m\"}", 64},
                  {"eddy_e2e_request_latency_seconds_count{model_name=\"m\"}", 1},
                  {"eddy_e2e_request_latency_seconds_sum{model_name=\"m\"}", 8},
                  {"eddy_request_queue_time_seconds_count{model_name=\"m\"}", 1},
                  {"eddy_request_queue_time_seconds_sum{model_name=\"m\"}", 1},
                  {"eddy_request_prefill_time_seconds_count{model_name=\"m\"}", 1},
                  {"eddy_request_prefill_time_seconds_sum{model_name=\"m\"}", 2},
                  {"eddy_request_decode_time_seconds_count{model_name=\"m\"}", 1},
                  {"eddy_request_decode_time_seconds_sum{model_name=\"m\"}", 4},
                  {"eddy_request_time_per_output_token_seconds_count{model_name=\"m\"}", 1},
                  {"eddy_request_time_per_output_token_seconds_sum{model_name=\"m\"}", 0.5},
                  {"eddy_request_prompt_tokens_count{model_name=\"m\"}", 1},
                  {"eddy_request_prompt_tokens_sum{model_name=\"m\"}", 100},
                  {"eddy_request_generation_tokens_count{model_name=\"m\"}", 1},
                  {"eddy_request_generation_tokens_sum{model_name=\"m\"}", 9}}));
}

TEST(Metrics, ObservesNoDecodeTimeForACallThatOnlyScores) {
  Metrics metrics(Small());
  metrics.CountRequest(MethodLabel::kScore, 0);
  metrics.CountFinished(
      {.finish = FinishLabel::kLength, .total = absl::Seconds(1), .prompt_tokens = 5});
  const Page page = Read(metrics);
  EXPECT_EQ(page.at("eddy_requests_total{method=\"score\",model_name=\"m\"}"), 1);
  EXPECT_EQ(page.at("eddy_e2e_request_latency_seconds_count{model_name=\"m\"}"), 1);
  for (const char* name : {"decode_time_seconds", "generation_tokens", "params_max_new_tokens",
                           "time_per_output_token_seconds"}) {
    EXPECT_EQ(page.at(std::string("eddy_request_") + name + "_count{model_name=\"m\"}"), 0) << name;
  }
}

TEST(Metrics, CountsEachReasonUnderItsNameAndUnknownOnesAsOther) {
  Metrics metrics(Small());
  metrics.CountFailure("QUEUE_FULL");
  metrics.CountFailure("NEVER_HEARD_OF");
  const Page page = Read(metrics);
  const std::string name = "eddy_request_failures_total{model_name=\"m\",reason=";
  EXPECT_EQ(page.at(name + "\"queue_full\"}"), 1);
  EXPECT_EQ(page.at(name + "\"other\"}"), 1);
}

TEST(Metrics, PutsManyTimesIntoTheBucketsThatSingleOnesGoTo) {
  Metrics many(Small()), single(Small());
  // On a bound, inside, below the first and above the last.
  const std::vector<double> seconds = {0.001, 0.0015, 0.0016, 0.0001, 0.25, 9.0, 0.0005, 2.5};
  many.ObserveInterToken(seconds);
  many.ObserveInterToken({});
  for (const double value : seconds) single.ObserveInterToken({&value, 1});
  EXPECT_EQ(Read(many), Read(single));
  const Page page = Read(many);
  const std::string bucket = "eddy_inter_token_latency_seconds_bucket{model_name=\"m\",le=";
  EXPECT_EQ(page.at(bucket + "\"0.0005\"}"), 2);
  EXPECT_EQ(page.at(bucket + "\"0.001\"}"), 3);
  EXPECT_EQ(page.at(bucket + "\"0.0015\"}"), 4);
  EXPECT_EQ(page.at(bucket + "\"2.5\"}"), 7);
  EXPECT_EQ(page.at(bucket + "\"+Inf\"}"), 8);
}

TEST(Metrics, SaysWhichModelIsLoaded) {
  Metrics metrics(Small());
  metrics.SetModel({.model_type = "kaczmarz",
                    .state_type = "float32",
                    .record_bytes = 4096,
                    .slots_total = 16,
                    .pages_total = 0,
                    .weight_bytes = 1,
                    .state_bytes = 2,
                    .kv_bytes = 3,
                    .workspace_bytes = 4,
                    .load_time = absl::Seconds(5)});
  const Page page = Read(metrics);
  EXPECT_EQ(page.at("eddy_model_info{model_name=\"m\",model_type=\"kaczmarz\",record_bytes="
                    "\"4096\",state_type=\"float32\"}"),
            1);
  EXPECT_EQ(page.at("eddy_device_memory_bytes{kind=\"weights\"}"), 1);
  EXPECT_EQ(page.at("eddy_device_memory_bytes{kind=\"workspace\"}"), 4);
  EXPECT_EQ(page.at("eddy_model_load_duration_seconds{model_name=\"m\"}"), 5);
  EXPECT_EQ(page.at("eddy_state_slots{model_name=\"m\"}"), 16);
}

TEST(Metrics, KnowsEveryMethodOfTheApiAndNoOther) {
  Metrics metrics(Small());
  RpcMetrics* rpc = metrics.rpc("/eddy.v1.GenerationService/GenerateStream");
  ASSERT_NE(rpc, nullptr);
  rpc->started->Increment();
  rpc->handled[14]->Increment();
  const Page page = Read(metrics);
  const std::string labels =
      "grpc_method=\"GenerateStream\",grpc_service=\"eddy.v1.GenerationService\",grpc_type="
      "\"server_stream\"}";
  EXPECT_EQ(page.at("grpc_server_started_total{" + labels), 1);
  EXPECT_EQ(page.at("grpc_server_handled_total{grpc_code=\"Unavailable\"," + labels), 1);
  EXPECT_NE(metrics.rpc("/eddy.v1.SessionService/ImportSession"), nullptr);
  EXPECT_EQ(metrics.rpc("/grpc.health.v1.Health/Check"), nullptr);
}

}  // namespace
}  // namespace eddy
