// Patterns that cut text, matched by PCRE2 with Unicode properties.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eddy {

// A part of the text, [begin, end) in bytes.
struct Match {
  size_t begin = 0, end = 0;
};

// A compiled pattern. Immutable, any thread.
class Regex {
 public:
  // `pattern` as PCRE2 reads it, with UTF, UCP and MULTILINE; a line ends at U+000A.
  // InvalidArgument with the pattern, the place and the reason.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // All matches from left to right, apart. An empty match right behind another one does not count.
  // InvalidArgument if the text takes more steps than the limit. REQUIRES: `text` is valid UTF-8.
  absl::Status FindAll(std::string_view text, std::vector<Match>* matches) const;

 private:
  struct Deleter {
    void operator()(void* code) const;
  };
  std::unique_ptr<void, Deleter> code_;  // pcre2_code
};

// What components of a tokenizer look for: a pattern or a fixed string.
class Pattern {
 public:
  explicit Pattern(Regex regex) : regex_(std::make_unique<Regex>(std::move(regex))) {}
  // REQUIRES: `literal` is not empty.
  explicit Pattern(std::string literal) : literal_(std::move(literal)) {}

  // The literal, or nothing if it is a regular expression.
  const std::string* literal() const { return regex_ == nullptr ? &literal_ : nullptr; }
  // As Regex::FindAll. `matches` is emptied first.
  absl::Status FindAll(std::string_view text, std::vector<Match>* matches) const;

 private:
  std::unique_ptr<Regex> regex_;
  std::string literal_;
};

}  // namespace eddy
