// A run's summary as people and programs read it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loadtest/client.h"
#include "loadtest/options.h"
#include "loadtest/runner.h"
#include "loadtest/scrape.h"
#include "loadtest/summary.h"

namespace eddy::loadtest {

// One run of a test: its load and what is known of it besides the calls.
struct Point {
  std::optional<double> request_rate = {};  // none: closed loop, trace, or all at once
  int max_concurrency = 0;                  // 0: no bound
  bool closed_loop = false;
  uint64_t seed = 0;
  std::string date = {};        // RFC 3339
  double client_cpu_share = 0;  // of all cores, of this process in the run
  std::vector<std::pair<std::string, absl::StatusOr<WindowScraper::Result>>> servers =
      {};  // by URL
};

// What a server's metrics say of its work in the window; a figure that its metrics lack is absent.
struct ServerFigures {
  std::optional<double> generation_tokens_per_s = {}, rows_per_step = {}, sequences_per_step = {},
                        step_ms = {}, host_share = {}, ttft_ms = {}, itl_ms = {}, queue_ms = {};
};
ServerFigures FiguresOf(const WindowScraper::Result& window);

// A flat object with the key names of `vllm bench serve`, and more beside them; README.md lists
// them. Per-call arrays only with options.save_detailed.
nlohmann::json ToJson(const Options& options, const ModelFacts& model, const Point& point,
                      const Summary& summary, const RunResult& run);

// About 40 lines.
std::string ToText(const Options& options, const Point& point, const Summary& summary);

// One line.
std::string ToText(const RunProgress& progress);

}  // namespace eddy::loadtest
