// All that can be set from outside, checked once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log.h"

namespace eddy {

// The flags of eddy-server; names, defaults and ranges are those of the README's table. Only flags
// whose feature exists are here.
struct ServerConfig {
  std::string model_dir;
  std::string model_name;  // never empty after reading: the folder's name by default
  std::string device = "auto";
  int device_index = 0;
  int cpu_threads = 0;
  std::string weight_type = "stored";
  std::string state_type = "float32";
  int write_back_ring = 16;
  bool cuda_graphs = true;
  bool check_layers = false;
  std::string listen = "0.0.0.0:50051";
  std::string admin_listen;
  std::string metrics_listen = "0.0.0.0:9464";
  std::string port_file;
  std::string otlp_endpoint;
  double otlp_sample_ratio = 1;
  bool reflection = true;
  int max_sequences = 0;
  double memory_fraction = 0.9;
  double kv_fraction = 0.5;
  int kv_page_tokens = 64;
  int max_rows_per_step = 0;
  int max_waiting_requests = 1024;
  int64_t max_waiting_prompt_tokens = 1048576;
  int intake_threads = 2;
  int delivery_threads = 0;
  int max_prompt_tokens = 131072;
  int max_new_tokens = 8192;
  int default_max_new_tokens = 256;
  int max_logprob_entries = 65536;
  absl::Duration max_request_time = absl::Minutes(10);
  absl::Duration stall_timeout = absl::Seconds(30);
  int64_t outbox_bytes_max = 1 << 20;
  int64_t max_message_bytes = 8 << 20;
  int max_streams_per_connection = 1024;
  int64_t grpc_memory_bytes = 1 << 30;
  absl::Duration keepalive_time = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration min_ping_interval = absl::Seconds(10);
  absl::Duration max_connection_age = absl::Minutes(30);
  absl::Duration max_connection_age_grace = absl::Minutes(11);
  absl::Duration max_connection_idle = absl::Minutes(15);
  absl::Duration drain_delay = absl::Seconds(5);
  absl::Duration drain_timeout = absl::Seconds(60);
  absl::Duration watchdog_timeout = absl::Seconds(30);
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kJson;
  // name=value of every setting that is not its default, for the start line of the log.
  std::vector<std::string> changed;
};

// Reads EDDY_* from the environment, then the command line, which wins. InvalidArgument with all
// faults, one per line. Prints help or version and ends the program when asked to.
absl::StatusOr<ServerConfig> ReadServerConfig(int argc, char** argv);

}  // namespace eddy
