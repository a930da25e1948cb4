#include "loadtest/result.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eddy::loadtest {
namespace {

using nlohmann::json;

constexpr int kSchemaVersion = 1;

const Distribution& Named(const Summary& summary, const std::string& name) {
  if (name == "ttft") return summary.ttft;
  if (name == "tpot") return summary.tpot;
  if (name == "itl") return summary.itl;
  if (name == "icl") return summary.icl;
  if (name == "e2el") return summary.e2el;
  return summary.normalized;
}

const char* Title(const std::string& name) {
  if (name == "ttft") return "Time to first token";
  if (name == "tpot") return "Time per output token (without the first)";
  if (name == "itl") return "Inter-token latency";
  if (name == "icl") return "Inter-message latency";
  if (name == "e2el") return "End-to-end latency";
  return "End-to-end latency per token";
}

// "p99", "p99.9".
std::string PercentileWord(double percentile) { return absl::StrCat("p", percentile); }

void AddDistribution(const Options& options, const std::string& name, const Distribution& samples,
                     json* object) {
  (*object)[absl::StrCat("mean_", name, "_ms")] = samples.mean;
  (*object)[absl::StrCat("median_", name, "_ms")] = samples.median;
  (*object)[absl::StrCat("std_", name, "_ms")] = samples.std;
  (*object)[absl::StrCat("max_", name, "_ms")] = samples.most;
  for (size_t i = 0; i < samples.percentiles.size(); ++i) {
    (*object)[absl::StrCat(PercentileWord(options.summary.percentiles[i]), "_", name, "_ms")] =
        samples.percentiles[i];
  }
}

json RateOf(const Point& point) {
  return point.request_rate.has_value() ? json(*point.request_rate) : json("inf");
}

void AddLoad(const Options& options, const ModelFacts& model, const Point& point, json* object) {
  json& out = *object;
  out["schema_version"] = kSchemaVersion;
  out["date"] = point.date;
  out["backend"] = out["endpoint_type"] = "eddy";
  out["label"] = options.label;
  out["model_id"] = out["tokenizer_id"] = model.name;
  out["model_type"] = model.type;
  out["model_parameters"] = model.parameters;
  out["model_state_bytes"] = model.state_bytes;
  out["server_slots"] = model.slots;
  out["server_version"] = model.server_version;
  out["target"] = options.client.target;
  out["request_rate"] = RateOf(point);
  out["burstiness"] = options.burstiness;
  out["max_concurrency"] = point.max_concurrency > 0 ? json(point.max_concurrency) : json(nullptr);
  out["loop"] = point.closed_loop ? "closed" : "open";
  out["seed"] = point.seed;
  out["flags"] = json::array();
  for (const std::string& flag : options.changed) {
    // Where the result goes and what is kept in it anyway says nothing of the load.
    if (absl::StartsWith(flag, "result_filename=") || absl::StartsWith(flag, "metadata=")) continue;
    out["flags"].push_back(flag);
  }
  for (const auto& [key, value] : options.metadata) out[key] = value;
}

void AddCounts(const Summary& summary, const Point& point, json* object) {
  json& out = *object;
  out["num_prompts"] = summary.sent;
  out["duration"] = summary.window.seconds();
  out["run_duration"] = summary.run_seconds;
  out["window_begin_s"] = summary.window.begin_s;
  out["window_end_s"] = summary.window.end_s;
  out["calls"] = summary.calls;
  out["completed"] = summary.completed;
  out["failed"] = summary.failed;
  out["cancelled"] = summary.cancelled;
  out["slow_readers"] = summary.slow_readers;
  out["short_answers"] = summary.short_answers;
  out["failures"] = summary.failures;
  out["total_input_tokens"] = summary.input_tokens;
  out["total_output_tokens"] = summary.output_tokens;
  out["messages"] = summary.messages;
  out["offered_rate"] = summary.offered_rate;
  out["request_throughput"] = summary.request_throughput;
  out["request_goodput"] = summary.request_goodput;
  out["output_throughput"] = summary.output_throughput;
  out["total_token_throughput"] = summary.total_token_throughput;
  out["max_output_tokens_per_s"] = summary.tokens_peak;
  out["max_concurrent_requests"] = summary.open_peak;
  out["mean_concurrent_requests"] = summary.concurrency;
  out["saturated"] = summary.saturated;
  out["client_cpu_share"] = point.client_cpu_share;
}

void AddServers(const Point& point, json* object) {
  json& servers = (*object)["servers"] = json::array();
  for (const auto& [url, window] : point.servers) {
    json server = {{"metrics_url", url}};
    if (!window.ok()) {
      server["error"] = std::string(window.status().message());
      servers.push_back(server);
      continue;
    }
    server["begin_s"] = window->begin_s;
    server["end_s"] = window->end_s;
    const ServerFigures figures = FiguresOf(*window);
    const auto add = [&](const char* name, const std::optional<double>& value) {
      if (value.has_value()) server[name] = *value;
    };
    add("generation_tokens_per_s", figures.generation_tokens_per_s);
    add("mean_rows_per_step", figures.rows_per_step);
    add("mean_sequences_per_step", figures.sequences_per_step);
    add("mean_step_ms", figures.step_ms);
    add("host_share", figures.host_share);
    add("mean_ttft_ms", figures.ttft_ms);
    add("mean_itl_ms", figures.itl_ms);
    add("mean_queue_ms", figures.queue_ms);
    json& change = server["metrics"] = json::object();
    for (const auto& [series, value] : window->change) {
      if (absl::StartsWith(series, "eddy_")) change[series] = value;
    }
    servers.push_back(server);
  }
}

void AddDetails(const RunResult& run, json* object) {
  json& out = *object;
  for (const char* name :
       {"input_lens", "output_lens", "ttfts", "itls", "start_times", "e2els", "codes", "errors"}) {
    out[name] = json::array();
  }
  for (const CallRecord& call : run.calls) {
    out["input_lens"].push_back(call.plan.prompt_tokens);
    out["output_lens"].push_back(call.tokens());
    out["ttfts"].push_back(call.ttft_ms() / 1e3);
    json gaps = json::array();
    for (size_t i = 1; i < call.messages.size(); ++i) {
      const double gap_s = (call.messages[i].at_us - call.messages[i - 1].at_us) / 1e6;
      for (uint32_t k = 0; k < call.messages[i].tokens; ++k) {
        gaps.push_back(gap_s / call.messages[i].tokens);
      }
    }
    out["itls"].push_back(std::move(gaps));
    out["start_times"].push_back(static_cast<double>(call.intended_us - run.began_us) / 1e6);
    out["e2els"].push_back(call.e2e_ms() / 1e3);
    out["codes"].push_back(CodeName(call.code));
    out["errors"].push_back(call.error);
  }
}

std::string Line(const std::string& name, const std::string& value) {
  return absl::StrFormat("%-44s %12s\n", name, value);
}
std::string Line(const std::string& name, double value) {
  return Line(name, absl::StrFormat("%.2f", value));
}
std::string Line(const std::string& name, int64_t value) {
  return Line(name, absl::StrFormat("%d", value));
}

}  // namespace

ServerFigures FiguresOf(const WindowScraper::Result& window) {
  // Over all series of one name: phases, and models once there are several.
  const auto sum = [&](const std::string& name) -> std::optional<double> {
    std::optional<double> total;
    for (const auto& [series, value] : window.change) {
      if (series == name || absl::StartsWith(series, name + "{")) {
        total = total.value_or(0) + value;
      }
    }
    return total;
  };
  const auto ratio = [](std::optional<double> above, std::optional<double> below, double unit) {
    return above.has_value() && below.value_or(0) > 0 ? std::optional(*above / *below * unit)
                                                      : std::nullopt;
  };
  const auto mean = [&](const std::string& name, double unit) {
    return ratio(sum(name + "_sum"), sum(name + "_count"), unit);
  };
  ServerFigures figures;
  figures.generation_tokens_per_s =
      ratio(sum("eddy_generation_tokens_total"), window.end_s - window.begin_s, 1);
  figures.rows_per_step = mean("eddy_engine_step_rows", 1);
  figures.sequences_per_step = mean("eddy_engine_step_sequences", 1);
  figures.step_ms = mean("eddy_engine_step_duration_seconds", 1e3);
  const std::optional<double> host = sum("eddy_engine_host_seconds_total"),
                              device = sum("eddy_engine_device_wait_seconds_total");
  if (host.has_value() && device.has_value()) {
    figures.host_share = ratio(host, *host + *device, 1);
  }
  figures.ttft_ms = mean("eddy_time_to_first_token_seconds", 1e3);
  figures.itl_ms = mean("eddy_inter_token_latency_seconds", 1e3);
  figures.queue_ms = mean("eddy_request_queue_time_seconds", 1e3);
  return figures;
}

json ToJson(const Options& options, const ModelFacts& model, const Point& point,
            const Summary& summary, const RunResult& run) {
  json out;
  AddLoad(options, model, point, &out);
  AddCounts(summary, point, &out);
  if (!options.summary.slos.any()) out["request_goodput"] = nullptr;  // nothing was promised
  for (const std::string& name : options.percentile_metrics) {
    AddDistribution(options, name, Named(summary, name), &out);
  }
  AddDistribution(options, "client_queue", summary.lag, &out);
  out["itl_by_place_ms"] = summary.itl_by_place_ms;
  json& timeline = out["timeline"] = json::object();
  for (const Second& second : summary.timeline) {
    timeline["tokens"].push_back(second.tokens);
    timeline["open"].push_back(second.open);
    timeline["offered"].push_back(second.offered);
  }
  AddServers(point, &out);
  if (options.save_detailed) AddDetails(run, &out);
  return out;
}

std::string ToText(const Options& options, const Point& point, const Summary& summary) {
  std::string out = absl::StrFormat("============ Serving Benchmark Result ============\n");
  out += Line("Request rate (calls/s)",
              point.request_rate ? absl::StrFormat("%.3f", *point.request_rate) : "inf");
  out += Line("Maximum concurrency",
              point.max_concurrency > 0 ? absl::StrCat(point.max_concurrency) : "none");
  out += Line("Seed", absl::StrCat(point.seed));
  out += Line("Steady window (s)", summary.window.seconds());
  out += Line("Calls due in the window", summary.calls);
  out += Line("Answered in full", summary.completed);
  out += Line("Cancelled here, as planned", summary.cancelled);
  out += Line("Failed", summary.failed);
  for (const auto& [failure, count] : summary.failures) out += Line("  " + failure, count);
  out += Line("Input tokens", summary.input_tokens);
  out += Line("Output tokens", summary.output_tokens);
  out += Line("Request throughput (calls/s)", summary.request_throughput);
  if (options.summary.slos.any()) {
    out += Line("Request goodput (calls/s)", summary.request_goodput);
  }
  out += Line("Output token throughput (tokens/s)", summary.output_throughput);
  out += Line("Total token throughput (tokens/s)", summary.total_token_throughput);
  out += Line("Open calls, mean", summary.concurrency);
  out += Line("Open calls, most", static_cast<int64_t>(summary.open_peak));
  out += Line("Client: processor, share of all cores", point.client_cpu_share);
  const auto add = [&](const char* title, const std::string& name, const Distribution& samples) {
    out += absl::StrFormat("---- %s (ms), %d samples\n", title, samples.count);
    out += Line("Mean " + name, samples.mean);
    out += Line("Median " + name, samples.median);
    for (size_t i = 0; i < samples.percentiles.size(); ++i) {
      out += Line(absl::StrCat("P", options.summary.percentiles[i], " ", name),
                  samples.percentiles[i]);
    }
  };
  for (const std::string& name : options.percentile_metrics) {
    add(Title(name), name, Named(summary, name));
  }
  add("Client: intended to actual send", "lag", summary.lag);
  if (summary.saturated) {
    out += "The server cannot keep up: open calls and TTFT rose throughout the window.\n";
  }
  return out;
}

std::string ToText(const RunProgress& progress) {
  return absl::StrFormat("%6.0f s: %d sent, %d ended, %d open, sent %.1f ms late\n",
                         progress.seconds, progress.started, progress.ended, progress.open,
                         progress.lag_ms);
}

}  // namespace eddy::loadtest
