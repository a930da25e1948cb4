#include "loadtest/trace.h"

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace eddy::loadtest {
namespace {

using nlohmann::json;

constexpr int64_t kTokensMax = 1'000'000;
constexpr size_t kEntriesMax = 10'000'000;

absl::StatusOr<int> Count(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", key, " is missing"));
  }
  const bool whole = found->is_number_unsigned();
  if (!whole || found->get<uint64_t>() < 1 || found->get<uint64_t>() > kTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", key, " is ", found->dump(),
                                                   ", it must be a number of 1 to ", kTokensMax));
  }
  return static_cast<int>(found->get<uint64_t>());
}

absl::StatusOr<TraceEntry> ReadLine(const std::string& line, const std::string& where) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": not a JSON object"));
  }
  const auto at = object.find("timestamp");
  if (at == object.end() || !at->is_number()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": timestamp is not a number"));
  }
  TraceEntry entry = {.at_s = at->get<double>()};
  EDDY_ASSIGN_OR_RETURN(entry.prompt_tokens, Count(object, "prompt_tokens", where));
  EDDY_ASSIGN_OR_RETURN(entry.max_new_tokens, Count(object, "max_new_tokens", where));
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<TraceEntry> entries;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const std::string where = absl::StrCat(path, ":", number);
    EDDY_ASSIGN_OR_RETURN(const TraceEntry entry, ReadLine(line, where));
    if (!entries.empty() && entry.at_s < entries.back().at_s) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": timestamp is ", entry.at_s,
                                                     ", below the ", entries.back().at_s,
                                                     " of the line before"));
    }
    if (entries.size() == kEntriesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": more entries than the limit, ", kEntriesMax));
    }
    entries.push_back(entry);
  }
  if (entries.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no entries"));
  const double first = entries.front().at_s;
  for (TraceEntry& entry : entries) entry.at_s -= first;
  return entries;
}

}  // namespace eddy::loadtest
