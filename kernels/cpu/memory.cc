#include "kernels/cpu/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace eddy {
namespace {

// The number that a file holds; none if there is no such file or it holds something else ("max").
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

// The text behind `key` and a colon in a file of such lines.
std::optional<std::string> ReadEntry(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.compare(0, key.size(), key) != 0 || colon == std::string::npos) continue;
    const size_t text = line.find_first_not_of(" \t", colon + 1);
    return text == std::string::npos ? "" : line.substr(text);
  }
  return std::nullopt;
}

std::optional<int64_t> LeftUnder(const std::string& limit_path, const std::string& usage_path) {
  const std::optional<int64_t> limit = ReadNumber(limit_path), usage = ReadNumber(usage_path);
  if (!limit || !usage) return std::nullopt;
  return std::max<int64_t>(0, *limit - *usage);
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  const std::optional<std::string> entry = ReadEntry(root + "/proc/meminfo", "MemAvailable");
  if (!entry) return 0;
  int64_t available = 0;
  for (char digit : *entry) {
    if (digit < '0' || digit > '9') break;
    available = available * 10 + (digit - '0');
  }
  available *= 1024;  // the entry is in KiB
  const std::string groups = root + "/sys/fs/cgroup/";
  for (const auto& left : {LeftUnder(groups + "memory.max", groups + "memory.current"),
                           LeftUnder(groups + "memory/memory.limit_in_bytes",
                                     groups + "memory/memory.usage_in_bytes")}) {
    if (left) available = std::min(available, *left);
  }
  return available;
}

std::string ProcessorName(const std::string& root) {
  return ReadEntry(root + "/proc/cpuinfo", "model name").value_or("unknown processor");
}

}  // namespace eddy
