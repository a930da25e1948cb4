// A whole load test: its points one after the other, their results printed and saved.
#pragma once

#include <cstdio>
#include <vector>

#include "absl/status/status.h"
#include "loadtest/client.h"
#include "loadtest/options.h"
#include "loadtest/summary.h"

namespace eddy::loadtest {

// What a test did: the summary of each run.
struct LoadTestResult {
  std::vector<Summary> runs = {};
};

// Results go to `out`, progress to `progress` (nullptr: nowhere). Returns an error if a result
// cannot be saved or a warm-up call fails; calls that fail in a run are results, not errors.
absl::StatusOr<LoadTestResult> RunLoadTest(const Options& options, Client* client, std::FILE* out,
                                           std::FILE* progress);

}  // namespace eddy::loadtest
