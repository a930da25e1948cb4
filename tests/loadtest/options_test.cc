// Proves what flags mean and that every wrong one is told, all at once.
#include "loadtest/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace eddy::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Options Read(const std::vector<std::string>& args) {
  const auto read = ReadOptions(args);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() && read->options.has_value() ? *read->options : Options();
}

std::string Faults(const std::vector<std::string>& args) {
  return std::string(ReadOptions(args).status().message());
}

TEST(Options, TakeTheFlagsOfOtherServingBenchmarks) {
  const Options options =
      Read({"--request-rate=2,4.5", "--burstiness=0.5", "--max-concurrency=8", "--num-prompts=50",
            "--input-len=10", "--output-len=20", "--random-range-ratio=0.2", "--num-warmups=2",
            "--percentile-metrics=ttft,itl", "--metric-percentiles=50,99.9", "--goodput",
            "ttft:500 tpot:50", "--noignore-eos", "--save-result", "--save-detailed",
            "--result-filename=r.jsonl", "--seed=7", "--metadata=a=1,b=x=y"});
  EXPECT_THAT(options.request_rates, ElementsAre(2, 4.5));
  EXPECT_THAT(options.max_concurrencies, ElementsAre(8));
  EXPECT_EQ(options.burstiness, 0.5);
  EXPECT_EQ(options.num_prompts, 50);
  EXPECT_EQ(options.workload.output.mean, 20);
  EXPECT_EQ(options.workload.output.range_ratio, 0.2);
  EXPECT_THAT(options.percentile_metrics, ElementsAre("ttft", "itl"));
  EXPECT_THAT(options.summary.percentiles, ElementsAre(50, 99.9));
  EXPECT_EQ(options.summary.slos.ttft_ms, 500);
  EXPECT_EQ(options.summary.slos.tpot_ms, 50);
  EXPECT_FALSE(options.summary.slos.e2el_ms.has_value());
  EXPECT_FALSE(options.client.ignore_eos);
  EXPECT_TRUE(options.save_detailed);
  EXPECT_EQ(options.seed, 7);
  EXPECT_EQ(options.metadata.at("b"), "x=y");
}

TEST(Options, AreByDefaultAThousandCallsAtOnce) {
  const Options options = Read({});
  EXPECT_EQ(options.num_prompts, 1000);
  EXPECT_TRUE(options.request_rates.empty());
  EXPECT_EQ(Read({"--duration=3s", "--request-rate=1"}).num_prompts, 0);
}

TEST(Options, DrawChatsLogNormally) {
  const Options options = Read({"--workload=chat", "--length-cv=2"});
  EXPECT_EQ(options.workload.prompt.shape, LengthSettings::Shape::kLogNormal);
  EXPECT_EQ(options.workload.output.cv, 2);
}

TEST(Options, TellAllFaultsAtOnce) {
  const std::string faults =
      Faults({"--request-rate=0", "--goodput=tftt:3", "--percentile-metrics=x", "--burstiness=0",
              "--input-len=9000", "--max-concurrency=1.5", "--metadata=a", "word"});
  for (const char* fault :
       {"--request-rate: \"0\" is no number of 0.001 to 1e+06", "--goodput: \"tftt:3\"",
        "--percentile-metrics: \"x\"", "burstiness",
        "--input-len: 9000 is above --input-len-max, which is 8192", "1.5 is no whole number",
        "--metadata: \"a\" is not key=value", "\"word\": only flags are taken"}) {
    EXPECT_THAT(faults, HasSubstr(fault));
  }
}

TEST(Options, RefuseWhatContradictsItself) {
  const std::string trace = ::testing::TempDir() + "/eddy_options_test.jsonl";
  std::ofstream(trace) << "{\"timestamp\": 0, \"prompt_tokens\": 1, \"max_new_tokens\": 1}\n";
  EXPECT_THAT(Faults({"--trace-file=" + trace, "--request-rate=1"}), HasSubstr("its own times"));
  EXPECT_THAT(Faults({"--trace-file=/nonexistent"}), HasSubstr("/nonexistent: cannot be read"));
  EXPECT_THAT(Faults({"--sweep", "--request-rate=1"}), HasSubstr("--sweep"));
  EXPECT_THAT(Faults({"--request-rate=1", "--max-concurrency=1,2"}), HasSubstr("several values"));
  EXPECT_THAT(Faults({"--duration=5s"}), HasSubstr("sends all at once"));
  EXPECT_THAT(Faults({"--ramp-up-strategy=linear"}), HasSubstr("needs a --request-rate"));
  EXPECT_THAT(Faults({"--save-detailed"}), HasSubstr("needs --save-result"));
}

TEST(Options, EndATraceAtTheirBounds) {
  const std::string path = "--trace-file=loadtest/scenarios/spike.jsonl";
  const std::vector<TraceEntry> all = Read({path}).trace;
  EXPECT_GT(all.size(), 100);
  EXPECT_EQ(Read({path}).num_prompts, 0);
  EXPECT_EQ(Read({path, "--num-prompts=5"}).trace.size(), 5);
  const std::vector<TraceEntry> first = Read({path, "--duration=10s"}).trace;
  ASSERT_FALSE(first.empty());
  EXPECT_LT(first.back().at_s, 10);
  EXPECT_GE(all[first.size()].at_s, 10);
}

TEST(Options, AnswerHelpAndVersion) {
  EXPECT_THAT(ReadOptions({"--help"})->answer, HasSubstr("--request_rate"));
  EXPECT_THAT(ReadOptions({"--version"})->answer, HasSubstr("eddy-loadtest "));
}

TEST(Options, OfEveryScenarioAreRight) {
  for (const char* name : {"bursts", "cancellers", "chat_sweep", "long_answers", "slow_readers",
                           "spike", "three_replicas", "throughput"}) {
    const std::string path = std::string("loadtest/scenarios/") + name + ".flags";
    EXPECT_TRUE(ReadOptions({"--flagfile=" + path}).ok()) << Faults({"--flagfile=" + path});
  }
}

}  // namespace
}  // namespace eddy::loadtest
