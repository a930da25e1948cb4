#include "server/config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/flags.h"
#include "base/version.h"

namespace eddy {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;

// The names that LogLevel and LogFormat have outside.
struct LogNames {
  std::string level = "info";
  std::string format = "json";
};

void AddModelFlags(ServerConfig* c, FlagSet* flags) {
  flags->Add("model_dir", &c->model_dir, flag::Text("folder, required"),
             "holds config.json, model.safetensors and the tokenizer");
  flags->Add("model_name", &c->model_name, flag::Text("1 to 128 of A-Za-z0-9._/-"),
             "what requests call the model; by default the name of its folder");
  flags->Add("device", &c->device, flag::OneOf({"auto", "cpu", "cuda"}),
             "where the model runs; auto takes the CPU when there is no GPU, and says so");
  flags->Add("device_index", &c->device_index, flag::Number(0, 15), "which GPU");
  flags->Add("cpu_threads", &c->cpu_threads, flag::Number(0, 256),
             "threads of the CPU device; 0: one per core");
  flags->Add(
      "weight_type", &c->weight_type, flag::OneOf({"stored", "float32", "bfloat16"}),
      "type of the weights held on a GPU; stored: bfloat16 if the file's are, else float32. A "
      "CPU holds float32");
  flags->Add("state_type", &c->state_type, flag::OneOf({"float32", "bfloat16"}),
             "type in which the states of delta rules are held; all is computed in float32");
  flags->Add("write_back_ring", &c->write_back_ring, flag::Number(1, 16),
             "every so many tokens the state of a delta layer is written; 1: at each. A CPU writes "
             "float32 at each");
  flags->Add("cuda_graphs", &c->cuda_graphs, flag::Bool(),
             "GPU: decode steps are recorded once and replayed");
  flags->Add("check_layers", &c->check_layers, flag::Bool(),
             "for debugging, slow: the CPU runs every layer too, and a difference ends the server");
  flags->Add("memory_fraction", &c->memory_fraction, flag::Real(0.10, 0.98),
             "share of the device's free memory for weights, state, pages and workspace");
  flags->Add("kv_fraction", &c->kv_fraction, flag::Real(0, 0.95),
             "models with attention: share of what weights leave for attention pages");
  flags->Add("kv_page_tokens", &c->kv_page_tokens, flag::Number(16, 128),
             "tokens per attention page: 16, 32, 64 or 128");
}

void AddListenFlags(ServerConfig* c, LogNames* log, FlagSet* flags) {
  flags->Add("listen", &c->listen, flag::Text("host:port or unix:path"),
             "where gRPC listens; port 0 picks a free one");
  flags->Add("admin_listen", &c->admin_listen, flag::Text("host:port, unix:path or empty"),
             "a second place for health and reflection alone");
  flags->Add("metrics_listen", &c->metrics_listen, flag::Text("IPv4:port or empty"),
             "where Prometheus reads /metrics; empty: nowhere");
  flags->Add("port_file", &c->port_file, flag::Text("path or empty"),
             "gets the ports that were bound, as JSON");
  flags->Add("otlp_endpoint", &c->otlp_endpoint, flag::Text("http://host:port or empty"),
             "collector that gets a trace of each call, by OTLP over HTTP; empty: none does");
  flags->Add("otlp_sample_ratio", &c->otlp_sample_ratio, flag::Real(0, 1),
             "share of the calls without a traceparent that are traced; others' callers decide");
  flags->Add("reflection", &c->reflection, flag::Bool(), "gRPC reflection");
  flags->Add("log_level", &log->level, flag::OneOf({"debug", "info", "warning", "error"}),
             "the least important lines that are logged");
  flags->Add("log_format", &log->format, flag::OneOf({"json", "text"}), "how lines are logged");
}

void AddLimitFlags(ServerConfig* c, FlagSet* flags) {
  flags->Add("max_sequences", &c->max_sequences, flag::Number(0, 65535),
             "state slots; 0: what memory gives, at most 1024 (CPU: 16)");
  flags->Add("max_rows_per_step", &c->max_rows_per_step, flag::Number(0, 65536),
             "tokens per engine step, 64 or more, and more than max_sequences; 0: 2048 on a GPU, "
             "256 on a CPU");
  flags->Add("max_waiting_requests", &c->max_waiting_requests, flag::Number(1, 1000000),
             "calls that may wait for a slot");
  flags->Add("max_waiting_prompt_tokens", &c->max_waiting_prompt_tokens,
             flag::Number(1, int64_t{1} << 40), "prompt tokens of the calls that wait");
  flags->Add("intake_threads", &c->intake_threads, flag::Number(1, 64),
             "threads that turn prompts into tokens");
  flags->Add(
      "delivery_threads", &c->delivery_threads, flag::Number(0, 64),
      "threads that turn tokens into text and hand it to the clients' connections; 0: one per "
      "four cores, 1 to 8");
  flags->Add("max_prompt_tokens", &c->max_prompt_tokens, flag::Number(1, 16777216),
             "prompt tokens of one call");
  flags->Add("max_new_tokens", &c->max_new_tokens, flag::Number(1, 1048576),
             "tokens that one sequence may generate at most");
  flags->Add("default_max_new_tokens", &c->default_max_new_tokens, flag::Number(1, 1048576),
             "the same for calls that name no number");
  flags->Add("max_logprob_entries", &c->max_logprob_entries, flag::Number(0, 1000000),
             "log-probabilities in one answer");
  flags->Add("max_request_time", &c->max_request_time,
             flag::Time(absl::Seconds(1), absl::Hours(24)),
             "arrival to end of a call, whatever the client's deadline");
  flags->Add("stall_timeout", &c->stall_timeout, flag::Time(absl::Seconds(1), absl::Minutes(10)),
             "a stream whose reader takes nothing for so long is cut off");
  flags->Add("outbox_bytes_max", &c->outbox_bytes_max, flag::Bytes(64 * kKiB, 64 * kMiB),
             "a stream that leaves more than this waiting is cut off");
}

void AddTransportFlags(ServerConfig* c, FlagSet* flags) {
  const absl::Duration second = absl::Seconds(1), forever = absl::InfiniteDuration();
  flags->Add("max_message_bytes", &c->max_message_bytes, flag::Bytes(64 * kKiB, 256 * kMiB),
             "a received message");
  flags->Add("max_streams_per_connection", &c->max_streams_per_connection, flag::Number(1, 100000),
             "calls open at once on one connection");
  flags->Add("grpc_memory_bytes", &c->grpc_memory_bytes, flag::Bytes(64 * kMiB, 64 * kGiB),
             "memory that gRPC may use");
  flags->Add("keepalive_time", &c->keepalive_time, flag::Time(second, absl::Hours(2)),
             "the server pings a quiet connection after this time");
  flags->Add("keepalive_timeout", &c->keepalive_timeout, flag::Time(second, absl::Hours(2)),
             "and ends it when no answer comes for this time");
  flags->Add("min_ping_interval", &c->min_ping_interval, flag::Time(second, absl::Minutes(5)),
             "clients that ping more often are disconnected");
  flags->Add("max_connection_age", &c->max_connection_age, flag::Time(second, forever),
             "connections are renewed after this time, so that clients look for new servers");
  flags->Add("max_connection_age_grace", &c->max_connection_age_grace, flag::Time(second, forever),
             "time that running calls have then; max_request_time or more");
  flags->Add("max_connection_idle", &c->max_connection_idle, flag::Time(second, forever),
             "connections without calls are closed after this time");
  flags->Add("drain_delay", &c->drain_delay, flag::Time(absl::ZeroDuration(), absl::Hours(1)),
             "after SIGTERM, calls are still accepted for this time");
  flags->Add("drain_timeout", &c->drain_timeout, flag::Time(absl::ZeroDuration(), absl::Hours(1)),
             "then running calls have this time to end");
  flags->Add("watchdog_timeout", &c->watchdog_timeout, flag::Time(second, absl::Hours(1)),
             "no engine step for so long with work at hand: liveness is NOT_SERVING");
}

// The port of "host:port" and whether the host is an IPv4 address; nothing if it is neither.
struct HostPort {
  int port = 0;
  bool ipv4 = false;
};

// Digits alone: a library would also take signs and blanks, and what it hands the text to would
// not.
bool ParseNumber(const std::string& text, int most, int* value) {
  return std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, value) && *value <= most;
}

bool IsIpv4(const std::string& host) {
  const std::vector<std::string> bytes = absl::StrSplit(host, '.');
  if (bytes.size() != 4) return false;
  for (const std::string& byte : bytes) {
    int value = 0;
    if (!ParseNumber(byte, 255, &value)) return false;
  }
  return true;
}

bool ParseHostPort(const std::string& address, HostPort* result) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = address.substr(0, colon);
  // More than one colon is an IPv6 address, which stands in brackets.
  if (host.find(':') != std::string::npos && (host.front() != '[' || host.back() != ']')) {
    return false;
  }
  result->ipv4 = IsIpv4(host);
  return ParseNumber(address.substr(colon + 1), 65535, &result->port);
}

bool IsGrpcAddress(const std::string& address) {
  HostPort parsed;
  return (address.rfind("unix:", 0) == 0 && address.size() > 5) || ParseHostPort(address, &parsed);
}

bool IsModelName(const std::string& name) {
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && std::strchr("._/-", c) == nullptr) return false;
  }
  return !name.empty() && name.size() <= 128;
}

void CheckModel(ServerConfig* c, const FlagSet& flags, std::vector<std::string>* faults) {
  std::error_code error;
  if (c->model_dir.empty()) {
    faults->push_back("--model_dir: is required: the folder of the model");
  } else if (!std::filesystem::is_directory(c->model_dir, error)) {
    faults->push_back(absl::StrCat("--model_dir=", c->model_dir, ": there is no such folder"));
  } else if (!flags.given("model_name")) {
    // Also for "models/tales/" and ".".
    c->model_name = std::filesystem::canonical(c->model_dir, error).filename().string();
  }
  const bool known = !c->model_name.empty() || flags.given("model_name");
  if (known && !IsModelName(c->model_name)) {
    faults->push_back(
        absl::StrCat("--model_name=", c->model_name, ": must be 1 to 128 of A-Za-z0-9._/-"));
  }
  const int page = c->kv_page_tokens;
  if (page != 16 && page != 32 && page != 64 && page != 128) {
    faults->push_back(absl::StrCat("--kv_page_tokens=", page, ": must be 16, 32, 64 or 128"));
  }
}

// A name or an address. libcurl takes no other, but says so only when there is something to send.
bool IsHost(const std::string& host) {
  const bool v6 = host.front() == '[';
  in6_addr address;
  if (v6) return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &address) == 1;
  return std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

// A plain http URL, maybe with a path. Whoever wants more, TLS say, puts a collector beside the
// server.
bool IsEndpoint(const std::string& url) {
  constexpr size_t kScheme = 7;
  if (url.rfind("http://", 0) != 0 || url.size() > 1024) return false;
  for (const char c : url) {
    if (!absl::ascii_isgraph(c) || std::strchr("@?#\"<>\\^`{|}", c) != nullptr) return false;
  }
  const std::string place = url.substr(kScheme, url.find('/', kScheme) - kScheme);
  HostPort parsed;
  return ParseHostPort(place, &parsed) && parsed.port > 0 &&
         IsHost(place.substr(0, place.rfind(':')));
}

void CheckAddresses(const ServerConfig& c, std::vector<std::string>* faults) {
  if (!IsGrpcAddress(c.listen)) {
    faults->push_back(absl::StrCat("--listen=", c.listen,
                                   ": must be host:port with a port of 0 to 65535, or unix:path"));
  }
  if (!c.admin_listen.empty() && !IsGrpcAddress(c.admin_listen)) {
    faults->push_back(
        absl::StrCat("--admin_listen=", c.admin_listen,
                     ": must be host:port with a port of 0 to 65535, unix:path, or empty"));
  }
  HostPort metrics;
  if (!c.metrics_listen.empty() && !(ParseHostPort(c.metrics_listen, &metrics) && metrics.ipv4)) {
    faults->push_back(absl::StrCat(
        "--metrics_listen=", c.metrics_listen,
        ": must be an IPv4 address and a port of 0 to 65535, as in 0.0.0.0:9464, or empty"));
  }
  if (!c.otlp_endpoint.empty() && !IsEndpoint(c.otlp_endpoint)) {
    faults->push_back(absl::StrCat("--otlp_endpoint=", c.otlp_endpoint,
                                   ": must be http://host:port, as in http://127.0.0.1:4318, or "
                                   "empty"));
  }
  const struct {
    const char* name;
    const std::string& address;
  } places[] = {
      {"listen", c.listen}, {"admin_listen", c.admin_listen}, {"metrics_listen", c.metrics_listen}};
  for (size_t i = 0; i < std::size(places); ++i) {
    for (size_t k = 0; k < i; ++k) {
      HostPort parsed;
      const bool picks = ParseHostPort(places[i].address, &parsed) && parsed.port == 0;
      if (places[i].address.empty() || picks || places[i].address != places[k].address) continue;
      faults->push_back(absl::StrCat("--", places[i].name, "=", places[i].address,
                                     ": must differ from ", places[k].name));
    }
  }
}

// What single ranges cannot say.
void CheckLimits(const ServerConfig& c, std::vector<std::string>* faults) {
  if (c.max_rows_per_step != 0 && c.max_rows_per_step < 64) {
    faults->push_back(
        absl::StrCat("--max_rows_per_step=", c.max_rows_per_step, ": must be 0 or 64 to 65536"));
  }
  if (c.max_rows_per_step != 0 && c.max_rows_per_step <= c.max_sequences) {
    faults->push_back(absl::StrCat("--max_rows_per_step=", c.max_rows_per_step,
                                   ": must be more than max_sequences, which is ",
                                   c.max_sequences));
  }
  if (c.default_max_new_tokens > c.max_new_tokens) {
    faults->push_back(absl::StrCat("--default_max_new_tokens=", c.default_max_new_tokens,
                                   ": must be at most max_new_tokens, which is ",
                                   c.max_new_tokens));
  }
  if (c.max_prompt_tokens > c.max_waiting_prompt_tokens) {
    faults->push_back(absl::StrCat("--max_waiting_prompt_tokens=", c.max_waiting_prompt_tokens,
                                   ": must be at least max_prompt_tokens, which is ",
                                   c.max_prompt_tokens));
  }
  if (c.max_connection_age_grace < c.max_request_time) {
    faults->push_back(absl::StrCat(
        "--max_connection_age_grace=", absl::FormatDuration(c.max_connection_age_grace),
        ": must be at least max_request_time, which is ",
        absl::FormatDuration(c.max_request_time)));
  }
}

void SetLog(const LogNames& names, ServerConfig* c) {
  c->log_level = names.level == "debug"     ? LogLevel::kDebug
                 : names.level == "warning" ? LogLevel::kWarning
                 : names.level == "error"   ? LogLevel::kError
                                            : LogLevel::kInfo;
  c->log_format = names.format == "text" ? LogFormat::kText : LogFormat::kJson;
}

[[noreturn]] void PrintAndExit(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::exit(0);
}

}  // namespace

absl::StatusOr<ServerConfig> ReadServerConfig(int argc, char** argv) {
  ServerConfig config;
  LogNames log;
  FlagSet flags;
  AddModelFlags(&config, &flags);
  AddListenFlags(&config, &log, &flags);
  AddLimitFlags(&config, &flags);
  AddTransportFlags(&config, &flags);

  FlagSet::Parsed parsed = flags.Parse({argv + 1, argv + argc}, "EDDY_");
  if (parsed.version) {
    PrintAndExit(
        absl::StrCat("eddy-server ", std::string(Version()), " (", std::string(Commit()), ")\n"));
  }
  if (parsed.help) {
    PrintAndExit(absl::StrCat(
        "eddy-server --model_dir=FOLDER [--flag=value ...]\n\n",
        "Serves a recurrent-state language model over gRPC. A flag may also come from the\n",
        "environment, as EDDY_ and its name in capitals, or from --flagfile=FILE.\n\n",
        flags.Help()));
  }
  for (const std::string& word : parsed.positional) {
    parsed.faults.push_back(absl::StrCat(word, ": is no flag; flags are --name=value"));
  }
  CheckModel(&config, flags, &parsed.faults);
  CheckAddresses(config, &parsed.faults);
  CheckLimits(config, &parsed.faults);
  if (!parsed.faults.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(parsed.faults, "\n"));
  }
  SetLog(log, &config);
  config.changed = flags.Changed();
  return config;
}

}  // namespace eddy
