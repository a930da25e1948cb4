// JSON from files that somebody else wrote.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace eddy {

inline constexpr int64_t kMaxJsonBytes = 16 << 20;
inline constexpr int kMaxJsonDepth = 32;

// JSON has no infinity. Some writers put {"__float__": "Infinity"} for it, others the bare word,
// which ParseJson reads as that object.
bool IsInfinity(const nlohmann::json& value);

// InvalidArgument, naming `file`, for text that is not JSON (but for bare infinities), is longer or
// deeper than the bounds above, or gives one key of an object twice. Any thread.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file);

// The text of a file that should be JSON. NotFound if it cannot be opened.
absl::StatusOr<std::string> ReadJsonText(const std::string& path);

// `value` as it would stand in a file, cut to a length fit for an error message.
std::string ShortDump(const nlohmann::json& value);

}  // namespace eddy
