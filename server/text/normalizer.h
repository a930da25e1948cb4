// What is done to text before it is cut: the normalisers of tokenizer.json.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/text/pieces.h"
#include "server/text/regex.h"

namespace eddy {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  Pattern pattern;
  std::string content;
};
struct LowercaseStep {};
// White space at either end is taken away.
struct TrimStep {
  bool left = true, right = true;
};

using NormalizerStep = std::variant<UnicodeForm, PrependStep, ReplaceStep, LowercaseStep, TrimStep>;

// Applies a step to every piece that has no id. InvalidArgument as Regex::FindAll.
absl::Status Normalize(const NormalizerStep& step, Pieces* pieces);
absl::Status Normalize(const std::vector<NormalizerStep>& steps, Pieces* pieces);

}  // namespace eddy
