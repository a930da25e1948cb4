// Tells others, above all tests, which ports were bound.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace eddy {

// Writes a JSON object of names and ports; ports that are 0 are left out. Whoever sees the file
// sees all of it. InvalidArgument if it cannot be written.
absl::Status WritePortFile(const std::string& path,
                           const std::vector<std::pair<std::string, int>>& ports);

}  // namespace eddy
