// Proves that every flag takes both ends of its range and refuses what lies beyond, that
// contradictions are refused, that the command line wins over the environment, and that all faults
// come at once, each with flag, value and bound.
#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace eddy {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

std::string ModelDir() {
  const std::string dir = testing::TempDir() + "/config_test_model";
  std::filesystem::create_directories(dir);
  return dir;
}

absl::StatusOr<ServerConfig> ReadOnly(std::vector<std::string> args) {
  args.insert(args.begin(), "eddy-server");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  return ReadServerConfig(static_cast<int>(argv.size()), argv.data());
}

// With a model's folder.
absl::StatusOr<ServerConfig> Read(std::vector<std::string> args) {
  args.push_back("--model_dir=" + ModelDir());
  return ReadOnly(std::move(args));
}

std::vector<std::string> Faults(const absl::StatusOr<ServerConfig>& config) {
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return absl::StrSplit(std::string(config.status().message()), '\n');
}

TEST(ServerConfig, HasTheDefaultsOfItsStruct) {
  const absl::StatusOr<ServerConfig> config = Read({});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_name, "config_test_model");
  EXPECT_EQ(config->listen, "0.0.0.0:50051");
  EXPECT_EQ(config->max_request_time, absl::Minutes(10));
  EXPECT_EQ(config->max_message_bytes, 8 << 20);
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
  EXPECT_EQ(config->log_format, LogFormat::kJson);
  EXPECT_THAT(config->changed,
              UnorderedElementsAre("model_dir=" + ModelDir(), "model_name=config_test_model"));
}

struct Range {
  const char* flag;
  std::vector<const char*> good;  // both ends among them
  std::vector<const char*> bad;   // what lies just beyond among them
};

const Range kRanges[] = {
    {"model_name", {"a", "org/Model-1.5_b"}, {"", "my model", "a\tb", "n\xC3\xA4me"}},
    {"device", {"auto", "cpu", "cuda"}, {"", "gpu", "CPU"}},
    {"device_index", {"0", "15"}, {"-1", "16"}},
    {"cpu_threads", {"0", "256"}, {"-1", "257"}},
    {"weight_type", {"stored", "float32", "bfloat16"}, {"", "float16"}},
    {"state_type", {"float32", "bfloat16"}, {"", "float16", "bf16"}},
    {"write_back_ring", {"1", "16"}, {"0", "17"}},
    {"cuda_graphs", {"true", "false"}, {"maybe"}},
    {"check_layers", {"true", "false"}, {"maybe"}},
    {"listen",
     {"0.0.0.0:0", "[::]:65535", "localhost:1", "unix:/run/eddy"},
     {"", "50051", ":50051", "a:65536", "a:-1", "a:b", "a:", "a:+1", "a: 1", "::1:50051", "unix:"}},
    {"admin_listen", {"", "0.0.0.0:0", "unix:a"}, {"x", "a:65536"}},
    {"metrics_listen",
     {"", "0.0.0.0:0", "127.0.0.1:65535"},
     {"9464", "[::]:9464", "localhost:9464", "1.2.3:4", "1.2.3.256:4", "1.2.3.4:65536",
      "1.2.3.4:+5", "1.2.3.+4:5"}},
    {"otlp_endpoint",
     {"", "http://127.0.0.1:4318", "http://collector.monitoring.svc:1", "http://[::1]:65535",
      "http://c:4318/", "http://c:4318/a/b", "http://my_collector-0.b:4318"},
     {"c:4318", "https://c:4318", "http://", "http://:4318", "http://c", "http://c:0",
      "http://c:65536", "http://c/:4318", "http://me:secret@c:4318", "http://c:4318?a",
      "http://c:1#a", "http://c:4318/a b", "HTTP://c:4318", "http://c:+4318", "http://[c]:4318",
      "http://[]:4318", "http://%41:4318", "http://a,b:4318", "http://a*:4318"}},
    {"otlp_sample_ratio", {"0", "1", "0.001"}, {"-0.1", "1.1", "nan"}},
    {"reflection", {"true", "false"}, {"maybe"}},
    {"max_sequences", {"0", "65535"}, {"-1", "65536", "x", "1.5", ""}},
    {"memory_fraction", {"0.10", "0.98"}, {"0.09", "0.99", "nan", "inf"}},
    {"kv_fraction", {"0", "0.95"}, {"-0.01", "0.96", "nan"}},
    {"kv_page_tokens", {"16", "32", "64", "128"}, {"15", "48", "129", "0"}},
    {"max_rows_per_step", {"0", "64", "65536"}, {"1", "63", "65537", "-1"}},
    {"max_waiting_requests", {"1", "1000000"}, {"0", "1000001"}},
    {"max_waiting_prompt_tokens", {"131072", "1099511627776"}, {"0", "1099511627777"}},
    {"intake_threads", {"1", "64"}, {"0", "65"}},
    {"delivery_threads", {"0", "1", "64"}, {"-1", "65"}},
    {"max_prompt_tokens", {"1", "1048576"}, {"0", "16777217"}},
    {"max_new_tokens", {"256", "1048576"}, {"0", "1048577"}},
    {"default_max_new_tokens", {"1", "8192"}, {"0", "1048577"}},
    {"max_logprob_entries", {"0", "1000000"}, {"-1", "1000001"}},
    {"max_request_time", {"1s", "11m"}, {"999ms", "24h1s", "10", "inf"}},
    {"stall_timeout", {"1s", "10m"}, {"999ms", "601s"}},
    {"outbox_bytes_max", {"64KiB", "64MiB", "65536"}, {"65535", "65MiB", "1MB"}},
    {"max_message_bytes", {"64KiB", "256MiB"}, {"65535", "257MiB"}},
    {"max_streams_per_connection", {"1", "100000"}, {"0", "100001"}},
    {"grpc_memory_bytes", {"64MiB", "64GiB"}, {"63MiB", "65GiB"}},
    {"keepalive_time", {"1s", "2h"}, {"0", "2h1s"}},
    {"keepalive_timeout", {"1s", "2h"}, {"0", "2h1s"}},
    {"min_ping_interval", {"1s", "5m"}, {"0s", "301s"}},
    {"max_connection_age", {"1s", "inf"}, {"0", "-1s"}},
    {"max_connection_age_grace", {"10m", "inf"}, {"999ms", "9m59s"}},
    {"max_connection_idle", {"1s", "inf"}, {"0", "x"}},
    {"drain_delay", {"0", "0s", "1h"}, {"-1ms", "3601s"}},
    {"drain_timeout", {"0", "1h"}, {"-1ms", "3601s"}},
    {"watchdog_timeout", {"1s", "1h"}, {"999ms", "3601s"}},
    {"log_level", {"debug", "info", "warning", "error"}, {"warn", ""}},
    {"log_format", {"json", "text"}, {"xml"}},
};

TEST(ServerConfig, TakesBothEndsOfEveryRangeAndNothingBeyond) {
  for (const Range& range : kRanges) {
    const std::string flag = std::string("--") + range.flag + "=";
    for (const char* value : range.good) {
      const absl::StatusOr<ServerConfig> config = Read({flag + value});
      EXPECT_TRUE(config.ok()) << config.status();
    }
    for (const char* value : range.bad) {
      const absl::StatusOr<ServerConfig> config = Read({flag + value});
      ASSERT_FALSE(config.ok()) << flag << value;
      EXPECT_THAT(Faults(config), Contains(HasSubstr(flag + value + ": must be")));
    }
  }
  EXPECT_FALSE(Read({"--model_name=" + std::string(129, 'a')}).ok());
  EXPECT_TRUE(Read({"--model_name=" + std::string(128, 'a')}).ok());
}

TEST(ServerConfig, PutsEachValueWhereItBelongs) {
  const absl::StatusOr<ServerConfig> config = Read({"--model_name=n",
                                                    "--device=cpu",
                                                    "--device_index=1",
                                                    "--cpu_threads=2",
                                                    "--listen=a:1",
                                                    "--admin_listen=a:2",
                                                    "--metrics_listen=1.2.3.4:3",
                                                    "--port_file=p",
                                                    "--otlp_endpoint=http://c:4318",
                                                    "--otlp_sample_ratio=0.125",
                                                    "--reflection=false",
                                                    "--max_sequences=4",
                                                    "--memory_fraction=0.5",
                                                    "--kv_fraction=0.25",
                                                    "--kv_page_tokens=16",
                                                    "--max_rows_per_step=65",
                                                    "--max_waiting_requests=6",
                                                    "--max_waiting_prompt_tokens=70",
                                                    "--intake_threads=8",
                                                    "--delivery_threads=6",
                                                    "--max_prompt_tokens=9",
                                                    "--max_new_tokens=11",
                                                    "--default_max_new_tokens=10",
                                                    "--max_logprob_entries=12",
                                                    "--max_request_time=13s",
                                                    "--stall_timeout=14s",
                                                    "--outbox_bytes_max=100KiB",
                                                    "--max_message_bytes=2MiB",
                                                    "--max_streams_per_connection=15",
                                                    "--grpc_memory_bytes=2GiB",
                                                    "--keepalive_time=16s",
                                                    "--keepalive_timeout=17s",
                                                    "--min_ping_interval=18s",
                                                    "--max_connection_age=19s",
                                                    "--max_connection_age_grace=20s",
                                                    "--max_connection_idle=21s",
                                                    "--drain_delay=22s",
                                                    "--drain_timeout=23s",
                                                    "--watchdog_timeout=24s",
                                                    "--log_level=warning",
                                                    "--log_format=text"});
  ASSERT_TRUE(config.ok()) << config.status();
  // Every flag was given, so every one is listed; what it is listed with is what was stored.
  EXPECT_THAT(
      config->changed,
      ElementsAre("model_dir=" + ModelDir(), "model_name=n", "device=cpu", "device_index=1",
                  "cpu_threads=2", "memory_fraction=0.5", "kv_fraction=0.25", "kv_page_tokens=16",
                  "listen=a:1", "admin_listen=a:2", "metrics_listen=1.2.3.4:3", "port_file=p",
                  "otlp_endpoint=http://c:4318", "otlp_sample_ratio=0.125", "reflection=false",
                  "log_level=warning", "log_format=text", "max_sequences=4", "max_rows_per_step=65",
                  "max_waiting_requests=6", "max_waiting_prompt_tokens=70", "intake_threads=8",
                  "delivery_threads=6", "max_prompt_tokens=9", "max_new_tokens=11",
                  "default_max_new_tokens=10", "max_logprob_entries=12", "max_request_time=13s",
                  "stall_timeout=14s", "outbox_bytes_max=100KiB", "max_message_bytes=2MiB",
                  "max_streams_per_connection=15", "grpc_memory_bytes=2GiB", "keepalive_time=16s",
                  "keepalive_timeout=17s", "min_ping_interval=18s", "max_connection_age=19s",
                  "max_connection_age_grace=20s", "max_connection_idle=21s", "drain_delay=22s",
                  "drain_timeout=23s", "watchdog_timeout=24s"));
  EXPECT_EQ(config->log_level, LogLevel::kWarning);
  EXPECT_EQ(config->log_format, LogFormat::kText);
}

TEST(ServerConfig, RefusesContradictions) {
  const struct {
    std::vector<std::string> args;
    const char* fault;
  } cases[] = {
      {{"--max_sequences=64", "--max_rows_per_step=64"},
       "--max_rows_per_step=64: must be more than max_sequences, which is 64"},
      {{"--max_new_tokens=100"},
       "--default_max_new_tokens=256: must be at most max_new_tokens, which is 100"},
      {{"--max_request_time=12m"},
       "--max_connection_age_grace=11m: must be at least max_request_time, which is 12m"},
      {{"--max_waiting_prompt_tokens=1000"},
       "--max_waiting_prompt_tokens=1000: must be at least max_prompt_tokens, which is 131072"},
      {{"--listen=127.0.0.1:9464", "--metrics_listen=127.0.0.1:9464"},
       "--metrics_listen=127.0.0.1:9464: must differ from listen"},
      {{"--listen=unix:a", "--admin_listen=unix:a"},
       "--admin_listen=unix:a: must differ from listen"},
  };
  for (const auto& c : cases) EXPECT_THAT(Faults(Read(c.args)), ElementsAre(c.fault));
  EXPECT_TRUE(Read({"--max_sequences=64", "--max_rows_per_step=65"}).ok());
  EXPECT_TRUE(Read({"--max_new_tokens=100", "--default_max_new_tokens=100"}).ok());
  EXPECT_TRUE(Read({"--max_request_time=12m", "--max_connection_age_grace=12m"}).ok());
  EXPECT_TRUE(
      Read({"--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0"})
          .ok());
}

TEST(ServerConfig, NeedsAModelsFolder) {
  EXPECT_THAT(Faults(ReadOnly({})), ElementsAre(HasSubstr("--model_dir: is required")));
  EXPECT_THAT(Faults(ReadOnly({"--model_dir=/no/such/folder", "--model_name=x"})),
              ElementsAre("--model_dir=/no/such/folder: there is no such folder"));
}

TEST(ServerConfig, NamesTheModelByItsFolder) {
  for (const std::string& dir : {ModelDir(), ModelDir() + "/", ModelDir() + "/."}) {
    const absl::StatusOr<ServerConfig> config = ReadOnly({"--model_dir", dir});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->model_name, "config_test_model") << dir;
  }
}

TEST(ServerConfig, TakesTheCommandLineBeforeTheEnvironment) {
  setenv("EDDY_MAX_SEQUENCES", "7", 1);
  setenv("EDDY_INTAKE_THREADS", "3", 1);
  setenv("EDDY_PORT", "tcp://10.0.0.1:50051", 1);  // as clusters set it; no flag of ours
  const absl::StatusOr<ServerConfig> config = Read({"--max-sequences=8"});
  for (const char* name : {"EDDY_MAX_SEQUENCES", "EDDY_INTAKE_THREADS", "EDDY_PORT"}) {
    unsetenv(name);
  }
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_sequences, 8);
  EXPECT_EQ(config->intake_threads, 3);
}

TEST(ServerConfig, TellsAllFaultsAtOnce) {
  EXPECT_THAT(
      Faults(Read({"--max_sequences=-1", "--tls_cert_file=x", "word", "--listen=here",
                   "--default_max_new_tokens=9000"})),
      ElementsAre("--max_sequences=-1: must be 0 to 65535", "--tls_cert_file=x: unknown flag",
                  HasSubstr("word: is no flag"), HasSubstr("--listen=here: must be host:port"),
                  "--default_max_new_tokens=9000: must be at most max_new_tokens, which is "
                  "8192"));
}

TEST(ServerConfig, HasNoFlagOfAFeatureThatIsNotThere) {
  for (const char* flag :
       {"session_bytes=0", "prefix_cache_bytes=0", "auth_tokens_file=x", "helpfull", "fromenv=x"}) {
    EXPECT_THAT(Faults(Read({std::string("--") + flag})),
                ElementsAre(std::string("--") + flag + ": unknown flag"));
  }
}

TEST(ServerConfigDeathTest, PrintsHelpAndVersionAndEndsWell) {
  EXPECT_EXIT(ReadOnly({"--help"}).IgnoreError(), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ReadOnly({"--version"}).IgnoreError(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace eddy
