#include "server/text/normalizer.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "base/status.h"
#include "base/utf8.h"
#include "server/text/white_space.h"

namespace eddy {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

bool IsCompatibility(UnicodeForm form) {
  return form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
}

bool IsComposed(UnicodeForm form) {
  return form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
}

// True if a character can be normalised without regard to what is before it: the first character of
// its decomposition neither is reordered (its combining class is 0) nor, in the composed forms,
// ever composes with one before it. Those that compose backwards are marks, and vowels and finals
// of Hangul.
bool StartsAnew(char32_t c, UnicodeForm form) {
  if (c < 0x300) return true;
  std::array<utf8proc_int32_t, 32> parts = {};
  int boundary = 0;
  const int options = UTF8PROC_DECOMPOSE | (IsCompatibility(form) ? UTF8PROC_COMPAT : 0);
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                              static_cast<utf8proc_option_t>(options), &boundary);
  EDDY_CHECK(count > 0 && static_cast<size_t>(count) <= parts.size());
  const utf8proc_int32_t first = parts[0];
  if (utf8proc_get_property(first)->combining_class != 0) return false;
  if (!IsComposed(form)) return true;
  const utf8proc_category_t category = utf8proc_category(first);
  const bool mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                    category == UTF8PROC_CATEGORY_ME;
  const bool jamo = first >= 0x1160 && first <= 0x11FF;
  return !mark && !jamo;
}

std::string ToForm(std::string_view text, UnicodeForm form) {
  const int options = UTF8PROC_STABLE | (IsComposed(form) ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (IsCompatibility(form) ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &result,
                                             static_cast<utf8proc_option_t>(options));
  // Fails for want of memory or for text that is not UTF-8.
  EDDY_CHECK(size >= 0);
  const std::unique_ptr<utf8proc_uint8_t, Free> owned(result);
  return std::string(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
}

// Normalises stretch by stretch, so that most characters keep their own place in the original.
absl::Status Apply(const UnicodeForm& form, const Pieces& from, const Piece& piece,
                   PieceRewriter* to) {
  size_t begin = piece.begin;
  while (begin < piece.end) {
    size_t end = begin + ReadUtf8(from.text, begin).size;
    while (end < piece.end) {
      const Utf8Char c = ReadUtf8(from.text, end);
      if (StartsAnew(c.value, form)) break;
      end += c.size;
    }
    const std::string_view stretch = std::string_view(from.text).substr(begin, end - begin);
    // ASCII is in every form.
    if (end == begin + 1) {
      to->Copy(begin, end);
    } else if (const std::string text = ToForm(stretch, form); text == stretch) {
      to->Copy(begin, end);
    } else {
      to->Append(text, from.origin[begin]);
    }
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status Apply(const PrependStep& step, const Pieces& from, const Piece& piece,
                   PieceRewriter* to) {
  to->Append(step.text, from.origin[piece.begin]);
  to->Copy(piece.begin, piece.end);
  return absl::OkStatus();
}

absl::Status Apply(const ReplaceStep& step, const Pieces& from, const Piece& piece,
                   PieceRewriter* to) {
  std::vector<Match> matches;
  EDDY_RETURN_IF_ERROR(step.pattern.FindAll(from.View(piece), &matches));
  size_t done = piece.begin;
  for (const Match& match : matches) {
    to->Copy(done, piece.begin + match.begin);
    to->Append(step.content, from.origin[piece.begin + match.begin]);
    done = piece.begin + match.end;
  }
  to->Copy(done, piece.end);
  return absl::OkStatus();
}

absl::Status Apply(const LowercaseStep&, const Pieces& from, const Piece& piece,
                   PieceRewriter* to) {
  for (size_t at = piece.begin; at < piece.end;) {
    const Utf8Char c = ReadUtf8(from.text, at);
    const auto lower =
        static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value)));
    if (c.value == 0x130) {
      // The one character with a lower case of two without regard to context (SpecialCasing.txt).
      to->Append("i\xCC\x87", from.origin[at]);
    } else if (lower == c.value) {
      to->Copy(at, at + c.size);
    } else {
      std::string text;
      AppendUtf8(lower, &text);
      to->Append(text, from.origin[at]);
    }
    at += c.size;
  }
  return absl::OkStatus();
}

absl::Status Apply(const TrimStep& step, const Pieces& from, const Piece& piece,
                   PieceRewriter* to) {
  size_t begin = piece.begin, end = piece.end;
  while (step.left && begin < end) {
    const Utf8Char c = ReadUtf8(from.text, begin);
    if (!IsWhiteSpace(c.value)) break;
    begin += c.size;
  }
  while (step.right && begin < end) {
    const Utf8Char c = ReadUtf8Before(from.text, end);
    if (!IsWhiteSpace(c.value)) break;
    end -= c.size;
  }
  to->Copy(begin, end);
  return absl::OkStatus();
}

}  // namespace

absl::Status Normalize(const NormalizerStep& step, Pieces* pieces) {
  PieceRewriter to(*pieces);
  for (const Piece& piece : pieces->list) {
    to.Begin(piece);
    if (piece.id >= 0) {
      to.Copy(piece.begin, piece.end);
    } else {
      EDDY_RETURN_IF_ERROR(
          std::visit([&](const auto& kind) { return Apply(kind, *pieces, piece, &to); }, step));
    }
    to.End();
  }
  *pieces = to.Finish();
  return absl::OkStatus();
}

absl::Status Normalize(const std::vector<NormalizerStep>& steps, Pieces* pieces) {
  for (const NormalizerStep& step : steps) EDDY_RETURN_IF_ERROR(Normalize(step, pieces));
  return absl::OkStatus();
}

}  // namespace eddy
