// Cuts text into the pieces within which tokens are made: the pre-tokenizers of tokenizer.json.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/text/pieces.h"
#include "server/text/regex.h"

namespace eddy {

// What becomes of the parts that a pattern matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the parts that do not match are the ones that count
};
// A space before each piece that has none.
struct PrefixSpaceStep {};
// Every byte becomes a visible character; see byte_alphabet.h.
struct ByteAlphabetStep {};
// Spaces become `replacement`, which is also put in front.
struct MetaspaceStep {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
};

using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, ByteAlphabetStep, MetaspaceStep>;

// Applies the steps to every piece that has no id. InvalidArgument as Regex::FindAll.
absl::Status PreTokenize(const std::vector<PreTokenizerStep>& steps, Pieces* pieces);

}  // namespace eddy
