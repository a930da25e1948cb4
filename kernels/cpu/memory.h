// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace eddy {

// Bytes: what the system counts as available, or what is left under the control group's limit (of
// either version) if that is less. `root` is prefixed to the paths read, for tests. 0 if the system
// does not tell.
int64_t AvailableMemory(const std::string& root = "");

// As the system names it; "unknown processor" if it does not.
std::string ProcessorName(const std::string& root = "");

}  // namespace eddy
