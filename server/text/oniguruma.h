// Patterns of tokenizer.json files in PCRE2's words.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eddy {

// The files are written for Oniguruma, whose dialect differs from PCRE2's: \s is White_Space, \w
// has marks, scripts are not extended, x{1,2}+ is not possessive, [a&&b] is an intersection, ...
// (its doc/RE). Gives a pattern for Regex::Compile that matches the same. InvalidArgument names
// what has no counterpart here: back references, named groups, options but i, and the like.
// REQUIRES: `pattern` is valid UTF-8.
absl::StatusOr<std::string> OnigurumaToPcre2(std::string_view pattern);

}  // namespace eddy
