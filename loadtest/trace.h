// Recorded traffic to replay: a file of JSON objects, one a line,
//
//   {"timestamp": 12.5, "prompt_tokens": 161, "max_new_tokens": 338}
//
// timestamp in seconds from any beginning, not falling from line to line.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eddy::loadtest {

struct TraceEntry {
  double at_s = 0;  // after the first
  int prompt_tokens = 1;
  int max_new_tokens = 1;
};

// All of the file. NotFound or InvalidArgument, with file, line, key, value and bound.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path);

}  // namespace eddy::loadtest
