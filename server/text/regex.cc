#define PCRE2_CODE_UNIT_WIDTH 8
#include "server/text/regex.h"

#include <pcre2.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/utf8.h"

namespace eddy {
namespace {

// Steps of one match: far above what a pre-tokenizer pattern takes on megabytes, and a second or so
// for a pattern that goes back and forth.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr size_t kJitStackMin = 32 << 10, kJitStackMax = 4 << 20;  // bytes

PCRE2_SPTR Units(std::string_view text) {
  // PCRE2 refuses a null pointer, which an empty view may hold.
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// What a thread needs to match: one result and a stack for compiled code.
class MatchScratch {
 public:
  MatchScratch()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr)) {
    EDDY_CHECK(data_ != nullptr && context_ != nullptr);
    pcre2_set_match_limit(context_, kMatchLimit);
    // Without a stack of its own (no JIT on this machine) PCRE2 interprets the pattern.
    if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~MatchScratch() {
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
    pcre2_jit_stack_free(stack_);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

  // The first match at or behind `from`; nothing if there is none. The error is PCRE2's.
  int Find(const pcre2_code* code, std::string_view text, size_t from,
           std::optional<Match>* match) {
    const int rc =
        pcre2_match(code, Units(text), text.size(), from, PCRE2_NO_UTF_CHECK, data_, context_);
    match->reset();
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) return rc;
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_);
    *match = Match{.begin = ends[0], .end = ends[1]};
    return 0;
  }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

}  // namespace

void Regex::Deleter::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  EDDY_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* code = pcre2_compile(
      Units(pattern), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pattern \"", std::string(pattern),
                                                   "\": ", ErrorText(error), " at byte ", place));
  }
  Regex regex;
  regex.code_.reset(code);
  // Where it fails, the pattern is interpreted, with the same result.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

absl::Status Regex::FindAll(std::string_view text, std::vector<Match>* matches) const {
  thread_local MatchScratch scratch;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  size_t from = 0;
  std::optional<size_t> last_end;
  while (from <= text.size()) {
    std::optional<Match> match;
    if (const int error = scratch.Find(code, text, from, &match); error < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the text cannot be cut at byte ", from, ": ",
                                                     ErrorText(error), "; the limit is ",
                                                     kMatchLimit, " steps"));
    }
    if (!match.has_value()) break;
    if (match->begin == match->end && last_end == match->end) {
      from += from < text.size() ? ReadUtf8(text, from).size : 1;
      continue;
    }
    from = match->end;
    last_end = match->end;
    matches->push_back(*match);
  }
  return absl::OkStatus();
}

absl::Status Pattern::FindAll(std::string_view text, std::vector<Match>* matches) const {
  matches->clear();
  if (regex_ != nullptr) return regex_->FindAll(text, matches);
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    matches->push_back({.begin = at, .end = at + literal_.size()});
  }
  return absl::OkStatus();
}

}  // namespace eddy
